// What a step samples with, as Python gives it: rows of parameters, and arrays that they point into.
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings/arrays.h"
#include "runtime/sampler.h"

namespace duologue {

struct SamplingArrays {
    Array<const uint8_t, 2> packed;                         // [rows, sizeof(SamplingRow)]
    std::optional<Array<const int32_t, 1>> history;
    std::optional<Array<const int32_t, 1>> bias_ids;
    std::optional<Array<const float, 1>> bias_values;
    std::optional<Array<const uint32_t, 2>> masks;
    std::optional<Array<int32_t, 2>> logprob_ids;
    std::optional<Array<float, 2>> logprobs;

    const SamplingRow* rows() const { return reinterpret_cast<const SamplingRow*>(packed.data()); }

    // Throws std::invalid_argument unless there are `count` rows and all that they point to lies within the arrays and the vocabulary.
    SamplingInputs checked(int64_t count, int64_t vocab) const;
};

}  // namespace duologue
