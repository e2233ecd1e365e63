// Chooses the next token of one row of logits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "runtime/buffers.h"

namespace duologue {

struct SamplingRow {
    float temperature;  // 0, or so small that its inverse overflows: greedy
    float top_p;        // in (0, 1]; 1: off
    int32_t top_k;      // 0: off
    uint32_t choice;
    uint64_t seed;
    uint64_t position;  // of the token being chosen
};

class Sampler {
public:
    // Temperature, then top-k, then top-p over what is left, then inverse CDF in falling order of weight (ties: lower id
    // first) or, without filters, in order of id. The same logits give the same token whatever the batch or machine.
    int32_t sample(const KernelTable& kernels, const float* logits, int64_t vocab, const SamplingRow& row);

    int64_t bytes() const { return bytes_of(weights_, candidates_); }

private:
    std::vector<float> weights_;                         // [vocab]
    std::vector<std::pair<float, int32_t>> candidates_;  // scratch for the filters
};

}  // namespace duologue
