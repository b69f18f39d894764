// The C interface: plain structures of numbers and pointers. Nothing here owns memory that comes from outside.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define CP_API __declspec(dllexport)
#else
#define CP_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Changes with every change of a structure or a layout; the Python side refuses another one.
enum { CP_VERSION = 5 };

typedef struct {
    int32_t format;        // F32 0, F16 1, I8 2, I4 3
    int32_t n, k;
    const void* data;      // panels; null: the layer is not there
    const float* bias;     // [n, padded], in the order of the panels; or null
} cp_linear;

typedef struct {
    const float *input_norm, *post_attention_norm, *pre_mlp_norm, *post_mlp_norm;  // [hidden], or null: none
    const float *q_norm, *k_norm;                                                  // [head_dim] or [heads x head_dim], or null
    const float *cosine, *sine;                                                    // [max_len, rotary_dim / 2], or null: no positions
    const float* sinks;                                                            // [heads] or null
    cp_linear qkv, o, gate_up, down;  // gate_up: 16 gates and the 16 they go with in turn
    int32_t window;                   // 0: everything before
} cp_layer;

typedef struct {
    int32_t num_layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, rotary_dim;
    int32_t activation;        // 0 silu, 1 gelu_tanh
    int32_t qk_norm;           // 0 none, 1 each head, 2 all heads together
    float norm_eps, embedding_scale, residual_scale, logits_scale, attention_scale, attention_softcap, final_softcap;  // softcap 0: none
    int32_t embedding_format;  // F32 0, F16 1, BF16 4
    const void* embedding;     // [vocab, hidden], row by row
    const float* final_norm;
    cp_linear lm_head;
    const cp_layer* layers;
    int32_t kv_format;         // F32 0, F16 1, I8 2
    int32_t block_size;
} cp_model_config;

typedef struct {
    int32_t num_tokens, num_rows, num_logits;
    const int32_t* token_ids;     // [num_tokens]
    const int32_t* row_tokens;    // [num_rows], tokens of each row in this step
    const int32_t* row_starts;    // [num_rows], tokens of it computed before
    const int32_t* row_blocks;    // [num_rows], blocks in its table
    const int32_t* tables;        // all tables one after another
    const int32_t* logits_tokens; // [num_logits], places in the batch
    uint8_t* pool;
    float* logits;                // [num_logits, vocab padded to 32]
    int32_t* best;                // [num_logits], the likeliest token
    float* best_logit;            // [num_logits], its logit; NaN where one is NaN
} cp_step;

typedef struct cp_team cp_team;
typedef struct cp_model cp_model;

CP_API int32_t cp_version(void);
// The instruction sets that this processor and this build have, best first, as names with spaces in between.
CP_API const char* cp_instruction_sets(void);
// instruction_set: a name, or null for the best. Null if it is not there.
CP_API cp_team* cp_team_create(int32_t threads, const char* instruction_set);
CP_API void cp_team_destroy(cp_team*);
CP_API const char* cp_team_instruction_set(const cp_team*);

// The configuration and its layers are copied, what they point to has to stay. Null: a shape that is not supported.
CP_API cp_model* cp_model_create(cp_team*, const cp_model_config*);
CP_API void cp_model_destroy(cp_model*);
CP_API int64_t cp_model_block_bytes(const cp_model*);
// Takes memory for steps of so many tokens, so that the first of them does not have to. 0, or -1 where there is none.
CP_API int32_t cp_model_reserve(cp_model*, int32_t tokens);
// 0, or -1 where memory for intermediate results is lacking.
CP_API int32_t cp_model_step(cp_model*, const cp_step*);

// Attention of one layer. Query [tokens, heads x head_dim], key and value [tokens, kv_heads x head_dim], not yet scaled.
typedef struct {
    int32_t heads, kv_heads, head_dim, block_size, kv_format, num_layers, window;
    float scale, softcap;
    const float* sinks;
} cp_attention_config;
CP_API int32_t cp_attention(cp_team*, const cp_attention_config*, int32_t layer, const cp_step*, const float* query, const float* key,
                     const float* value, float* out);

// y [rows, n padded to 32] = x [rows, k] w'
CP_API int32_t cp_linear_apply(cp_team*, const cp_linear*, int32_t rows, const float* x, float* y);
// How to draw a token. temperature 0: the likeliest; top_k 0, top_p 1, min_p 0: no limit.
typedef struct {
    const float* logits;  // [vocab]
    float temperature, top_p, min_p;
    int32_t top_k;
    double uniform;       // in [0, 1)
} cp_draw;
// tokens [count]; -1 where the logits are not numbers.
CP_API int32_t cp_sample(cp_team*, int32_t count, const cp_draw* draws, int32_t vocab, int32_t* tokens);
// Asks for large pages where the system has them: pieces of blocks are short, and lie far apart.
CP_API void cp_use_large_pages(void* data, int64_t bytes);
// Packs a matrix [n, k] of float as I8 or I4; `out` has room for all panels.
CP_API void cp_pack(cp_team*, const float* weight, int32_t n, int32_t k, int32_t format, uint8_t* out);
// Bytes a second at which all threads together read [bytes] of memory, and what they read, so that nothing is left out.
CP_API double cp_read_bandwidth(cp_team*, const float* data, int64_t bytes, float* sum);

#ifdef __cplusplus
}
#endif
