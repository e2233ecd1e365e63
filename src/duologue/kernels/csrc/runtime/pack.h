// Packing of quantised weights into the one layout that every instruction set reads (layout.h).
#pragma once

#include <cstdint>

#include "layout.h"

namespace duologue {

// int8 weights W[n, k] in row-major order with one scale per output channel. A gated pair holds the gate's n/2 rows, then up's.
struct WeightSource {
    const int8_t* codes;  // [n, k], -127 .. 127
    const float* scale;   // [n]
    const float* bias;    // [n] or null
    int64_t n;
    int64_t k;
    bool gated;
};

// Where the packed parts go; sizes as in PackedWeight, for n_padded x k_padded.
struct PackedParts {
    int8_t* codes;
    int32_t* compensation;
    float* scale;
    float* bias;  // null when the source has none
};

// Throws std::invalid_argument naming the fault when k is over kMaxDepth, a shape is not positive, a gated pair is odd, or a
// code is -128.
void pack_weight(const WeightSource& source, const PackedParts& packed);

}  // namespace duologue
