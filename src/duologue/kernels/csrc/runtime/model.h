// A decoder described as data: one LayerSpec per layer, pointers into the packed weights.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel_table.h"

namespace duologue {

// A sequence has one page table per kind.
enum PageKind : int32_t { kGlobalPages = 0, kLocalPages = 1, kPageKinds = 2 };

struct RopeTable {
    const float* cos;  // [positions, head_dim / 2]
    const float* sin;
    int64_t positions;
};

struct LayerSpec {
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t window;    // 0: sees every earlier position
    int32_t kv_owner;  // this layer's own index, or the earlier layer of the same kind whose KV it reads
    float norm_eps;
    float softmax_scale;
    float attention_softcap;  // 0: none
    float qkv_clamp;          // 0: none
    float mlp_clamp;          // 0: none
    Epilogue mlp;             // of gate_up: a gated pair's activation, or kRelu2
    RopeTable rope;
    const float* attention_norm;       // [hidden]
    const float* mlp_norm;             // [hidden]
    const float* attention_post_norm;  // [hidden] or null: the output projection is added as it is
    const float* mlp_post_norm;        // [hidden] or null: the same for the down projection
    const float* q_norm;               // [head_dim] or null
    const float* k_norm;               // [head_dim] or null
    const float* sinks;                // [heads] or null
    const float* key_offset;           // [kv_heads * head_dim] or null: taken off keys before they are stored
    PackedWeight qkv;      // q rows, then k and v rows when the layer owns its KV
    std::vector<PackedWeight> output;  // one group
    PackedWeight gate_up;  // a gated pair, or up alone
    std::vector<PackedWeight> down;  // one for each group of MLP channels; a row has a scale for each, and their products add up in order

    PageKind kind() const { return window > 0 ? kLocalPages : kGlobalPages; }
    int64_t query_columns() const { return int64_t(heads) * head_dim; }
    int64_t kv_columns() const { return int64_t(kv_heads) * head_dim; }
    int64_t mlp_columns() const { return int64_t(down.size()) * down.front().k; }
};

struct ModelSpec {
    int64_t vocab = 0;
    int64_t hidden = 0;
    float norm_eps = 0.0f;
    float embedding_scale = 1.0f;
    float logit_softcap = 0.0f;  // 0: none
    PackedWeight embedding;  // [vocab, hidden]; one row per token, looked up in the packed layout
    const float* embedding_channels = nullptr;  // [hidden] or null: what each channel of a row is multiplied by
    PackedWeight head;
    const float* final_norm = nullptr;  // [hidden]
    std::vector<LayerSpec> layers;

    // Derived by finish(): where each layer's KV blocks start inside a page of its kind, the page sizes, and how far back
    // local pages are read.
    std::vector<int64_t> kv_offset;     // [layers], the owner's for layers that share
    int64_t page_bytes[kPageKinds] = {0, 0};
    int32_t widest_window = 0;          // 0 without local layers

    // Computes the derived fields. Throws std::invalid_argument naming the layer whose description contradicts itself.
    void finish();
};

}  // namespace duologue
