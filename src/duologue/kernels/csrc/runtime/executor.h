// Runs forward steps of one model: a flat batch of tokens from any mix of prefills and decodes.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "runtime/model.h"
#include "runtime/sampler.h"
#include "runtime/thread_team.h"

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
    int32_t* sampled;               // [logit_count]

    int32_t token_count() const { return starts[sequences]; }
};

class Executor {
public:
    Executor(const ModelSpec& spec, const KernelTable& kernels, int threads);

    // Runs the step and returns when its logits and samples are written. `check_finite` looks at the input of every
    // quantiser and throws std::runtime_error naming the first tensor that is not finite.
    void step(const StepBatch& batch, bool check_finite);

    int threads() const { return team_.size(); }
    int64_t workspace_bytes() const;

private:
    // Rows of one sequence and KV head. `split` < 0: every split of the keys, one after the other; otherwise that split only,
    // and the last item of its group to finish merges the group's partial states in ascending order.
    struct AttentionItem {
        int32_t sequence;
        int32_t kv_head;
        int32_t token_begin;  // within the step's flat tokens
        int32_t token_end;
        int32_t split;
        int32_t group;
    };
    struct AttentionGroup {
        int32_t first_split;
        int32_t splits;
        int64_t state_offset;  // floats, into partial_
    };
    // Layers of one attention shape cut the same batch the same way.
    struct AttentionPlan {
        int32_t kv_heads = 0, heads_per_kv = 0, head_dim = 0, window = 0;
        std::vector<AttentionItem> items;
        std::vector<AttentionGroup> groups;
        std::vector<std::atomic<int32_t>> pending;  // [groups] items of the group that have not finished
        std::vector<float> partial;
    };
    struct ThreadScratch {
        std::vector<uint8_t> gemm;
        std::vector<uint8_t> attention;
        std::vector<float> states;  // two attention states of a row block
        std::vector<int8_t> codes;  // the row of a one-token step, which every thread quantises for itself
        std::vector<float> scale;   // its scales, one for each group of a product's inputs
        Sampler sampler;
    };
    struct alignas(64) Counter {
        std::atomic<int64_t> next{0};
    };
    // A quantised activation as a GEMM reads it: rows of all groups' codes, and the scales of one group after another.
    struct Quantized {
        const int8_t* codes;
        const float* scale;
        int64_t stride;  // bytes from row to row
    };

    void reserve(const StepBatch& batch);
    void plan_attention(const StepBatch& batch, AttentionPlan& plan);
    void forward(const StepBatch& batch, int thread);
    void embed(const StepBatch& batch, int thread);
    template <typename QuantizeRows>
    Quantized quantize_phase(int64_t rows, int64_t stride, int thread, QuantizeRows&& quantize);
    void gemm_phase(const Quantized& a, int64_t rows, const PackedWeight& w, Epilogue epilogue, float* out, int64_t out_stride, int thread,
                    Counter* counters, float limit = 0.0f);
    void gemm_part(const Quantized& a, int64_t rows, const PackedWeight& w, Epilogue epilogue, float* out, int64_t out_stride, int thread,
                   Counter* counters, float limit);
    void add_phase(const Quantized& a, int64_t rows, const std::vector<PackedWeight>& groups, const float* post_norm, float norm_eps, float* x, int thread,
                   Counter* counters);
    int64_t row_blocks(int64_t rows, int64_t depth) const;
    void rope_and_store(const StepBatch& batch, size_t layer_index, int thread);
    void attention_phase(const StepBatch& batch, size_t layer_index, int thread, Counter& counter);
    const uint8_t* first_block(const StepBatch& batch, size_t layer_index, const AttentionItem& item) const;
    void run_item(const StepBatch& batch, size_t layer_index, const AttentionItem& item, const AttentionItem* next_item, AttentionPlan& plan,
                  ThreadScratch& scratch);
    void note_if_not_finite(const float* x, int64_t count, size_t layer, const char* tensor);
    int32_t position_of(const StepBatch& batch, int64_t token) const;

    const ModelSpec& spec_;
    const KernelTable& kernels_;
    ThreadTeam team_;
    bool check_finite_ = false;
    std::mutex bad_mutex_;
    std::string bad_input_;  // the first quantiser input of the step that was not finite

    // Activations of one step; grown to the largest step seen.
    std::vector<float> x_;           // [tokens, hidden], the residual stream
    std::vector<int8_t> codes_;      // [tokens, depth] of the GEMM at hand
    std::vector<float> scale_;       // [groups, tokens]
    std::vector<float> qkv_;         // [tokens, q + k + v columns]
    std::vector<int8_t> q_codes_;    // [kv_heads, tokens, heads_per_kv, head_dim]
    std::vector<float> q_scale_;     // [kv_heads, tokens, heads_per_kv]
    std::vector<float> attention_;   // [tokens, query columns]
    std::vector<float> mlp_;         // [tokens, MLP width]
    std::vector<float> branch_;      // [tokens, hidden]: what a post-norm is applied to, for models that have one
    std::vector<float> last_x_;      // [logit_count, hidden]
    std::vector<int32_t> sequence_;  // [tokens]

    std::vector<AttentionPlan> plans_;
    std::vector<size_t> plan_of_layer_;
    std::vector<ThreadScratch> scratch_;
    std::vector<Counter> counters_;  // [layers * counters_per_layer_ + 2][counters_per_phase_]
    size_t counters_per_layer_;      // as many for the down projection as it has groups
    size_t counters_per_phase_;      // blocks of rows of the deepest product
};

}  // namespace duologue
