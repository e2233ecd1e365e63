// The attention of one step, cut into items that threads take one after another.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kernel_table.h"
#include "runtime/model.h"
#include "runtime/step_batch.h"

namespace duologue {

// Layers of one shape cut the same batch the same way.
struct AttentionShape {
    int32_t kv_heads;
    int32_t heads_per_kv;
    int32_t head_dim;
    int32_t window;  // 0: global

    static AttentionShape of(const LayerSpec& layer) { return {layer.kv_heads, layer.heads / layer.kv_heads, layer.head_dim, layer.window}; }
    bool operator==(const AttentionShape&) const = default;
};

// What one thread works in; see AttentionPlan::reserve.
struct AttentionScratch {
    std::vector<uint8_t> kernel;
    std::vector<float> states;  // two attention states of a row block
};

// One layer of the step: where its queries, keys and values lie, and where its results go.
struct LayerAttention {
    const StepBatch& batch;
    const LayerSpec& layer;
    const int8_t* q_codes;  // [kv_heads, tokens, heads_per_kv, head_dim]
    const float* q_scale;   // [kv_heads, tokens, heads_per_kv], softmax scale included
    int64_t page_bytes;
    int64_t kv_offset;      // of the owner's KV inside a page
    float* out;             // [tokens, query columns]
};

class AttentionPlan {
public:
    explicit AttentionPlan(const AttentionShape& shape) : shape_(shape) {}

    const AttentionShape& shape() const { return shape_; }

    // Cuts the batch for so many threads. For every step, before any of its run().
    void cut(const StepBatch& batch, int threads);
    // Makes the scratch large enough for run(); it may be shared with other plans.
    void reserve(const KernelTable& kernels, AttentionScratch& scratch) const;
    // Computes items until none is left. All threads of the step call it with the same `next`, 0 before, and scratch of their
    // own; the layer is done when all have returned. Results depend on neither the cut nor the threads.
    void run(const KernelTable& kernels, const LayerAttention& layer, std::atomic<int64_t>& next, int threads, AttentionScratch& scratch);

    int64_t bytes() const;

private:
    // Rows of one sequence and KV head. `split` < 0: every split of the keys, one after the other; otherwise that split only,
    // and the last item of its group to finish merges the group's partial states in ascending order.
    struct Item {
        int32_t sequence;
        int32_t kv_head;
        int32_t token_begin;  // within the step's flat tokens
        int32_t token_end;
        int32_t split;
        int32_t group;
    };
    struct Group {
        int32_t first_split;
        int32_t splits;
        int64_t state_offset;  // floats, into partial_
    };

    int32_t first_key(int32_t position) const { return shape_.window > 0 && position >= shape_.window ? position - shape_.window + 1 : 0; }
    int32_t block_tokens() const;  // of an item, at most
    const uint8_t* first_block(const LayerAttention& layer, const Item& item) const;
    void run_item(const KernelTable& kernels, const LayerAttention& layer, const Item& item, const Item* next_item, AttentionScratch& scratch);
    void finish(const KernelTable& kernels, const LayerAttention& layer, const Item& item, const AttentionState& state, const AttentionState& spare) const;

    AttentionShape shape_;
    std::vector<Item> items_;
    std::vector<Group> groups_;
    std::vector<std::atomic<int32_t>> pending_;  // [groups] items of the group that have not finished
    std::vector<float> partial_;                 // states of all groups' items
};

}  // namespace duologue
