// Which pieces the attention of a step falls into, and how they are put together again.
//
// A row of many tokens (a prompt that is being read) is cut into tiles of some tokens, each of which goes over all chunks of its keys by
// itself. Tokens of short rows (decodes) would each read their keys alone; so rows whose tables name the same blocks in a chunk are
// computed together there, and each token's chunks are folded later. The results are the same to the last bit: see kernels.h.
#pragma once

#include <vector>

#include "chatpaged.h"
#include "kernels.h"
#include "threads.h"

struct AttentionInputs {
    const float* queries;   // [tokens, query_stride], scaled
    int64_t query_stride;
    float* out;             // [tokens, out_stride]
    int64_t out_stride;
    const uint8_t* layer;   // keys of this layer in block 0
    int64_t block_bytes;
    float softcap;
    const float* sinks;     // [heads] or null
};

class AttentionPlan {
   public:
    void build(const cp_step& step, const KVShape& shape, int window);
    int num_items() const { return ((int)tiles_.size() + (int)groups_.size()) * shape_.kv_heads; }
    // `room`: THREAD_FLOATS of the calling thread.
    void run_item(const Kernels& kernels, const AttentionInputs& inputs, int item, float* room);
    // Once all items are done: writes the result of a token, unless a tile has done so.
    void finish(const Kernels& kernels, const AttentionInputs& inputs, int token);
    static int64_t thread_floats(const KVShape& shape) { return SCRATCH_FLOATS + MAX_QUERIES * 2 * ((int64_t)shape.head_pad + 2); }

   private:
    struct Tile { int row, first, count; };          // tokens of a row
    struct Group { int chunk, row, first, count; };  // members_[first ..], tokens that see the chunk through this row's table
    struct Token { int row, position, first_chunk; int64_t slot; };  // slot: place of its first chunk's results; -1: in a tile

    void add_groups(int window);
    void run_tile(const Kernels& kernels, const AttentionInputs& inputs, const Tile& tile, int head, float* room);
    void run_group(const Kernels& kernels, const AttentionInputs& inputs, const Group& group, int head, float* room);
    int find_parts(const AttentionInputs& inputs, int row, int chunk, const uint8_t** parts) const;
    bool range(int token, int chunk, int* lo, int* hi) const;
    void write(const Kernels& kernels, const AttentionInputs& inputs, int token, int head, float largest, float sum, float* values) const;
    bool same_blocks(int a, int b, int chunk) const;

    KVShape shape_{};
    int window_ = 0;
    std::vector<Token> tokens_;
    std::vector<int> row_first_, row_tokens_, row_keys_;
    std::vector<const int32_t*> tables_;
    std::vector<Tile> tiles_;
    std::vector<Group> groups_;
    std::vector<int> members_;
    std::vector<float> largest_, sums_, values_;
};
