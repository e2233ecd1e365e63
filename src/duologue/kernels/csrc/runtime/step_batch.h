// What one forward step computes: a flat batch of tokens from any mix of prefills and decodes.
#pragma once

#include <cstdint>

#include "runtime/model.h"
#include "runtime/sampler.h"

namespace duologue {

// Sequence s contributes tokens[starts[s] .. starts[s+1]) at positions first_position[s], first_position[s] + 1, ...
struct StepBatch {
    const int32_t* tokens;
    const int32_t* starts;          // [sequences + 1]
    const int32_t* first_position;  // [sequences]
    int32_t sequences;
    const int32_t* page_table[kPageKinds];  // [sequences, page_columns[kind]] page ids by position / kPageTokens
    int64_t page_columns[kPageKinds];
    uint8_t* pool[kPageKinds];
    const int32_t* logit_tokens;    // [logit_count] indices into tokens, ascending
    int32_t logit_count;
    float* logits;                  // [logit_count, vocab]
    const SamplingRow* sampling;    // [logit_count] or null: no sampling
    SamplingInputs inputs;          // what `sampling` points into
    int32_t* sampled;               // [logit_count]

    int32_t token_count() const { return starts[sequences]; }
    // Of a token of the sequence, counted within the step.
    int32_t position(int32_t sequence, int32_t token) const { return first_position[sequence] + token - starts[sequence]; }
    // The sequence's page ids by position / kPageTokens.
    const int32_t* pages(PageKind kind, int32_t sequence) const { return page_table[kind] + sequence * page_columns[kind]; }
};

}  // namespace duologue
