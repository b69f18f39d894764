// Vectors of the instruction set that the including file is compiled for: one small vocabulary over all of them.
//
// A file that includes this one defines CP_NAMESPACE and is compiled with the flags of its instruction set. Everything here is
// `static inline`: a function with external linkage that two sets both emitted would be merged by the linker, and an old
// processor would run into instructions it does not have. For the same reason no templates of the standard library are used.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define CP_INLINE static inline __attribute__((always_inline))

namespace CP_NAMESPACE {

CP_INLINE int min_int(int a, int b) { return a < b ? a : b; }
CP_INLINE int max_int(int a, int b) { return a > b ? a : b; }

// Half-precision numbers are only ever stored; arithmetic is in float.
CP_INLINE float half_to_float_portable(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {  // zero or subnormal: exact in float
        float value = (float)mantissa * 5.9604644775390625e-08f;
        return sign ? -value : value;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

CP_INLINE uint16_t float_to_half_portable(float value) {  // to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal half: let the addition do the rounding
        float absolute;
        memcpy(&absolute, &magnitude, 4);
        absolute += 0.5f;
        memcpy(&magnitude, &absolute, 4);
        return (uint16_t)(sign | (magnitude - 0x3f000000u));
    }
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

#if defined(__AVX512F__)
// ---------------------------------------------------------------------------------------------------------------- AVX-512
constexpr int LANES = 16;
typedef __m512 VF;
typedef __m512i VI;
CP_INLINE VF vzero() { return _mm512_setzero_ps(); }
CP_INLINE VF vset(float x) { return _mm512_set1_ps(x); }
CP_INLINE VF vload(const float* p) { return _mm512_loadu_ps(p); }
CP_INLINE void vstore(float* p, VF v) { _mm512_storeu_ps(p, v); }
CP_INLINE VF vload_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
CP_INLINE void vstore_half(uint16_t* p, VF v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
CP_INLINE VF vload_i8(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))); }
CP_INLINE VF vadd(VF a, VF b) { return _mm512_add_ps(a, b); }
CP_INLINE VF vsub(VF a, VF b) { return _mm512_sub_ps(a, b); }
CP_INLINE VF vmul(VF a, VF b) { return _mm512_mul_ps(a, b); }
CP_INLINE VF vdiv(VF a, VF b) { return _mm512_div_ps(a, b); }
CP_INLINE VF vmax(VF a, VF b) { return _mm512_max_ps(a, b); }
CP_INLINE VF vmin(VF a, VF b) { return _mm512_min_ps(a, b); }
CP_INLINE VF vabs(VF a) { return _mm512_abs_ps(a); }
CP_INLINE VF vfma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
CP_INLINE VF vround(VF a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
CP_INLINE VF vscale2(VF a, VF e) { return _mm512_scalef_ps(a, e); }
CP_INLINE float vsum(VF a) { return _mm512_reduce_add_ps(a); }
CP_INLINE float vlargest(VF a) { return _mm512_reduce_max_ps(a); }
// Lanes of `a` whose number is in [lo, hi), and `other` in the rest.
CP_INLINE VF vkeep(VF a, VF other, int lo, int hi) {
    uint32_t mask = (hi >= 16 ? 0xffffu : hi <= 0 ? 0u : (1u << hi) - 1) & (lo <= 0 ? 0xffffu : lo >= 16 ? 0u : ~((1u << lo) - 1));
    return _mm512_mask_blend_ps((__mmask16)mask, other, a);
}
// x where a > b, else 0.
CP_INLINE VF vabove(VF a, VF b, VF x) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x); }
CP_INLINE VI izero() { return _mm512_setzero_si512(); }
CP_INLINE VI iset(int32_t x) { return _mm512_set1_epi32(x); }
CP_INLINE VI iload(const void* p) { return _mm512_loadu_si512(p); }
CP_INLINE VF itofloat(VI a) { return _mm512_cvtepi32_ps(a); }
CP_INLINE VI iadd(VI a, VI b) { return _mm512_add_epi32(a, b); }
CP_INLINE VI times_256(VI a) { return _mm512_slli_epi32(a, 8); }
CP_INLINE VI nibble_low(VI a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
CP_INLINE VI nibble_high(VI a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
// Rounds to whole numbers and stores them as bytes.
CP_INLINE void vstore_i8(int8_t* p, VF a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a))); }
#define CP_VNNI 1
// acc + the products of 4 unsigned bytes of w with 4 signed bytes of a, in each lane.
CP_INLINE VI dot4(VI acc, VI w, VI a) { return _mm512_dpbusd_epi32(acc, w, a); }

#elif defined(__AVX2__)
// ------------------------------------------------------------------------------------------------------------------- AVX2
constexpr int LANES = 8;
typedef __m256 VF;
typedef __m256i VI;
CP_INLINE VF vzero() { return _mm256_setzero_ps(); }
CP_INLINE VF vset(float x) { return _mm256_set1_ps(x); }
CP_INLINE VF vload(const float* p) { return _mm256_loadu_ps(p); }
CP_INLINE void vstore(float* p, VF v) { _mm256_storeu_ps(p, v); }
CP_INLINE VF vload_half(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
CP_INLINE void vstore_half(uint16_t* p, VF v) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
CP_INLINE VF vload_i8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))); }
CP_INLINE VF vadd(VF a, VF b) { return _mm256_add_ps(a, b); }
CP_INLINE VF vsub(VF a, VF b) { return _mm256_sub_ps(a, b); }
CP_INLINE VF vmul(VF a, VF b) { return _mm256_mul_ps(a, b); }
CP_INLINE VF vdiv(VF a, VF b) { return _mm256_div_ps(a, b); }
CP_INLINE VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
CP_INLINE VF vmin(VF a, VF b) { return _mm256_min_ps(a, b); }
CP_INLINE VF vabs(VF a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
CP_INLINE VF vfma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
CP_INLINE VF vround(VF a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
CP_INLINE VF vscale2(VF a, VF e) {  // a x 2^e, e whole and in [-126, 127]
    __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(e), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}
CP_INLINE float vsum(VF a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
CP_INLINE float vlargest(VF a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
CP_INLINE VF vkeep(VF a, VF other, int lo, int hi) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
    return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(inside));
}
CP_INLINE VF vabove(VF a, VF b, VF x) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), x); }
CP_INLINE VI izero() { return _mm256_setzero_si256(); }
CP_INLINE VI iset(int32_t x) { return _mm256_set1_epi32(x); }
CP_INLINE VI iload(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
CP_INLINE VF itofloat(VI a) { return _mm256_cvtepi32_ps(a); }
CP_INLINE VI iadd(VI a, VI b) { return _mm256_add_epi32(a, b); }
CP_INLINE VI times_256(VI a) { return _mm256_slli_epi32(a, 8); }
CP_INLINE VI nibble_low(VI a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
CP_INLINE VI nibble_high(VI a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
CP_INLINE void vstore_i8(int8_t* p, VF a) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_setzero_si256());
    __m256i bytes = _mm256_packs_epi16(words, _mm256_setzero_si256());
    int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
    memcpy(p, &low, 4);
    memcpy(p + 4, &high, 4);
}
#if defined(__AVXVNNI__)
#define CP_VNNI 1
CP_INLINE VI dot4(VI acc, VI w, VI a) { return _mm256_dpbusd_avx_epi32(acc, w, a); }
#else
// 16 codes w + 128 as 16-bit numbers w.
CP_INLINE VI words_of_codes(const uint8_t* p) {
    return _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_loadu_si128((const __m128i*)p), _mm_set1_epi8((char)0x80)));
}
CP_INLINE VI four_words(const int16_t* p) {
    int64_t four;
    memcpy(&four, p, 8);
    return _mm256_set1_epi64x(four);
}
// acc + the products of pairs of 16-bit numbers.
CP_INLINE VI dot2(VI acc, VI w, VI a) { return _mm256_add_epi32(acc, _mm256_madd_epi16(w, a)); }
// Sums of neighbours, in order: first those of a.
CP_INLINE VI pairs_of(VI a, VI b) { return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8); }
CP_INLINE void store_words(int16_t* p, VF a) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_setzero_si256());
    _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0xd8)));
}
// Unsigned bytes of at most 15: eight products of pairs still fit 16 bits.
CP_INLINE VI pairs_add(VI pairs, VI w, VI a) { return _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w, a)); }
CP_INLINE VI pairs_sum(VI pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
#endif

#elif defined(__ARM_NEON)
// ------------------------------------------------------------------------------------------------------------------- NEON
constexpr int LANES = 4;
typedef float32x4_t VF;
typedef int32x4_t VI;
CP_INLINE VF vzero() { return vdupq_n_f32(0); }
CP_INLINE VF vset(float x) { return vdupq_n_f32(x); }
CP_INLINE VF vload(const float* p) { return vld1q_f32(p); }
CP_INLINE void vstore(float* p, VF v) { vst1q_f32(p, v); }
CP_INLINE VF vload_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
CP_INLINE void vstore_half(uint16_t* p, VF v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
CP_INLINE VF vload_i8(const int8_t* p) {
    int32_t four;
    memcpy(&four, p, 4);
    int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
CP_INLINE VF vadd(VF a, VF b) { return vaddq_f32(a, b); }
CP_INLINE VF vsub(VF a, VF b) { return vsubq_f32(a, b); }
CP_INLINE VF vmul(VF a, VF b) { return vmulq_f32(a, b); }
CP_INLINE VF vdiv(VF a, VF b) { return vdivq_f32(a, b); }
CP_INLINE VF vmax(VF a, VF b) { return vmaxq_f32(a, b); }
CP_INLINE VF vmin(VF a, VF b) { return vminq_f32(a, b); }
CP_INLINE VF vabs(VF a) { return vabsq_f32(a); }
CP_INLINE VF vfma(VF a, VF b, VF c) { return vfmaq_f32(c, a, b); }
CP_INLINE VF vround(VF a) { return vrndnq_f32(a); }
CP_INLINE VF vscale2(VF a, VF e) {
    return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(e), vdupq_n_s32(127)), 23)));
}
CP_INLINE float vsum(VF a) { return vaddvq_f32(a); }
CP_INLINE float vlargest(VF a) { return vmaxvq_f32(a); }
CP_INLINE VF vkeep(VF a, VF other, int lo, int hi) {
    const int32_t lanes[4] = {0, 1, 2, 3};
    int32x4_t lane = vld1q_s32(lanes);
    uint32x4_t inside = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo)), vcltq_s32(lane, vdupq_n_s32(hi)));
    return vbslq_f32(inside, a, other);
}
CP_INLINE VF vabove(VF a, VF b, VF x) { return vbslq_f32(vcgtq_f32(a, b), x, vdupq_n_f32(0)); }
CP_INLINE VI izero() { return vdupq_n_s32(0); }
CP_INLINE VI iset(int32_t x) { return vdupq_n_s32(x); }
CP_INLINE VI iload(const void* p) { return vreinterpretq_s32_s8(vld1q_s8((const int8_t*)p)); }
CP_INLINE VF itofloat(VI a) { return vcvtq_f32_s32(a); }
CP_INLINE VI iadd(VI a, VI b) { return vaddq_s32(a, b); }
CP_INLINE VI times_256(VI a) { return vshlq_n_s32(a, 8); }
CP_INLINE VI nibble_low(VI a) { return vreinterpretq_s32_u8(vandq_u8(vreinterpretq_u8_s32(a), vdupq_n_u8(15))); }
CP_INLINE VI nibble_high(VI a) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4)); }
CP_INLINE void vstore_i8(int8_t* p, VF a) {
    int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(a));
    int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
    memcpy(p, &four, 4);
}
CP_INLINE VI isigned(VI w) { return vreinterpretq_s32_u8(veorq_u8(vreinterpretq_u8_s32(w), vdupq_n_u8(0x80))); }
CP_INLINE VI dot4_signed(VI acc, VI w, VI a) {
    int8x16_t x = vreinterpretq_s8_s32(w), y = vreinterpretq_s8_s32(a);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(acc, x, y);
#else
    int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y))), high = vpaddlq_s16(vmull_s8(vget_high_s8(x), vget_high_s8(y)));
    return vaddq_s32(acc, vpaddq_s32(low, high));
#endif
}
CP_INLINE VI pairs_add(VI sums, VI w, VI a) { return dot4_signed(sums, w, a); }
CP_INLINE VI pairs_sum(VI sums) { return sums; }

#else
// ----------------------------------------------------------------------------------------------------------- plain C, any CPU
constexpr int LANES = 16;
struct VF { float x[16]; };
struct VI { int32_t x[16]; };
#define CP_EACH(expression)            \
    VF r;                              \
    for (int i = 0; i < 16; i++) r.x[i] = (expression); \
    return r;
CP_INLINE VF vset(float x) { CP_EACH(x) }
CP_INLINE VF vzero() { return vset(0); }
CP_INLINE VF vload(const float* p) { CP_EACH(p[i]) }
CP_INLINE void vstore(float* p, VF v) { memcpy(p, v.x, sizeof v.x); }
CP_INLINE VF vload_half(const uint16_t* p) { CP_EACH(half_to_float_portable(p[i])) }
CP_INLINE void vstore_half(uint16_t* p, VF v) { for (int i = 0; i < 16; i++) p[i] = float_to_half_portable(v.x[i]); }
CP_INLINE VF vload_i8(const int8_t* p) { CP_EACH((float)p[i]) }
CP_INLINE VF vadd(VF a, VF b) { CP_EACH(a.x[i] + b.x[i]) }
CP_INLINE VF vsub(VF a, VF b) { CP_EACH(a.x[i] - b.x[i]) }
CP_INLINE VF vmul(VF a, VF b) { CP_EACH(a.x[i] * b.x[i]) }
CP_INLINE VF vdiv(VF a, VF b) { CP_EACH(a.x[i] / b.x[i]) }
CP_INLINE VF vmax(VF a, VF b) { CP_EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]) }
CP_INLINE VF vmin(VF a, VF b) { CP_EACH(a.x[i] < b.x[i] ? a.x[i] : b.x[i]) }
CP_INLINE VF vabs(VF a) { CP_EACH(fabsf(a.x[i])) }
CP_INLINE VF vfma(VF a, VF b, VF c) { CP_EACH(a.x[i] * b.x[i] + c.x[i]) }
CP_INLINE VF vround(VF a) { CP_EACH(nearbyintf(a.x[i])) }
CP_INLINE VF vscale2(VF a, VF e) { CP_EACH(ldexpf(a.x[i], (int)e.x[i])) }
CP_INLINE float vsum(VF a) { float s = 0; for (int i = 0; i < 16; i++) s += a.x[i]; return s; }
CP_INLINE float vlargest(VF a) { float m = a.x[0]; for (int i = 1; i < 16; i++) m = a.x[i] > m ? a.x[i] : m; return m; }
CP_INLINE VF vkeep(VF a, VF other, int lo, int hi) { CP_EACH(i >= lo && i < hi ? a.x[i] : other.x[i]) }
CP_INLINE VF vabove(VF a, VF b, VF x) { CP_EACH(a.x[i] > b.x[i] ? x.x[i] : 0.0f) }
CP_INLINE VI iset(int32_t x) { VI r; for (int i = 0; i < 16; i++) r.x[i] = x; return r; }
CP_INLINE VI izero() { return iset(0); }
CP_INLINE VI iload(const void* p) { VI r; memcpy(r.x, p, sizeof r.x); return r; }
CP_INLINE VF itofloat(VI a) { CP_EACH((float)a.x[i]) }
CP_INLINE VI iadd(VI a, VI b) { for (int i = 0; i < 16; i++) a.x[i] += b.x[i]; return a; }
CP_INLINE VI times_256(VI a) { for (int i = 0; i < 16; i++) a.x[i] *= 256; return a; }
CP_INLINE VI nibble_low(VI a) { VI r; for (int i = 0; i < 16; i++) r.x[i] = a.x[i] & 0x0f0f0f0f; return r; }
CP_INLINE VI nibble_high(VI a) { VI r; for (int i = 0; i < 16; i++) r.x[i] = (int32_t)(((uint32_t)a.x[i] >> 4) & 0x0f0f0f0fu); return r; }
CP_INLINE void vstore_i8(int8_t* p, VF a) {
    for (int i = 0; i < 16; i++) {
        float whole = nearbyintf(a.x[i]);
        p[i] = (int8_t)(whole > 127 ? 127 : whole < -128 ? -128 : whole == whole ? whole : 0);
    }
}
#define CP_VNNI 1
CP_INLINE VI dot4(VI acc, VI w, VI a) {
    for (int i = 0; i < 16; i++) {
        uint8_t u[4];
        int8_t s[4];
        memcpy(u, &w.x[i], 4);
        memcpy(s, &a.x[i], 4);
        acc.x[i] += u[0] * s[0] + u[1] * s[1] + u[2] * s[2] + u[3] * s[3];
    }
    return acc;
}
#undef CP_EACH
#endif

// Whether what `pairs_add` adds to are the sums themselves.
#if defined(CP_VNNI)
constexpr bool PAIRS_ARE_SUMS = true;
CP_INLINE VI pairs_add(VI sums, VI w, VI a) { return dot4(sums, w, a); }
CP_INLINE VI pairs_sum(VI sums) { return sums; }
#elif defined(__ARM_NEON)
constexpr bool PAIRS_ARE_SUMS = true;
#else
constexpr bool PAIRS_ARE_SUMS = false;
#endif

#if defined(__AVX2__)
CP_INLINE float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
#else
CP_INLINE float half_to_float(uint16_t h) { return half_to_float_portable(h); }
#endif

// exp(x) to about one unit in the last place (Cephes' polynomial); 0 below -87.3, finite up to 88.
CP_INLINE VF vexp(VF x) {
    const VF low = vset(-87.3f);
    x = vmin(vmax(x, low), vset(88.0f));
    VF e = vround(vmul(x, vset(1.44269504f)));
    VF r = vfma(e, vset(-0.693359375f), x);
    r = vfma(e, vset(2.12194440e-4f), r);
    VF p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vadd(vfma(p, vmul(r, r), r), vset(1.0f));
    return vscale2(p, vmin(e, vset(127.0f)));
}

CP_INLINE VF vsigmoid(VF x) { return vdiv(vset(1.0f), vadd(vset(1.0f), vexp(vsub(vzero(), x)))); }
CP_INLINE VF vsilu(VF x) { return vmul(x, vsigmoid(x)); }
// tanh(x) = 1 - 2 / (exp(2 x) + 1)
CP_INLINE VF vtanh(VF x) { return vsub(vset(1.0f), vdiv(vset(2.0f), vadd(vexp(vadd(x, x)), vset(1.0f)))); }
CP_INLINE VF vgelu_tanh(VF x) {
    VF inner = vmul(vset(0.7978845608f), vfma(vmul(vmul(x, x), x), vset(0.044715f), x));
    return vmul(vmul(vset(0.5f), x), vadd(vset(1.0f), vtanh(inner)));
}

}  // namespace CP_NAMESPACE
