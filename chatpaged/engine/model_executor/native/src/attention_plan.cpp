#include "attention_plan.h"

#include <math.h>
#include <string.h>

#include <algorithm>

static constexpr int SHORT_ROW = 16;     // rows of up to this many tokens are computed chunk by chunk
static constexpr int GROUP_TOKENS = 16;  // of one item: enough to read each key once, few enough to share out

void AttentionPlan::build(const cp_step& step, const KVShape& shape, int window) {
    shape_ = shape;
    window_ = window;
    tokens_.clear();
    tiles_.clear();
    groups_.clear();
    members_.clear();
    row_first_.clear();
    row_tokens_.clear();
    row_keys_.clear();
    tables_.clear();
    const int32_t* table = step.tables;
    int64_t slots = 0;
    int per_tile = std::max(1, MAX_QUERIES / (shape.heads / shape.kv_heads));
    for (int row = 0; row < step.num_rows; row++) {
        int count = step.row_tokens[row], start = step.row_starts[row], first = (int)tokens_.size();
        row_first_.push_back(first);
        row_tokens_.push_back(count);
        row_keys_.push_back(start + count);
        tables_.push_back(table);
        table += step.row_blocks[row];
        for (int i = 0; i < count; i++) {
            int position = start + i;
            int first_chunk = window ? std::max(0, position + 1 - window) / CHUNK : 0;
            int64_t slot = count <= SHORT_ROW ? slots : -1;
            tokens_.push_back({row, position, first_chunk, slot});
            if (slot >= 0) slots += position / CHUNK - first_chunk + 1;
        }
        if (count > SHORT_ROW)
            for (int i = 0; i < count; i += per_tile) tiles_.push_back({row, first + i, std::min(per_tile, count - i)});
    }
    // The last tiles of a prompt have the most keys: they go first, so that no thread is left with one at the end.
    std::reverse(tiles_.begin(), tiles_.end());
    add_groups(window);
    int64_t heads = shape.heads;
    largest_.resize(slots * heads);
    sums_.assign(slots * heads, 0.0f);
    values_.resize(slots * heads * shape.head_pad);
}

bool AttentionPlan::range(int token, int chunk, int* lo, int* hi) const {
    int end = tokens_[token].position + 1;
    *lo = window_ ? std::max(0, end - window_ - chunk * CHUNK) : 0;
    *hi = std::min(CHUNK, end - chunk * CHUNK);
    return *lo < *hi;
}

bool AttentionPlan::same_blocks(int a, int b, int chunk) const {
    int end = (chunk + 1) * CHUNK;
    if (row_keys_[a] < end || row_keys_[b] < end) return false;  // a chunk that is still being filled is its owner's
    int first = chunk * CHUNK / shape_.block_size, last = (end - 1) / shape_.block_size;
    return !memcmp(tables_[a] + first, tables_[b] + first, sizeof(int32_t) * (last - first + 1));
}

void AttentionPlan::add_groups(int window) {
    std::vector<int> rows;
    int chunks = 0;
    for (int row = 0; row < (int)tables_.size(); row++)
        if (row_tokens_[row] && row_tokens_[row] <= SHORT_ROW) {
            rows.push_back(row);
            chunks = std::max(chunks, (row_keys_[row] - 1) / CHUNK + 1);
        }
    std::vector<std::vector<int>> together;
    for (int chunk = 0; chunk < chunks; chunk++) {
        together.clear();
        for (int row : rows) {
            int first_key = window ? std::max(0, row_keys_[row] - row_tokens_[row] + 1 - window) : 0;
            if (row_keys_[row] <= chunk * CHUNK || first_key >= (chunk + 1) * CHUNK) continue;
            auto like = std::find_if(together.begin(), together.end(), [&](const std::vector<int>& g) { return same_blocks(g[0], row, chunk); });
            if (like == together.end())
                together.push_back({row});
            else
                like->push_back(row);
        }
        for (const auto& sharing : together) {
            int first = (int)members_.size(), lo, hi;
            for (int row : sharing)
                for (int token = row_first_[row]; token < row_first_[row] + row_tokens_[row]; token++)
                    if (range(token, chunk, &lo, &hi)) members_.push_back(token);
            for (; first < (int)members_.size(); first += GROUP_TOKENS)
                groups_.push_back({chunk, sharing[0], first, std::min(GROUP_TOKENS, (int)members_.size() - first)});
        }
    }
}

// The blocks of a chunk; returns the place of its first key in the first of them.
int AttentionPlan::find_parts(const AttentionInputs& inputs, int row, int chunk, const uint8_t** parts) const {
    int begin = chunk * CHUNK, end = std::min(begin + CHUNK, row_keys_[row]), first = begin / shape_.block_size;
    for (int block = first; block * shape_.block_size < end; block++)
        parts[block - first] = inputs.layer + tables_[row][block] * inputs.block_bytes;
    return begin % shape_.block_size;
}

void AttentionPlan::run_item(const Kernels& kernels, const AttentionInputs& inputs, int item, float* room) {
    int piece = item / shape_.kv_heads, head = item % shape_.kv_heads;
    if (piece < (int)tiles_.size())
        run_tile(kernels, inputs, tiles_[piece], head, room);
    else
        run_group(kernels, inputs, groups_[piece - tiles_.size()], head, room);
}

void AttentionPlan::run_group(const Kernels& kernels, const AttentionInputs& inputs, const Group& group, int head, float* room) {
    const uint8_t* parts[CHUNK];
    ChunkQuery queries[MAX_QUERIES];
    int start = find_parts(inputs, group.row, group.chunk, parts), share = shape_.heads / shape_.kv_heads, count = 0;
    for (int i = 0; i < group.count; i++) {
        int token = members_[group.first + i], lo, hi;
        range(token, group.chunk, &lo, &hi);
        for (int h = head * share; h < (head + 1) * share; h++) {
            int64_t slot = (tokens_[token].slot + group.chunk - tokens_[token].first_chunk) * shape_.heads + h;
            queries[count++] = {inputs.queries + token * inputs.query_stride + (int64_t)h * shape_.head_dim, lo, hi, &largest_[slot], &sums_[slot],
                                &values_[slot * shape_.head_pad]};
            if (count == MAX_QUERIES) {
                kernels.attend_chunk(shape_, head, parts, start, inputs.softcap, queries, count, room);
                count = 0;
            }
        }
    }
    if (count) kernels.attend_chunk(shape_, head, parts, start, inputs.softcap, queries, count, room);
}

void AttentionPlan::run_tile(const Kernels& kernels, const AttentionInputs& inputs, const Tile& tile, int head, float* room) {
    const uint8_t* parts[CHUNK];
    ChunkQuery queries[MAX_QUERIES];
    int which[MAX_QUERIES];
    int share = shape_.heads / shape_.kv_heads, pad = shape_.head_pad, total = tile.count * share;
    float* result = room + SCRATCH_FLOATS;          // [MAX_QUERIES] of largest, sum and values: of the chunk, then of all before
    float* state = result + MAX_QUERIES * (pad + 2);
    for (int begin = 0; begin < total; begin += MAX_QUERIES) {
        int end = std::min(total, begin + MAX_QUERIES);
        for (int i = 0; i < end - begin; i++) state[i * (pad + 2) + 1] = 0.0f;
        int first_chunk = tokens_[tile.first + begin / share].first_chunk, last_chunk = tokens_[tile.first + (end - 1) / share].position / CHUNK;
        for (int chunk = first_chunk; chunk <= last_chunk; chunk++) {
            int start = find_parts(inputs, tile.row, chunk, parts), count = 0;
            for (int i = begin; i < end; i++) {
                int token = tile.first + i / share, lo, hi;
                if (!range(token, chunk, &lo, &hi)) continue;
                float* own = result + count * (pad + 2);
                which[count] = i - begin;
                queries[count++] = {inputs.queries + token * inputs.query_stride + (int64_t)(head * share + i % share) * shape_.head_dim, lo, hi, own, own + 1,
                                    own + 2};
            }
            if (count) kernels.attend_chunk(shape_, head, parts, start, inputs.softcap, queries, count, room);
            for (int i = 0; i < count; i++) {
                float *own = state + which[i] * (pad + 2), *fresh = result + i * (pad + 2);
                kernels.fold(own, own + 1, own + 2, fresh[0], fresh[1], fresh + 2, pad);
            }
        }
        for (int i = begin; i < end; i++) {
            float* own = state + (i - begin) * (pad + 2);
            write(kernels, inputs, tile.first + i / share, head * share + i % share, own[0], own[1], own + 2);
        }
    }
}

void AttentionPlan::finish(const Kernels& kernels, const AttentionInputs& inputs, int token) {
    const Token& place = tokens_[token];
    if (place.slot < 0) return;
    int chunks = place.position / CHUNK - place.first_chunk + 1, pad = shape_.head_pad;
    for (int head = 0; head < shape_.heads; head++) {
        int64_t first = place.slot * shape_.heads + head;
        for (int chunk = 1; chunk < chunks; chunk++) {
            int64_t slot = first + (int64_t)chunk * shape_.heads;
            kernels.fold(&largest_[first], &sums_[first], &values_[first * pad], largest_[slot], sums_[slot], &values_[slot * pad], pad);
        }
        write(kernels, inputs, token, head, largest_[first], sums_[first], &values_[first * pad]);
    }
}

void AttentionPlan::write(const Kernels& kernels, const AttentionInputs& inputs, int token, int head, float largest, float sum, float* values) const {
    if (inputs.sinks) {  // a score that takes part in the softmax, but has no value
        float sink = inputs.sinks[head], most = std::max(sink, largest), factor = expf(largest - most);
        sum = sum * factor + expf(sink - most);
        kernels.scale(values, factor, shape_.head_dim);
    }
    float* out = inputs.out + token * inputs.out_stride + (int64_t)head * shape_.head_dim;
    memcpy(out, values, sizeof(float) * shape_.head_dim);
    kernels.scale(out, 1.0f / sum, shape_.head_dim);
}
