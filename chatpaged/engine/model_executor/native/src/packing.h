#pragma once

#include <stdint.h>

// Packs 32 rows of a matrix [n, k] as I8 or I4; `out` is the panel's place.
void pack_panel(const float* weight, int n, int k, int32_t format, int panel, uint8_t* out);
