#pragma once

#include <vector>

#include "chatpaged.h"
#include "kernels.h"

// Memory for draws, used again and again.
struct DrawRoom {
    std::vector<float> weights, sorted;
    std::vector<double> sums;  // of stretches of weights
    std::vector<int32_t> places;
};

// One token, or -1 where the logits are not numbers.
int32_t draw_token(const Kernels& kernels, const cp_draw& draw, int32_t vocab, DrawRoom* room);
