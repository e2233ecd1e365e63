#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/philox.h"

namespace duologue {
namespace {

// Heavier first, then lower id.
bool heavier(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

int32_t Sampler::sample(const KernelTable& kernels, const float* logits, int64_t vocab, const SamplingRow& row, const SamplingInputs& inputs, int64_t index) {
    const int32_t token = choose(kernels, edit(logits, vocab, row, inputs), vocab, row);
    if (row.logprobs >= 0) {
        const int64_t at = index * inputs.logprob_columns;
        log_probabilities(kernels, logits, vocab, token, row.logprobs, inputs.logprob_ids + at, inputs.logprobs + at);
    }
    return token;
}

const float* Sampler::edit(const float* logits, int64_t vocab, const SamplingRow& row, const SamplingInputs& inputs) {
    const bool penalizes = row.repetition_penalty != 1.0f || row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
    if (!penalizes && row.bias_begin == row.bias_end && row.mask < 0) return logits;
    edited_.assign(logits, logits + vocab);
    for (int32_t i = row.bias_begin; i < row.bias_end; ++i) edited_[static_cast<size_t>(inputs.bias_ids[i])] += inputs.bias_values[i];
    if (penalizes) penalize(vocab, row, inputs.history);
    if (row.mask >= 0) {
        const uint32_t* words = inputs.masks + row.mask * inputs.mask_words;
        for (int64_t begin = 0; begin < vocab; begin += 32) {
            const uint32_t word = words[begin / 32];
            if (word == ~uint32_t(0)) continue;
            const int64_t end = std::min(begin + 32, vocab);
            for (int64_t i = begin; i < end; ++i)
                if ((word >> (i - begin) & 1) == 0) edited_[static_cast<size_t>(i)] = -std::numeric_limits<float>::infinity();
        }
    }
    return edited_.data();
}

// Counting anew from the tokens costs some ten microseconds per thousand of them, and there is no state that a preempted, forked or
// speculative reply could get wrong.
void Sampler::penalize(int64_t vocab, const SamplingRow& row, const int32_t* history) {
    counts_.resize(static_cast<size_t>(vocab));
    seen_.resize(static_cast<size_t>(vocab));
    for (int32_t i = row.reply_begin; i < row.history_end; ++i) ++counts_[static_cast<size_t>(history[i])];
    // Repetition alone looks at the prompt.
    const int32_t begin = row.repetition_penalty != 1.0f ? row.history_begin : row.reply_begin;
    for (int32_t i = begin; i < row.history_end; ++i) {
        const auto token = static_cast<size_t>(history[i]);
        if (seen_[token]) continue;
        seen_[token] = 1;
        float x = edited_[token];
        x = x > 0.0f ? x / row.repetition_penalty : x * row.repetition_penalty;
        if (counts_[token] > 0) {
            x -= row.frequency_penalty * static_cast<float>(counts_[token]);
            x -= row.presence_penalty;
        }
        edited_[token] = x;
    }
    for (int32_t i = begin; i < row.history_end; ++i) seen_[static_cast<size_t>(history[i])] = 0;
    for (int32_t i = row.reply_begin; i < row.history_end; ++i) counts_[static_cast<size_t>(history[i])] = 0;
}

int32_t Sampler::choose(const KernelTable& kernels, const float* logits, int64_t vocab, const SamplingRow& row) {
    // So close to zero that its inverse overflows, a temperature is greedy too.
    const float inv_temperature = 1.0f / row.temperature;
    if (!(inv_temperature <= std::numeric_limits<float>::max())) return static_cast<int32_t>(kernels.argmax(logits, vocab));

    weights_.resize(static_cast<size_t>(vocab));
    float* weights = weights_.data();
    const float total = kernels.softmax_weights(logits, vocab, kernels.max_value(logits, vocab), inv_temperature, weights);
    const double uniform = philox_uniform(row.seed, row.choice, row.position);

    const bool has_top_k = row.top_k > 0 && row.top_k < vocab;
    const bool has_min_p = row.min_p > 0.0f;
    if (!has_top_k && !has_min_p && row.top_p >= 1.0f) {
        double sum = 0.0;
        for (int64_t i = 0; i < vocab; ++i) sum += weights[i];
        const double target = uniform * sum;
        double running = 0.0;
        int32_t last = 0;
        for (int64_t i = 0; i < vocab; ++i) {
            if (weights[i] <= 0.0f) continue;
            running += weights[i];
            last = static_cast<int32_t>(i);
            if (running > target) return last;
        }
        return last;
    }

    // The heaviest token weighs 1. Tokens below (1 - p) / vocab of the mass add up to less than 1 - p, so the nucleus never needs
    // them: few are left to sort. With min-p or top-k the mass is that of the tokens which these leave, and they are found first.
    const float floor = has_min_p ? row.min_p : has_top_k ? 0.0f : (1.0f - row.top_p) * total / static_cast<float>(vocab);
    candidates_.clear();
    if (has_top_k && row.top_k < vocab / 8) {
        // A heap of the k heaviest so far, the lightest on top: most tokens are done with after one comparison. Ids ascend, so a
        // token as heavy as the lightest comes behind it.
        for (int64_t i = 0; i < vocab; ++i) {
            if (!(weights[i] > 0.0f && weights[i] >= floor)) continue;
            if (static_cast<int64_t>(candidates_.size()) == row.top_k) {
                if (weights[i] <= candidates_.front().first) continue;
                std::pop_heap(candidates_.begin(), candidates_.end(), heavier);
                candidates_.pop_back();
            }
            candidates_.emplace_back(weights[i], static_cast<int32_t>(i));
            std::push_heap(candidates_.begin(), candidates_.end(), heavier);
        }
    } else {
        for (int64_t i = 0; i < vocab; ++i)
            if (weights[i] > 0.0f && weights[i] >= floor) candidates_.emplace_back(weights[i], static_cast<int32_t>(i));
    }
    // Logits with a NaN or +infinity give no weights; their caller is broken, but nothing is read out of bounds.
    if (candidates_.empty()) return static_cast<int32_t>(kernels.argmax(logits, vocab));
    auto end = candidates_.end();
    double mass = 0.0;
    if (has_top_k) {
        if (static_cast<int64_t>(candidates_.size()) > row.top_k) {
            end = candidates_.begin() + row.top_k;
            std::nth_element(candidates_.begin(), end, candidates_.end(), heavier);
        }
        std::sort(candidates_.begin(), end, heavier);
        for (auto it = candidates_.begin(); it != end; ++it) mass += it->first;
    } else if (has_min_p) {
        for (const auto& candidate : candidates_) mass += candidate.first;
    } else {
        for (int64_t i = 0; i < vocab; ++i) mass += weights[i];
    }

    // Pull the heaviest from a heap until the nucleus is full; at least one token is always kept.
    const auto lighter = [](const auto& a, const auto& b) { return heavier(b, a); };
    std::make_heap(candidates_.begin(), end, lighter);
    const double wanted = static_cast<double>(row.top_p) * mass;
    double kept = 0.0;
    auto first_kept = end;
    while (first_kept != candidates_.begin()) {
        std::pop_heap(candidates_.begin(), first_kept, lighter);
        --first_kept;
        kept += first_kept->first;
        if (kept >= wanted) break;
    }
    const double target = uniform * kept;
    double running = 0.0;
    for (auto it = end; it != first_kept;) {
        --it;
        running += it->first;
        if (running > target) return it->second;
    }
    return first_kept->second;
}

void Sampler::log_probabilities(const KernelTable& kernels, const float* logits, int64_t vocab, int32_t chosen, int32_t top, int32_t* ids, float* values) {
    weights_.resize(static_cast<size_t>(vocab));
    const float* weights = weights_.data();
    const float max = kernels.max_value(logits, vocab);
    kernels.softmax_weights(logits, vocab, max, 1.0f, weights_.data());
    // Eight running sums in double: one alone would wait for each addition.
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= vocab; i += 8)
        for (int lane = 0; lane < 8; ++lane) sums[lane] += weights[i + lane];
    for (; i < vocab; ++i) sums[0] += weights[i];
    const double log_sum = std::log(((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7])));
    const auto value = [&](int32_t id) { return static_cast<float>((static_cast<double>(logits[id]) - static_cast<double>(max)) - log_sum); };

    ids[0] = chosen;
    int32_t* best = ids + 1;
    int32_t found = 0;
    for (int32_t id = 0; top > 0 && id < vocab; ++id) {
        if (found == top && !(logits[id] > logits[best[top - 1]])) continue;
        int32_t at = found < top ? found++ : top - 1;
        for (; at > 0 && logits[id] > logits[best[at - 1]]; --at) best[at] = best[at - 1];
        best[at] = id;
    }
    for (int32_t j = found; j < top; ++j) best[j] = -1;
    for (int32_t j = 0; j <= top; ++j) values[j] = ids[j] < 0 ? -std::numeric_limits<float>::infinity() : value(ids[j]);
}

}  // namespace duologue
