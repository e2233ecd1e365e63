#include "runtime/sampler.h"

#include <algorithm>
#include <limits>

#include "runtime/philox.h"

namespace duologue {
namespace {

// Heavier first, then lower id.
bool heavier(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
}

}  // namespace

int32_t Sampler::sample(const KernelTable& kernels, const float* logits, int64_t vocab, const SamplingRow& row) {
    // So close to zero that its inverse overflows, a temperature is greedy too.
    const float inv_temperature = 1.0f / row.temperature;
    if (!(inv_temperature <= std::numeric_limits<float>::max())) return static_cast<int32_t>(kernels.argmax(logits, vocab));

    weights_.resize(static_cast<size_t>(vocab));
    float* weights = weights_.data();
    const float total = kernels.softmax_weights(logits, vocab, kernels.max_value(logits, vocab), inv_temperature, weights);
    const double uniform = philox_uniform(row.seed, row.choice, row.position);

    const bool has_top_k = row.top_k > 0 && row.top_k < vocab;
    if (!has_top_k && row.top_p >= 1.0f) {
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

    // Tokens below (1 - p) / vocab of the mass add up to less than 1 - p, so the nucleus never needs them: few are left to sort.
    // With top-k the mass is that of the k heaviest, which are found first.
    const float floor = has_top_k ? 0.0f : (1.0f - row.top_p) * total / static_cast<float>(vocab);
    candidates_.clear();
    for (int64_t i = 0; i < vocab; ++i)
        if (weights[i] > 0.0f && weights[i] >= floor) candidates_.emplace_back(weights[i], static_cast<int32_t>(i));
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

}  // namespace duologue
