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

// Groups of a panel for which more than the usual way of packing is tried, before it is seen whether that is worth while.
constexpr int TRIES = 4;

struct Fit {
    uint16_t scale, least;
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

// Codes for one group, with scale and least number rounded to halves.
void fit_group(const float* x, int32_t format, float wanted_scale, float wanted_least, Fit* fit) {
    float scale = rounded(wanted_scale, &fit->scale), least = rounded(wanted_least, &fit->least);
    int lowest = format == I8 ? -127 : 0, highest = format == I8 ? 127 : 15;
    float inverse = scale == 0 ? 0.0f : 1.0f / scale;
    fit->exact = true;
    for (int i = 0; i < GROUP; i++) {
        float code = std::min((float)highest, std::max((float)lowest, (x[i] - least) * inverse));  // NaN becomes the lowest
        fit->codes[i] = (int32_t)((code + ROUNDING) - ROUNDING);
        float product = (float)fit->codes[i] * scale;  // two roundings, as those who made the numbers did
        fit->exact &= product + least == x[i];
    }
}

// The group as it was when it was Q8_0 or Q4_0 and did not use the largest code; whether it was.
bool find_i8(const float* x, float largest, Fit* fit) {
    fit_group(x, I8, largest / 8, 0, fit);  // Q4_0: the number furthest from 0 is 8 scales away
    for (int top = 126; top && !fit->exact; top--) fit_group(x, I8, largest / (float)top, 0, fit);
    return fit->exact;
}

// Likewise Q4_0 and Q4_1: the range of the numbers is that of `top` codes, and the scale negative where the code 0 is the greatest
// number. The offset of Q4_0 is -8 scales, whether or not a number is there.
bool find_i4(const float* x, float smallest, float greatest, Fit* fit) {
    for (int top = 15; top; top--)
        for (int sign = 1; sign >= -1; sign -= 2) {
            uint16_t half;
            float scale = rounded((greatest - smallest) / (float)(sign * top), &half);
            fit_group(x, I4, scale, sign > 0 ? smallest : greatest, fit);
            if (!fit->exact) fit_group(x, I4, scale, -8 * scale, fit);
            if (fit->exact) return true;
        }
    return false;
}

// How a panel's groups are packed.
struct Packer {
    int32_t format;
    int tried = 0, found = 0;

    Fit pack(const float* x) {
        float smallest = x[0], greatest = x[0];
        for (int i = 1; i < GROUP; i++) {
            smallest = std::min(smallest, x[i]);
            greatest = std::max(greatest, x[i]);
        }
        float largest = std::max(greatest, -smallest);
        Fit fit, other;
        fit_group(x, format, format == I8 ? largest / 127 : (greatest - smallest) / 15, format == I8 ? 0 : smallest, &fit);
        if (fit.exact || (tried >= TRIES && 2 * found <= tried)) return fit;
        tried++;
        if (!(format == I8 ? find_i8(x, largest, &other) : find_i4(x, smallest, greatest, &other))) return fit;
        found++;
        return other;
    }
};

}  // namespace

void pack_panel(const float* weight, int n, int k, int32_t format, int panel, uint8_t* out) {
    int groups = (k + GROUP - 1) / GROUP, rows = std::min(PANEL, n - panel * PANEL);
    int header = format == I8 ? 2 * PANEL : 4 * PANEL, size = header + (format == I8 ? GROUP : GROUP / 2) * PANEL;
    Packer packer = {format};
    for (int g = 0; g < groups; g++, out += size) {
        memset(out, 0, size);
        if (format == I8) memset(out + header, 128, size - header);  // zeros, for rows that are not there
        for (int row = 0; row < rows; row++) {
            float x[GROUP] = {};
            memcpy(x, weight + (int64_t)(panel * PANEL + row) * k + g * GROUP, sizeof(float) * std::min(GROUP, k - g * GROUP));
            Fit fit = packer.pack(x);
            memcpy(out + 2 * row, &fit.scale, 2);
            if (format != I8) memcpy(out + 2 * PANEL + 2 * row, &fit.least, 2);
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
