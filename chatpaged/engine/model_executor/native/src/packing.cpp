// Weights to panels. What a GGUF file held as Q4_0, Q4_1 or Q8_0 comes back exactly: its groups are found again in the numbers.
#include <math.h>
#include <string.h>

#include <algorithm>

#define CP_NAMESPACE cp_packing
#include "kernels.h"
#include "packing.h"
#include "simd.h"

namespace {

constexpr float ROUNDING = 12582912.0f;  // 1.5 x 2^23: a sum with it has no places behind the point

struct Fit {
    float scale, least;  // as they are stored: halves
    int32_t codes[GROUP];
    bool exact;
};

// To half precision and back; numbers beyond it become the largest there are.
float rounded(float x, uint16_t* half) {
    using namespace cp_packing;
    x = std::min(65504.0f, std::max(-65504.0f, x));
    *half = float_to_half_portable(x);
    return half_to_float_portable(*half);
}

// Codes for one group, the largest number as code `top`.
void fit_group(const float* x, int32_t format, int top, Fit* fit, uint16_t* scale, uint16_t* least) {
    float smallest = x[0], greatest = x[0];
    for (int i = 1; i < GROUP; i++) {
        smallest = std::min(smallest, x[i]);
        greatest = std::max(greatest, x[i]);
    }
    bool wide = format == I8;
    *least = 0;
    fit->least = wide ? 0.0f : rounded(smallest, least);
    fit->scale = rounded((wide ? std::max(greatest, -smallest) : greatest - smallest) / (float)top, scale);
    int lowest = wide ? -127 : 0, highest = wide ? 127 : 15;
    float inverse = fit->scale == 0 ? 0.0f : 1.0f / fit->scale;
    fit->exact = true;
    for (int i = 0; i < GROUP; i++) {
        float code = std::min((float)highest, std::max((float)lowest, (x[i] - fit->least) * inverse));  // NaN becomes the lowest
        fit->codes[i] = (int32_t)((code + ROUNDING) - ROUNDING);
        float product = (float)fit->codes[i] * fit->scale;  // two roundings, as those who made the numbers did
        fit->exact &= product + fit->least == x[i];
    }
}

}  // namespace

void pack_panel(const float* weight, int n, int k, int32_t format, int panel, uint8_t* out) {
    int groups = (k + GROUP - 1) / GROUP, rows = std::min(PANEL, n - panel * PANEL), top = format == I8 ? 127 : 15;
    int header = format == I8 ? 2 * PANEL : 4 * PANEL, size = header + (format == I8 ? GROUP : GROUP / 2) * PANEL;
    int seen = 0, exact = 0;
    for (int g = 0; g < groups; g++, out += size) {
        memset(out, 0, size);
        if (format == I8) memset(out + header, 128, size - header);  // zeros, for rows that are not there
        for (int row = 0; row < rows; row++) {
            float x[GROUP] = {};
            memcpy(x, weight + (int64_t)(panel * PANEL + row) * k + g * GROUP, sizeof(float) * std::min(GROUP, k - g * GROUP));
            uint16_t scale, least;
            Fit fit;
            fit_group(x, format, top, &fit, &scale, &least);
            seen++;
            exact += fit.exact;
            // Where most groups were made like this once, the others were too, but did not use the largest code.
            if (!fit.exact && 2 * exact > seen) {
                Fit other;
                uint16_t other_scale, other_least;
                for (int smaller = top - 1; smaller && !fit.exact; smaller--) {
                    fit_group(x, format, smaller, &other, &other_scale, &other_least);
                    if (other.exact) fit = other, scale = other_scale, least = other_least;
                }
                exact += fit.exact;
            }
            memcpy(out + 2 * row, &scale, 2);
            if (format != I8) memcpy(out + 2 * PANEL + 2 * row, &least, 2);
            uint8_t* data = out + header + row * 4;
            for (int i = 0; i < GROUP; i++) {
                if (format == I8)
                    data[i / 4 * PANEL * 4 + i % 4] = (uint8_t)(fit.codes[i] + 128);
                else
                    data[i / 8 * PANEL * 4 + i % 4] |= (uint8_t)(fit.codes[i] << (i % 8 / 4 * 4));
            }
        }
    }
}
