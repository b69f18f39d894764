// What is done to single rows between the products. Included once for each instruction set.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace CP_NAMESPACE {

static void rms_norm(const float* x, const float* weight, int n, float eps, float* y) {
    VF squares = vzero();
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        VF part = vload(x + i);
        squares = vfma(part, part, squares);
    }
    float sum = vsum(squares);
    for (int j = i; j < n; j++) sum += x[j] * x[j];
    float factor = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i + LANES <= n; i += LANES) {
        VF part = vmul(vload(x + i), vset(factor));
        vstore(y + i, weight ? vmul(part, vload(weight + i)) : part);
    }
    for (; i < n; i++) y[i] = weight ? x[i] * factor * weight[i] : x[i] * factor;
}

static void add_scaled(float* x, const float* y, float factor, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) vstore(x + i, vfma(vset(factor), vload(y + i), vload(x + i)));
    for (; i < n; i++) x[i] += factor * y[i];
}

static void scale(float* x, float factor, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) vstore(x + i, vmul(vload(x + i), vset(factor)));
    for (; i < n; i++) x[i] *= factor;
}

static void rotate(float* x, const float* cosine, const float* sine, int dim) {
    int half = dim / 2, i = 0;
    for (; i + LANES <= half; i += LANES) {
        VF a = vload(x + i), b = vload(x + half + i), c = vload(cosine + i), s = vload(sine + i);
        vstore(x + i, vsub(vmul(a, c), vmul(b, s)));
        vstore(x + half + i, vfma(a, s, vmul(b, c)));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = a * sine[i] + b * cosine[i];
    }
}

static void softcap(float* x, float cap, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) vstore(x + i, vmul(vset(cap), vtanh(vmul(vload(x + i), vset(1.0f / cap)))));
    for (; i < n; i++) x[i] = cap * tanhf(x[i] / cap);
}

static int argmax(const float* x, int n, float* value) {
    float best = -INFINITY;
    int place = 0;
    bool wrong = false;
    for (int begin = 0; begin < n; begin += STRETCH) {
        int end = min_int(n, begin + STRETCH), i = begin;
        float largest = -INFINITY;
        // x - x is 0 for numbers, and NaN for NaN and infinities; the latter are told apart below.
        VF most = vset(-INFINITY), odd = vzero();
        for (; i + LANES <= end; i += LANES) {
            VF part = vload(x + i);
            most = vmax(part, most);
            odd = vadd(odd, vsub(part, part));
        }
        float difference = vsum(odd);
        largest = vlargest(most);
        for (; i < end; i++) {
            largest = x[i] > largest ? x[i] : largest;
            difference += x[i] - x[i];
        }
        if (difference != 0.0f)
            for (int j = begin; j < end; j++) wrong |= x[j] != x[j];
        if (largest > best) {
            best = largest;
            for (int j = begin; j < end; j++)
                if (x[j] == largest) {
                    place = j;
                    break;
                }
        }
    }
    *value = wrong ? NAN : best;
    return place;
}

static double exponentials(const float* x, int n, float largest, float factor, float* out, double* sums) {
    double sum = 0;
    for (int begin = 0; begin < n; begin += STRETCH) {
        VF part = vzero();
        for (int i = begin; i < min_int(n, begin + STRETCH); i += LANES) {
            alignas(64) float padded[LANES];
            const float* from = x + i;
            if (n - i < LANES) {
                for (int j = 0; j < LANES; j++) padded[j] = j < n - i ? from[j] : -INFINITY;
                from = padded;
            }
            VF exponent = vmax(vmul(vsub(vload(from), vset(largest)), vset(factor)), vset(-100.0f));
            VF weight = vabove(exponent, vset(-87.0f), vexp(exponent));
            if (n - i < LANES) {
                vstore(padded, weight);
                for (int j = 0; j < n - i; j++) out[i + j] = padded[j];
            } else {
                vstore(out + i, weight);
            }
            part = vadd(part, weight);
        }
        sums[begin / STRETCH] = (double)vsum(part);
        sum += sums[begin / STRETCH];
    }
    return sum;
}

static float read_all(const float* x, int64_t n) {
    VF a = vzero(), b = vzero(), c = vzero(), d = vzero();
    for (int64_t i = 0; i + 4 * LANES <= n; i += 4 * LANES) {
        a = vadd(a, vload(x + i));
        b = vadd(b, vload(x + i + LANES));
        c = vadd(c, vload(x + i + 2 * LANES));
        d = vadd(d, vload(x + i + 3 * LANES));
    }
    return vsum(vadd(vadd(a, b), vadd(c, d)));
}

}  // namespace CP_NAMESPACE
