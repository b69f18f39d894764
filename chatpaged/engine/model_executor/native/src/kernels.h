// What the kernels of an instruction set offer, and the layouts that all of them share.
//
// Weights [n, k] lie in panels of 32 outputs, so that a vector holds the same input of neighbouring outputs:
//
//   F32   [n / 32] [k] [32] float
//   F16   [n / 32] [k] [32] half
//   I8    [n / 32] [k / 32] { scale[32] half, [8] [32] [4] byte = w + 128 }                 w = scale x (byte - 128)
//   I4    [n / 32] [k / 32] { scale[32] half, least[32] half, [4] [32] [4] two nibbles }    w = least + scale x nibble
//
// (in I4 the low nibbles of a byte belong to inputs 8 j .. 8 j + 3, the high ones to 8 j + 4 .. 8 j + 7). n and k are padded to
// multiples of 32 with zeros. Activations for I8 and I4 are bytes with a scale for each row and group of 32 inputs.
//
// Keys of a block lie transposed in tiles of 16 tokens, values token by token:
//
//   keys    [kv_heads] [block_size / tile] [head_pad] [tile]     tile = min(16, block_size)
//   values  [kv_heads] [block_size] [head_pad]                   head_pad = head_dim rounded up to 16
//   int8: both are followed by the scales, float [kv_heads] [block_size]
//
// The arithmetic of a row has one order, whatever is computed beside it: sums over inputs go from the first to the last in one
// accumulator for each output (in I8 and I4 group by group, within a group in whole numbers, which have no order); attention goes
// over stretches of CHUNK keys, each computed from fresh sums, and folds their results from the first to the last.
#pragma once

#include <stdint.h>

constexpr int PANEL = 32;
constexpr int GROUP = 32;
constexpr int KEY_TILE = 16;
constexpr int CHUNK = 128;
constexpr int STRETCH = 1024;
constexpr float WHOLE_TOP = 32512.0f;  // 127 x 256: both halves fit a byte
constexpr int MAX_QUERIES = 48;  // query vectors that one call of attend_chunk takes

enum Format : int32_t { F32 = 0, F16 = 1, I8 = 2, I4 = 3, BF16 = 4 };
enum Store : int32_t { STORE = 0, ADD = 1, GLU_SILU = 2, GLU_GELU_TANH = 3 };

struct Linear {
    int32_t format, n, k;       // n, k: as they are, without padding
    const uint8_t* data;        // null: there is no such layer
    const float* bias;          // [n padded] or null
};

struct Activations {
    const float* values;        // [rows, stride], for F32 and F16
    const int8_t* high;         // [rows, stride], for I8 and I4: a number is scale x (256 high + low); room for twice as many, as some
    const int8_t* low;          // instruction sets keep whole 16-bit numbers there for I8
    const float* scales;        // [rows, stride / 32]
    const int32_t* sums;        // [rows, stride / 32], sums of 256 high + low over a group
    int32_t stride;             // k of the widest layer, padded
};

struct Target {
    Store store;
    float* out;                 // [rows, stride]
    int32_t stride;
    float factor;               // ADD: out += factor x result
};

struct KVShape {
    int32_t format;             // F32, F16 or I8
    int32_t heads, kv_heads, head_dim, block_size;
    int32_t head_pad;
    int64_t part_bytes;         // keys, or values, of one block and layer
};

struct ChunkQuery {
    const float* query;         // [head_pad], scaled
    int32_t lo, hi;             // keys of this chunk that it sees
    float* largest;             // results: largest score, sum of weights, weighted sum of values [head_pad]
    float* sum;
    float* values;
};

struct Kernels {
    const char* name;
    int32_t lanes;
    // Rows [0, rows) by panels [first, last).
    void (*linear)(const Linear& w, const Activations& a, int rows, int first, int last, const Target& target);
    // Whole numbers, scales and sums of one row, for weights of a format; inputs from k on are zero up to the next multiple of 32.
    // high and low: of all rows; place: of this row's first number; scales and sums: of this row.
    void (*quantize)(const float* x, int k, int32_t format, int64_t place, int8_t* high, int8_t* low, float* scales, int32_t* sums);
    // y = x / rms(x) x weight; weight null: 1.
    void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* y);
    void (*add_scaled)(float* x, const float* y, float factor, int n);
    void (*scale)(float* x, float factor, int n);
    // x[0 .. dim) rotated by pairs (i, i + dim / 2).
    void (*rotate)(float* x, const float* cosine, const float* sine, int dim);
    // Stores the key and value [head_dim] of one head of the token at `offset` of a block.
    void (*write_kv)(const KVShape& shape, uint8_t* keys, uint8_t* values, int head, int offset, const float* key, const float* value);
    // One chunk of one kv head for some queries. `parts`: the keys of each block of the chunk; values lie part_bytes after them.
    // `start`: place of the chunk's first key in the first of these blocks. `scratch`: SCRATCH_FLOATS.
    void (*attend_chunk)(const KVShape& shape, int head, const uint8_t* const* parts, int start, float softcap, ChunkQuery* queries,
                         int count, float* scratch);
    // Takes the results of a chunk into the state of those before; a sum of 0 is nothing.
    void (*fold)(float* largest, float* sum, float* values, float new_largest, float new_sum, const float* new_values, int n);
    void (*softcap)(float* x, float cap, int n);
    // Index of the first largest number, its value in `value`: NaN if there is one.
    int (*argmax)(const float* x, int n, float* value);
    // out = exp((x - largest) x factor), 0 where that is below exp(-87); sums of each STRETCH of them; returns the sum of all.
    double (*exponentials)(const float* x, int n, float largest, float factor, float* out, double* sums);
    // Sum of an array, only to measure how fast memory can be read.
    float (*read)(const float* x, int64_t n);
};

constexpr int SCRATCH_FLOATS = MAX_QUERIES * CHUNK + CHUNK * 256 + 256 * KEY_TILE + 64;

const Kernels* kernels_plain();
const Kernels* kernels_avx2();
const Kernels* kernels_avx2_vnni();
const Kernels* kernels_avx512();
const Kernels* kernels_neon();
const Kernels* kernels_neon_dot();
