// Chooses the next token of one row of logits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "runtime/buffers.h"

namespace duologue {

struct SamplingRow {
    float temperature;        // 0, or so small that its inverse overflows: greedy
    float top_p;              // in (0, 1]; 1: off
    float min_p;              // in [0, 1]; 0: off
    int32_t top_k;            // 0: off
    float presence_penalty;   // 0: off, as the next
    float frequency_penalty;
    float repetition_penalty; // 1: off
    uint32_t choice;
    uint64_t seed;
    uint64_t position;        // of the token being chosen
    int32_t bias_begin, bias_end;        // into SamplingInputs::bias_ids and bias_values
    int32_t history_begin, history_end;  // into SamplingInputs::history: prompt and reply so far
    int32_t reply_begin;                 // where the reply begins in that
    int32_t mask;                        // row of SamplingInputs::masks, or -1
    int32_t logprobs;                    // how many of the likeliest tokens to report beside the chosen one, or -1: none at all
    int32_t unused;
};
static_assert(sizeof(SamplingRow) == 80, "kernels/sampling.py packs it");

// What rows point into; null where no row does.
struct SamplingInputs {
    const int32_t* history;   // token ids, all within the vocabulary
    const int32_t* bias_ids;  // within the vocabulary
    const float* bias_values;
    const uint32_t* masks;    // [rows, mask_words] bit i of word w: token 32 w + i is allowed
    int64_t mask_words;
    int32_t* logprob_ids;     // [rows, logprob_columns] the chosen token, then the likeliest, likeliest first
    float* logprobs;          // [rows, logprob_columns]
    int64_t logprob_columns;
};

class Sampler {
public:
    // In this order: biases are added, penalties taken (repetition, frequency, presence), masked tokens become -infinity; then
    // temperature, min-p, top-k, top-p over what is left; then inverse CDF in falling order of weight (ties: lower id first) or,
    // without filters, in order of id. The same logits give the same token whatever the batch or machine. `logits` are not changed.
    // Log-probabilities, where asked for, are of the logits as they come, and go to row `index` of the inputs' arrays.
    int32_t sample(const KernelTable& kernels, const float* logits, int64_t vocab, const SamplingRow& row, const SamplingInputs& inputs, int64_t index);

    int64_t bytes() const { return bytes_of(edited_, counts_, seen_, weights_, candidates_); }

private:
    // Natural logarithms of the softmax of `logits` at `chosen` and at the `top` largest (ties: lower id first), into ids and values
    // [1 + top]; ids beyond the vocabulary's size are -1. The sum is taken in one order, so the same logits give the same bits.
    void log_probabilities(const KernelTable& kernels, const float* logits, int64_t vocab, int32_t chosen, int32_t top, int32_t* ids, float* values);
    const float* edit(const float* logits, int64_t vocab, const SamplingRow& row, const SamplingInputs& inputs);
    void penalize(int64_t vocab, const SamplingRow& row, const int32_t* history);
    int32_t choose(const KernelTable& kernels, const float* logits, int64_t vocab, const SamplingRow& row);

    std::vector<float> edited_;                          // [vocab]
    std::vector<int32_t> counts_;                        // [vocab] of each token in the reply; all zero between calls
    std::vector<uint8_t> seen_;                          // [vocab] in prompt or reply; all zero between calls
    std::vector<float> weights_;                         // [vocab]
    std::vector<std::pair<float, int32_t>> candidates_;  // scratch for the filters
};

}  // namespace duologue
