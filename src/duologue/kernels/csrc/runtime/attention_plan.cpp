#include "runtime/attention_plan.h"

#include <algorithm>

#include "runtime/buffers.h"

namespace duologue {
namespace {

// Query rows of one attention call: enough to reuse an expanded key tile, few enough to share the work evenly.
constexpr int32_t kAttentionRows = 192;

AttentionState state_at(float* base, int64_t rows) { return {base, base + rows, base + 2 * rows}; }
int64_t state_floats(int64_t rows, int64_t head_dim) { return round_up(rows * (head_dim + 2), 16); }

}  // namespace

int32_t AttentionPlan::block_tokens() const { return std::max(1, kAttentionRows / shape_.heads_per_kv); }

int64_t AttentionPlan::bytes() const { return bytes_of(items_, groups_, pending_, partial_); }

void AttentionPlan::reserve(const KernelTable& kernels, AttentionScratch& scratch) const {
    const int32_t rows = block_tokens() * shape_.heads_per_kv;
    grow(scratch.kernel, kernels.attention_scratch_bytes(rows, shape_.head_dim));
    grow(scratch.states, 2 * state_floats(rows, shape_.head_dim));
}

void AttentionPlan::cut(const StepBatch& batch, int threads) {
    items_.clear();
    groups_.clear();
    const int32_t block = block_tokens();
    int64_t whole_items = 0;
    for (int32_t s = 0; s < batch.sequences; ++s)
        whole_items += int64_t(shape_.kv_heads) * ((batch.starts[s + 1] - batch.starts[s] + block - 1) / block);
    // With plenty of items the threads are busy without cutting keys; a cut costs its partial states.
    const bool cut_keys = threads > 1 && whole_items < 8 * threads;
    int64_t state_offset = 0;
    for (int32_t s = 0; s < batch.sequences; ++s) {
        for (int32_t begin = batch.starts[s]; begin < batch.starts[s + 1]; begin += block) {
            const int32_t end = std::min(begin + block, batch.starts[s + 1]);
            const int32_t first_split = first_key(batch.position(s, begin)) / kSplitTokens;
            const int32_t splits = batch.position(s, end - 1) / kSplitTokens - first_split + 1;
            for (int32_t h = 0; h < shape_.kv_heads; ++h) {
                if (cut_keys && splits > 1) {
                    const auto group = static_cast<int32_t>(groups_.size());
                    groups_.push_back({first_split, splits, state_offset});
                    state_offset += splits * state_floats(int64_t(end - begin) * shape_.heads_per_kv, shape_.head_dim);
                    for (int32_t i = 0; i < splits; ++i) items_.push_back({s, h, begin, end, first_split + i, group});
                } else {
                    items_.push_back({s, h, begin, end, -1, -1});
                }
            }
        }
    }
    grow(partial_, state_offset);
    if (pending_.size() < groups_.size()) pending_ = std::vector<std::atomic<int32_t>>(groups_.size() * 2);
    for (size_t i = 0; i < groups_.size(); ++i) pending_[i].store(groups_[i].splits, std::memory_order_relaxed);
    // Late rows see the most keys: the longest items first, so that the threads finish together.
    if (!cut_keys) std::reverse(items_.begin(), items_.end());
}

void AttentionPlan::run(const KernelTable& kernels, const LayerAttention& layer, std::atomic<int64_t>& next, int threads, AttentionScratch& scratch) {
    const auto count = static_cast<int64_t>(items_.size());
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        // Threads mostly take turns, so the item that this one takes next is about `threads` further on.
        const int64_t later = i + threads;
        run_item(kernels, layer, items_[static_cast<size_t>(i)], later < count ? &items_[static_cast<size_t>(later)] : nullptr, scratch);
    }
}

const uint8_t* AttentionPlan::first_block(const LayerAttention& layer, const Item& item) const {
    const PageKind kind = layer.layer.kind();
    const int32_t key = std::max(first_key(layer.batch.position(item.sequence, item.token_begin)), item.split * kSplitTokens);
    return layer.batch.pool[kind] + layer.batch.pages(kind, item.sequence)[key / kPageTokens] * layer.page_bytes + layer.kv_offset +
           item.kv_head * KvBlockLayout{shape_.head_dim}.bytes();
}

void AttentionPlan::run_item(const KernelTable& kernels, const LayerAttention& layer, const Item& item, const Item* next_item, AttentionScratch& scratch) {
    const int64_t tokens = layer.batch.token_count(), dim = shape_.head_dim;
    const PageKind kind = layer.layer.kind();
    const int64_t first_row = (item.kv_head * tokens + item.token_begin) * shape_.heads_per_kv;
    const int32_t rows = (item.token_end - item.token_begin) * shape_.heads_per_kv;
    AttentionArgs args{
        layer.q_codes + first_row * dim,
        layer.q_scale + first_row,
        rows,
        shape_.heads_per_kv,
        layer.batch.position(item.sequence, item.token_begin),
        shape_.window,
        shape_.head_dim,
        layer.batch.pool[kind],
        layer.page_bytes,
        layer.kv_offset + item.kv_head * KvBlockLayout{dim}.bytes(),
        layer.batch.pages(kind, item.sequence),
        layer.layer.attention_softcap,
    };
    const uint8_t* block_of_next_item = next_item == nullptr ? nullptr : first_block(layer, *next_item);
    args.next_block = block_of_next_item;
    const int64_t stride = state_floats(rows, dim);
    const AttentionState running = state_at(scratch.states.data(), rows), spare = state_at(scratch.states.data() + stride, rows);
    if (item.split >= 0) {
        const Group& group = groups_[static_cast<size_t>(item.group)];
        float* states = partial_.data() + group.state_offset;
        kernels.attention_split(args, item.split, state_at(states + (item.split - group.first_split) * stride, rows), scratch.kernel.data());
        std::atomic<int32_t>& pending = pending_[static_cast<size_t>(item.group)];
        if (pending.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        pending.store(group.splits, std::memory_order_relaxed);  // for the next layer
        for (int32_t i = 1; i < group.splits; ++i) kernels.attention_merge(state_at(states, rows), state_at(states + i * stride, rows), rows, dim);
        finish(kernels, layer, item, state_at(states, rows), spare);
        return;
    }
    const int32_t first_split = first_key(args.first_position) / kSplitTokens;
    const int32_t last_split = layer.batch.position(item.sequence, item.token_end - 1) / kSplitTokens;
    for (int32_t split = first_split; split <= last_split; ++split) {
        args.next_block = split < last_split ? args.block(int64_t(split + 1) * kSplitTokens) : block_of_next_item;
        kernels.attention_split(args, split, split == first_split ? running : spare, scratch.kernel.data());
        if (split > first_split) kernels.attention_merge(running, spare, rows, dim);
    }
    finish(kernels, layer, item, running, spare);
}

// Adds the sinks and writes the item's rows of the result.
void AttentionPlan::finish(const KernelTable& kernels, const LayerAttention& layer, const Item& item, const AttentionState& state,
                           const AttentionState& spare) const {
    const int64_t dim = shape_.head_dim, heads = shape_.heads_per_kv, rows = (item.token_end - item.token_begin) * heads;
    if (layer.layer.sinks != nullptr) {
        fill_sinks(spare, layer.layer.sinks + item.kv_head * heads, heads, rows, dim);
        kernels.attention_merge(state, spare, rows, dim);
    }
    for (int32_t token = item.token_begin; token < item.token_end; ++token) {
        const int64_t row = (token - item.token_begin) * heads;
        const AttentionState of_token{state.max + row, state.sum + row, state.out + row * dim};
        kernels.attention_finish(of_token, heads, dim, layer.out + token * layer.layer.query_columns() + item.kv_head * heads * dim, dim);
    }
}

}  // namespace duologue
