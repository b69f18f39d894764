// Products of activations with weights in panels. Included once for each instruction set.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace CP_NAMESPACE {

#if defined(__AVX512F__)
constexpr int TILE_VECTORS = 2, FLOAT_ROWS = 12, WHOLE_ROWS = 6;
#elif defined(__AVX2__)
constexpr int TILE_VECTORS = 2, FLOAT_ROWS = 6, WHOLE_ROWS = 3;
#elif defined(__ARM_NEON)
constexpr int TILE_VECTORS = 4, FLOAT_ROWS = 6, WHOLE_ROWS = 4;
#else
constexpr int TILE_VECTORS = 1, FLOAT_ROWS = 4, WHOLE_ROWS = 4;
#endif
constexpr int TILE = TILE_VECTORS * LANES;
static_assert(PANEL % TILE == 0, "a panel is a whole number of tiles");

// Asks for weights that come soon: processors look ahead up to the end of a page of 4 KiB only.
constexpr int AHEAD = 4096;
CP_INLINE void prefetch_ahead(const uint8_t* p, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + AHEAD + i);
}

constexpr int I8_BYTES = PANEL * 2 + GROUP * PANEL;
constexpr int I4_BYTES = PANEL * 4 + GROUP / 2 * PANEL;

CP_INLINE int padded_to(int n, int unit) { return (n + unit - 1) / unit * unit; }
CP_INLINE VI four_bytes(const int8_t* p) {
    int32_t four;
    memcpy(&four, p, 4);
    return iset(four);
}
CP_INLINE VF load_weight(const float* p) { return vload(p); }
CP_INLINE VF load_weight(const uint16_t* p) { return vload_half(p); }

template <int ROWS, typename Weight>
static void float_tile(const Weight* w, int k, const float* a, int stride, bool fresh, float* out) {
    VF acc[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = vzero();
    for (int i = 0; i < k; i++) {
        if (fresh) prefetch_ahead((const uint8_t*)(w + (int64_t)i * PANEL), PANEL * sizeof(Weight));
        VF wide[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) wide[v] = load_weight(w + (int64_t)i * PANEL + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            VF x = vset(a[(int64_t)r * stride + i]);
            for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = vfma(x, wide[v], acc[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) vstore(out + r * PANEL + v * LANES, acc[r][v]);
}

// Without instructions for sums of four products of bytes, products of 16-bit numbers are the faster way for I8: activations lie as such.
#if defined(__AVX2__) && !defined(CP_VNNI)
#define CP_WIDE_I8 1
#endif

struct WholeRows {
    const int8_t* high;
    const int8_t* low;
    const int16_t* wide;
    const float* scales;
    const int32_t* sums;
    int stride, groups;  // of a row, and of its scales
};

template <int ROWS>
CP_INLINE void i4_group(VI (&sum)[ROWS][TILE_VECTORS], const uint8_t* data, const int8_t* bytes, int stride) {
    VI pairs[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) pairs[r][v] = PAIRS_ARE_SUMS ? sum[r][v] : izero();
    for (int j = 0; j < GROUP / 8; j++) {
        VI low[TILE_VECTORS], high[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) {
            VI raw = iload(data + j * PANEL * 4 + v * LANES * 4);
            low[v] = nibble_low(raw);
            high[v] = nibble_high(raw);
        }
        for (int r = 0; r < ROWS; r++) {
            const int8_t* row = bytes + (int64_t)r * stride + j * 8;
            VI x = four_bytes(row), y = four_bytes(row + 4);
            for (int v = 0; v < TILE_VECTORS; v++) pairs[r][v] = pairs_add(pairs_add(pairs[r][v], low[v], x), high[v], y);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = PAIRS_ARE_SUMS ? pairs[r][v] : iadd(sum[r][v], pairs_sum(pairs[r][v]));
}

#if defined(CP_WIDE_I8)
template <int ROWS>
static void i8_tile(const uint8_t* panel, int column, int groups, const WholeRows& a, bool fresh, float* out) {
    constexpr int PIECES = TILE / 4;  // of four outputs, whose sums of two pairs of inputs lie side by side
    VF acc[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = vzero();
    for (int g = 0; g < groups; g++, panel += I8_BYTES) {
        if (fresh) prefetch_ahead(panel, I8_BYTES);
        const uint8_t* data = panel + PANEL * 2 + column * 4;
        VI sum[ROWS][PIECES];
        for (int r = 0; r < ROWS; r++)
            for (int p = 0; p < PIECES; p++) sum[r][p] = izero();
        for (int j = 0; j < GROUP / 4; j++) {
            VI x[ROWS];
            for (int r = 0; r < ROWS; r++) x[r] = four_words(a.wide + (int64_t)r * a.stride + g * GROUP + j * 4);
            for (int p = 0; p < PIECES; p++) {
                VI w = words_of_codes(data + j * PANEL * 4 + p * 16);
                for (int r = 0; r < ROWS; r++) sum[r][p] = dot2(sum[r][p], w, x[r]);
            }
        }
        const uint16_t* scales = (const uint16_t*)panel + column;
        for (int v = 0; v < TILE_VECTORS; v++) {
            VF scale = vload_half(scales + v * LANES);
            for (int r = 0; r < ROWS; r++)
                acc[r][v] = vfma(vmul(itofloat(pairs_of(sum[r][2 * v], sum[r][2 * v + 1])), scale), vset(a.scales[r * a.groups + g]), acc[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) vstore(out + r * PANEL + v * LANES, acc[r][v]);
}
#else
// Adds the products of a group's weights with one half of the activations.
template <int ROWS>
CP_INLINE void i8_group(VI (&sum)[ROWS][TILE_VECTORS], const uint8_t* data, const int8_t* bytes, int stride) {
    for (int j = 0; j < GROUP / 4; j++) {
        VI w[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++) {
            w[v] = iload(data + j * PANEL * 4 + v * LANES * 4);
#if !defined(CP_VNNI)
            w[v] = isigned(w[v]);
#endif
        }
        for (int r = 0; r < ROWS; r++) {
            VI x = four_bytes(bytes + (int64_t)r * stride + j * 4);
            for (int v = 0; v < TILE_VECTORS; v++) {
#if defined(CP_VNNI)
                sum[r][v] = dot4(sum[r][v], w[v], x);
#else
                sum[r][v] = dot4_signed(sum[r][v], w[v], x);
#endif
            }
        }
    }
}

template <int ROWS>
static void i8_tile(const uint8_t* panel, int column, int groups, const WholeRows& a, bool fresh, float* out) {
    VF acc[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = vzero();
    for (int g = 0; g < groups; g++, panel += I8_BYTES) {
        const uint8_t* data = panel + PANEL * 2 + column * 4;
        if (fresh) prefetch_ahead(panel, I8_BYTES);
        VI sum[ROWS][TILE_VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = izero();
        i8_group<ROWS>(sum, data, a.high + g * GROUP, a.stride);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < TILE_VECTORS; v++) {
                sum[r][v] = times_256(sum[r][v]);
#if defined(CP_VNNI)
                sum[r][v] = iadd(sum[r][v], iset(-128 * a.sums[r * a.groups + g]));
#endif
            }
        i8_group<ROWS>(sum, data, a.low + g * GROUP, a.stride);
        const uint16_t* scales = (const uint16_t*)panel + column;
        for (int v = 0; v < TILE_VECTORS; v++) {
            VF scale = vload_half(scales + v * LANES);
            for (int r = 0; r < ROWS; r++)
                acc[r][v] = vfma(vmul(itofloat(sum[r][v]), scale), vset(a.scales[r * a.groups + g]), acc[r][v]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) vstore(out + r * PANEL + v * LANES, acc[r][v]);
}
#endif

template <int ROWS>
static void i4_tile(const uint8_t* panel, int column, int groups, const WholeRows& a, bool fresh, float* out) {
    VF acc[ROWS][TILE_VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) acc[r][v] = vzero();
    for (int g = 0; g < groups; g++, panel += I4_BYTES) {
        const uint8_t* data = panel + PANEL * 4 + column * 4;
        VI sum[ROWS][TILE_VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = izero();
        if (fresh) prefetch_ahead(panel, I4_BYTES);
        i4_group<ROWS>(sum, data, a.high + g * GROUP, a.stride);
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < TILE_VECTORS; v++) sum[r][v] = times_256(sum[r][v]);
        i4_group<ROWS>(sum, data, a.low + g * GROUP, a.stride);
        const uint16_t* scales = (const uint16_t*)panel + column;
        for (int v = 0; v < TILE_VECTORS; v++) {
            VF scale = vload_half(scales + v * LANES), least = vload_half(scales + PANEL + v * LANES);
            for (int r = 0; r < ROWS; r++) {
                float x = a.scales[r * a.groups + g];
                acc[r][v] = vfma(vmul(itofloat(sum[r][v]), scale), vset(x), acc[r][v]);
                acc[r][v] = vfma(least, vset(x * (float)a.sums[r * a.groups + g]), acc[r][v]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < TILE_VECTORS; v++) vstore(out + r * PANEL + v * LANES, acc[r][v]);
}

// The rest of a layer for one row of a panel: bias, then what the target asks for.
CP_INLINE void finish(const float* row, const float* bias, const Target& target, float* out) {
    if (target.store == GLU_SILU || target.store == GLU_GELU_TANH) {  // the first half are gates, the second what they let through
        for (int i = 0; i < PANEL / 2; i += LANES) {
            VF gate = vload(row + i), up = vload(row + PANEL / 2 + i);
            if (bias) {
                gate = vadd(gate, vload(bias + i));
                up = vadd(up, vload(bias + PANEL / 2 + i));
            }
            vstore(out + i, vmul(target.store == GLU_SILU ? vsilu(gate) : vgelu_tanh(gate), up));
        }
        return;
    }
    for (int i = 0; i < PANEL; i += LANES) {
        VF x = vload(row + i);
        if (bias) x = vadd(x, vload(bias + i));
        if (target.store == ADD) x = vfma(vset(target.factor), x, vload(out + i));
        vstore(out + i, x);
    }
}

template <int ROWS>
static void panel_rows(const Linear& w, const Activations& a, int row, int panel, float* out) {
    int groups = padded_to(w.k, GROUP) / GROUP;
    const float* values = a.values + (int64_t)row * a.stride;
    int group_stride = a.stride / GROUP;
    WholeRows whole = {a.high + (int64_t)row * a.stride, a.low + (int64_t)row * a.stride, (const int16_t*)a.high + (int64_t)row * a.stride, a.scales + (int64_t)row * group_stride,
                       a.sums + (int64_t)row * group_stride, a.stride, group_stride};
    for (int column = 0; column < PANEL; column += TILE) {
        bool fresh = row == 0 && column == 0;  // the first to read these weights
        switch (w.format) {
            case F32: float_tile<ROWS>((const float*)w.data + (int64_t)panel * w.k * PANEL + column, w.k, values, a.stride, fresh, out + column); break;
            case F16: float_tile<ROWS>((const uint16_t*)w.data + (int64_t)panel * w.k * PANEL + column, w.k, values, a.stride, fresh, out + column); break;
            case I8: i8_tile<ROWS>(w.data + (int64_t)panel * groups * I8_BYTES, column, groups, whole, fresh, out + column); break;
            case I4: i4_tile<ROWS>(w.data + (int64_t)panel * groups * I4_BYTES, column, groups, whole, fresh, out + column); break;
            default: break;
        }
    }
}

static void linear(const Linear& w, const Activations& a, int rows, int first, int last, const Target& target) {
    alignas(64) float out[FLOAT_ROWS * PANEL];
    int most = w.format == F32 || w.format == F16 ? FLOAT_ROWS : WHOLE_ROWS;
    int width = target.store == GLU_SILU || target.store == GLU_GELU_TANH ? PANEL / 2 : PANEL;
    for (int panel = first; panel < last; panel++) {
        const float* bias = w.bias ? w.bias + (int64_t)panel * PANEL : nullptr;
        for (int row = 0; row < rows;) {
            int count = min_int(most, rows - row);
            // The last two tiles share what is left, so that neither is of a row or two.
            if (rows - row > most && rows - row < 2 * most) count = (rows - row + 1) / 2;
            switch (count) {
                case 1: panel_rows<1>(w, a, row, panel, out); break;
                case 2: panel_rows<2>(w, a, row, panel, out); break;
                case 3: panel_rows<3>(w, a, row, panel, out); break;
#if defined(__AVX512F__)
                case 7: panel_rows<7>(w, a, row, panel, out); break;
                case 8: panel_rows<8>(w, a, row, panel, out); break;
                case 9: panel_rows<9>(w, a, row, panel, out); break;
                case 10: panel_rows<10>(w, a, row, panel, out); break;
                case 11: panel_rows<11>(w, a, row, panel, out); break;
                case 12: panel_rows<12>(w, a, row, panel, out); break;
#endif
                case 4: panel_rows<4>(w, a, row, panel, out); break;
                case 5: panel_rows<5>(w, a, row, panel, out); break;
                default: panel_rows<6>(w, a, row, panel, out); break;
            }
            for (int r = 0; r < count; r++)
                finish(out + r * PANEL, bias, target, target.out + (int64_t)(row + r) * target.stride + panel * width);
            row += count;
        }
    }
}

static void quantize(const float* x, int k, int32_t format, int64_t place, int8_t* high, int8_t* low, float* scales, int32_t* sums) {
#if defined(CP_WIDE_I8)
    int16_t* wide = format == I8 ? (int16_t*)high + place : nullptr;
#else
    (void)format;
#endif
    high += place;
    low += place;
    for (int begin = 0, g = 0; begin < k; begin += GROUP, g++) {
        alignas(64) float padded[GROUP];
        const float* group = x + begin;
        if (k - begin < GROUP) {
            for (int i = 0; i < GROUP; i++) padded[i] = i < k - begin ? group[i] : 0.0f;
            group = padded;
        }
        VF most = vzero();
        for (int i = 0; i < GROUP; i += LANES) most = vmax(most, vabs(vload(group + i)));
        float largest = vlargest(most);
        scales[g] = largest / WHOLE_TOP;
        VF inverse = vset(largest > 1e-30f ? WHOLE_TOP / largest : 0.0f), total = vzero();  // below, it would be infinite
        for (int i = 0; i < GROUP; i += LANES) {
            // Half a unit more, so that 128 becomes 256 - 128: a byte does not hold it.
            VF whole = vround(vmul(vload(group + i), inverse)), upper = vround(vfma(whole, vset(1.0f / 256), vset(0.5f / 256)));
            total = vadd(total, whole);
#if defined(CP_WIDE_I8)
            if (wide) {
                store_words(wide + begin + i, whole);
                continue;
            }
#endif
            vstore_i8(high + begin + i, upper);
            vstore_i8(low + begin + i, vfma(upper, vset(-256.0f), whole));
        }
        float sum = vsum(total);  // whole numbers below 2^24: exact
        bool numbers = sum == sum;  // NaN or infinity would get lost in whole numbers
        sums[g] = numbers ? (int32_t)sum : 0;
        if (!numbers) scales[g] = NAN;
    }
}

}  // namespace CP_NAMESPACE
