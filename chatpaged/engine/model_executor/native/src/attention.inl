// Attention over blocks where they lie. Included once for each instruction set.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace CP_NAMESPACE {

#if defined(__AVX512F__)
constexpr int SCORE_QUERIES = 8, SUM_QUERIES = 6, SUM_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int SCORE_QUERIES = 6, SUM_QUERIES = 3, SUM_VECTORS = 4;
#elif defined(__ARM_NEON)
constexpr int SCORE_QUERIES = 6, SUM_QUERIES = 6, SUM_VECTORS = 4;
#else
constexpr int SCORE_QUERIES = 4, SUM_QUERIES = 4, SUM_VECTORS = 1;
#endif
constexpr int KEY_VECTORS = KEY_TILE / LANES;
static_assert(KEY_TILE % LANES == 0, "a tile of keys is a whole number of vectors");

CP_INLINE int key_tile(const KVShape& shape) { return min_int(KEY_TILE, shape.block_size); }
CP_INLINE int element_bytes(int format) { return format == F32 ? 4 : format == F16 ? 2 : 1; }
CP_INLINE const float* kv_scales(const KVShape& shape, const uint8_t* part, int head) {
    return (const float*)(part + (int64_t)shape.kv_heads * shape.block_size * shape.head_pad) + head * shape.block_size;
}

// n numbers as float; n is a multiple of 16.
CP_INLINE void widen(const uint8_t* p, int format, int n, float* out) {
    for (int i = 0; i < n; i += LANES)
        vstore(out + i, format == F16 ? vload_half((const uint16_t*)p + i) : format == I8 ? vload_i8((const int8_t*)p + i) : vload((const float*)p + i));
}

// The keys of tile `t` of a chunk as [head_pad][16] float, where they lie or copied to `room`.
static const float* keys_of_tile(const KVShape& shape, int head, const uint8_t* const* parts, int start, int t, int end, float* room) {
    int tile = key_tile(shape), pad = shape.head_pad, bytes = element_bytes(shape.format);
    int64_t head_offset = (int64_t)head * shape.block_size * pad * bytes;
    if (tile == KEY_TILE) {
        int first = start + t * KEY_TILE, block = first / shape.block_size, place = first % shape.block_size;
        const uint8_t* keys = parts[block] + head_offset + (int64_t)place * pad * bytes;
        if (shape.format == F32) return (const float*)keys;
        widen(keys, shape.format, pad * KEY_TILE, room);
        if (shape.format == I8) {
            const float* scales = kv_scales(shape, parts[block], head) + place;
            for (int v = 0; v < KEY_TILE; v += LANES) {
                VF factor = vload(scales + v);
                for (int d = 0; d < pad; d++) vstore(room + d * KEY_TILE + v, vmul(vload(room + d * KEY_TILE + v), factor));
            }
        }
        return room;
    }
    for (int key = 0; key < KEY_TILE; key++) {  // blocks smaller than a tile: key by key
        int first = t * KEY_TILE + key;  // such blocks begin with a chunk: start is 0
        if (first >= end) {
            for (int d = 0; d < pad; d++) room[d * KEY_TILE + key] = 0.0f;
            continue;
        }
        int block = first / tile, place = first % tile;
        const uint8_t* keys = parts[block] + head_offset;
        float factor = shape.format == I8 ? kv_scales(shape, parts[block], head)[place] : 1.0f;
        for (int d = 0; d < pad; d++) {
            int i = d * tile + place;
            float x = shape.format == F32 ? ((const float*)keys)[i] : shape.format == F16 ? half_to_float(((const uint16_t*)keys)[i]) : (float)((const int8_t*)keys)[i];
            room[d * KEY_TILE + key] = shape.format == I8 ? x * factor : x;
        }
    }
    return room;
}

template <int COUNT>
static void score_tile(const ChunkQuery* queries, const float* keys, int dim, float* scores, int t) {
    VF acc[COUNT][KEY_VECTORS];
    const float* q[COUNT];
    for (int i = 0; i < COUNT; i++) {
        q[i] = queries[i].query;
        for (int v = 0; v < KEY_VECTORS; v++) acc[i][v] = vzero();
    }
    for (int d = 0; d < dim; d++) {
        VF key[KEY_VECTORS];
        for (int v = 0; v < KEY_VECTORS; v++) key[v] = vload(keys + d * KEY_TILE + v * LANES);
        for (int i = 0; i < COUNT; i++) {
            VF x = vset(q[i][d]);
            for (int v = 0; v < KEY_VECTORS; v++) acc[i][v] = vfma(x, key[v], acc[i][v]);
        }
    }
    for (int i = 0; i < COUNT; i++)
        for (int v = 0; v < KEY_VECTORS; v++) vstore(scores + i * CHUNK + t * KEY_TILE + v * LANES, acc[i][v]);
}

static void score_queries(const ChunkQuery* queries, int count, const float* keys, int dim, float* scores, int t) {
    for (int i = 0; i < count;) {
        int n = min_int(SCORE_QUERIES, count - i);
        switch (n) {
            case 1: score_tile<1>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            case 2: score_tile<2>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            case 3: score_tile<3>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            case 4: score_tile<4>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            case 5: score_tile<5>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            case 6: score_tile<6>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            case 7: score_tile<7>(queries + i, keys, dim, scores + i * CHUNK, t); break;
            default: score_tile<8>(queries + i, keys, dim, scores + i * CHUNK, t); break;
        }
        i += n;
    }
}

// Scores to weights: exp(score - largest), 0 where the query does not look.
static void weigh(ChunkQuery& query, float* scores, int first, int last, float cap) {
    const VF nothing = vset(-INFINITY);
    VF most = nothing;
    for (int i = first; i < last; i += LANES) {
        VF x = vload(scores + i);
        if (cap > 0) x = vmul(vset(cap), vtanh(vmul(x, vset(1.0f / cap))));
        x = vkeep(x, nothing, query.lo - i, query.hi - i);
        vstore(scores + i, x);
        most = vmax(x, most);
    }
    float largest = vlargest(most);
    VF sum = vzero();
    for (int i = first; i < last; i += LANES) {
        VF weight = vkeep(vexp(vsub(vload(scores + i), vset(largest))), vzero(), query.lo - i, query.hi - i);
        vstore(scores + i, weight);
        sum = vadd(sum, weight);
    }
    *query.largest = largest;
    *query.sum = vsum(sum);
}

struct ValueRows {
    const uint8_t* const* parts;  // first the blocks' keys; values lie `offset` bytes after them
    int64_t offset;
    int start;                    // place of the chunk's first key in the first block
    int block_size, stride;       // floats from one token to the next
};

template <int COUNT, int VECTORS>
static void sum_values(ChunkQuery* queries, const float* weights, const ValueRows& rows, int lo, int hi, int d) {
    VF acc[COUNT][VECTORS];
    for (int i = 0; i < COUNT; i++)
        for (int v = 0; v < VECTORS; v++) acc[i][v] = vzero();
    for (int key = lo; key < hi;) {
        int block = (rows.start + key) / rows.block_size, place = (rows.start + key) % rows.block_size;
        int end = min_int(hi, (block + 1) * rows.block_size - rows.start);
        const float* value = (const float*)(rows.parts[block] + rows.offset) + (int64_t)place * rows.stride + d;
        for (; key < end; key++, value += rows.stride) {
            VF part[VECTORS];
            for (int v = 0; v < VECTORS; v++) part[v] = vload(value + v * LANES);
            for (int i = 0; i < COUNT; i++) {
                VF weight = vset(weights[i * CHUNK + key]);
                for (int v = 0; v < VECTORS; v++) acc[i][v] = vfma(weight, part[v], acc[i][v]);
            }
        }
    }
    for (int i = 0; i < COUNT; i++)
        for (int v = 0; v < VECTORS; v++) vstore(queries[i].values + d + v * LANES, acc[i][v]);
}

template <int VECTORS>
static void sum_for(int count, ChunkQuery* queries, const float* weights, const ValueRows& rows, int lo, int hi, int d) {
    switch (count) {
        case 1: sum_values<1, VECTORS>(queries, weights, rows, lo, hi, d); break;
        case 2: sum_values<2, VECTORS>(queries, weights, rows, lo, hi, d); break;
        case 3: sum_values<3, VECTORS>(queries, weights, rows, lo, hi, d); break;
        case 4: sum_values<4, VECTORS>(queries, weights, rows, lo, hi, d); break;
        case 5: sum_values<5, VECTORS>(queries, weights, rows, lo, hi, d); break;
        default: sum_values<6, VECTORS>(queries, weights, rows, lo, hi, d); break;
    }
}

// Asks for memory that is about to be read: the pieces of a block are too short for the processor to see where they lead.
CP_INLINE void prefetch(const uint8_t* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

CP_INLINE void prefetch_tile(const KVShape& shape, int head, const uint8_t* const* parts, int start, int t, bool values) {
    if (shape.block_size < KEY_TILE) return;
    int first = start + t * KEY_TILE;
    int64_t row = (int64_t)shape.head_pad * element_bytes(shape.format);
    const uint8_t* part = parts[first / shape.block_size] + (values ? shape.part_bytes : 0);
    prefetch(part + ((int64_t)head * shape.block_size + first % shape.block_size) * row, row * KEY_TILE);
}

static void attend_chunk(const KVShape& shape, int head, const uint8_t* const* parts, int start, float cap, ChunkQuery* queries,
                         int count, float* scratch) {
    float* scores = scratch;                          // [count][CHUNK]
    float* room = scratch + MAX_QUERIES * CHUNK;      // values of a chunk as float
    float* key_room = room + CHUNK * 256;
    int lo = CHUNK, hi = 0;
    for (int i = 0; i < count; i++) {
        lo = min_int(lo, queries[i].lo);
        hi = max_int(hi, queries[i].hi);
    }
    int first = lo / KEY_TILE, last = (hi + KEY_TILE - 1) / KEY_TILE;
    prefetch_tile(shape, head, parts, start, first, false);
    for (int t = first; t < last; t++) {
        if (t + 1 < last) prefetch_tile(shape, head, parts, start, t + 1, false);
        prefetch_tile(shape, head, parts, start, t, true);
        score_queries(queries, count, keys_of_tile(shape, head, parts, start, t, hi, key_room), shape.head_dim, scores, t);
    }
    for (int i = 0; i < count; i++) weigh(queries[i], scores + i * CHUNK, first * KEY_TILE, last * KEY_TILE, cap);

    int pad = shape.head_pad;
    ValueRows rows = {parts, shape.part_bytes + (int64_t)head * shape.block_size * pad * 4, start, shape.block_size, pad};
    const uint8_t* widened[1] = {(const uint8_t*)room};
    if (shape.format != F32) {
        int bytes = element_bytes(shape.format);
        for (int key = lo; key < hi; key++) {
            const uint8_t* part = parts[(start + key) / shape.block_size] + shape.part_bytes;
            int place = (start + key) % shape.block_size;
            widen(part + ((int64_t)head * shape.block_size + place) * pad * bytes, shape.format, pad, room + key * pad);
            if (shape.format == I8) {
                VF factor = vset(kv_scales(shape, part, head)[place]);
                for (int d = 0; d < pad; d += LANES) vstore(room + key * pad + d, vmul(vload(room + key * pad + d), factor));
            }
        }
        rows = {widened, 0, 0, CHUNK, pad};
    }
    for (int i = 0; i < count;) {
        int n = min_int(SUM_QUERIES, count - i), d = 0;
        for (; d + SUM_VECTORS * LANES <= pad; d += SUM_VECTORS * LANES) sum_for<SUM_VECTORS>(n, queries + i, scores + i * CHUNK, rows, lo, hi, d);
        for (; d < pad; d += LANES) sum_for<1>(n, queries + i, scores + i * CHUNK, rows, lo, hi, d);
        i += n;
    }
}

static void fold(float* largest, float* sum, float* values, float new_largest, float new_sum, const float* new_values, int n) {
    if (!(new_sum > 0) && new_sum == new_sum) return;
    if (*sum == 0) {
        *largest = new_largest;
        *sum = new_sum;
        memcpy(values, new_values, sizeof(float) * (size_t)n);
        return;
    }
    float most = *largest > new_largest ? *largest : new_largest;
    float old_factor = expf(*largest - most), new_factor = expf(new_largest - most);
    for (int i = 0; i < n; i += LANES) vstore(values + i, vfma(vset(new_factor), vload(new_values + i), vmul(vset(old_factor), vload(values + i))));
    *sum = *sum * old_factor + new_sum * new_factor;
    *largest = most;
}

CP_INLINE void store_elements(const KVShape& shape, uint8_t* part, int64_t first, int64_t step, const float* x, int head, int offset) {
    if (shape.format == F32) {
        for (int d = 0; d < shape.head_pad; d++) ((float*)part)[first + d * step] = d < shape.head_dim ? x[d] : 0.0f;
        return;
    }
    if (shape.format == F16) {
        for (int d = 0; d < shape.head_pad; d++) {
            float value = d < shape.head_dim ? x[d] : 0.0f;
            value = value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
            ((uint16_t*)part)[first + d * step] = float_to_half_portable(value);
        }
        return;
    }
    float largest = 0;
    for (int d = 0; d < shape.head_dim; d++) largest = fabsf(x[d]) > largest ? fabsf(x[d]) : largest;
    float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (int d = 0; d < shape.head_pad; d++) {
        float whole = d < shape.head_dim ? nearbyintf(x[d] * inverse) : 0.0f;
        ((int8_t*)part)[first + d * step] = (int8_t)(whole == whole ? whole : 0);
    }
    ((float*)kv_scales(shape, part, head))[offset] = largest / 127.0f;
}

static void write_kv(const KVShape& shape, uint8_t* keys, uint8_t* values, int head, int offset, const float* key, const float* value) {
    int tile = key_tile(shape);
    int64_t base = (int64_t)head * shape.block_size * shape.head_pad;
    store_elements(shape, keys, base + (int64_t)(offset / tile) * tile * shape.head_pad + offset % tile, tile, key, head, offset);
    store_elements(shape, values, base + (int64_t)offset * shape.head_pad, 1, value, head, offset);
}

}  // namespace CP_NAMESPACE
