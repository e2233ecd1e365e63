// Runs forward steps of one model.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "runtime/attention_plan.h"
#include "runtime/model.h"
#include "runtime/sampler.h"
#include "runtime/step_batch.h"
#include "runtime/thread_team.h"

namespace duologue {

class Executor {
public:
    Executor(const ModelSpec& spec, const KernelTable& kernels, int threads);

    // Runs the step and returns when its logits and samples are written. `check_finite` looks at the input of every
    // quantiser and throws std::runtime_error naming the first tensor that is not finite.
    void step(const StepBatch& batch, bool check_finite);

    int threads() const { return team_.size(); }
    // Bytes of all buffers kept between steps; may be asked while a step runs.
    int64_t workspace_bytes() const { return workspace_bytes_.load(std::memory_order_relaxed); }

private:
    struct ThreadScratch {
        std::vector<uint8_t> gemm;
        AttentionScratch attention;
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
    void note_if_not_finite(const float* x, int64_t count, size_t layer, const char* tensor);
    int64_t count_workspace_bytes() const;

    const ModelSpec& spec_;
    const KernelTable& kernels_;
    ThreadTeam team_;
    std::atomic<int64_t> workspace_bytes_{0};
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
