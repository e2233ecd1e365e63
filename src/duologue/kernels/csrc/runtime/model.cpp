#include "runtime/model.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace duologue {
namespace {

void require_layer(bool condition, size_t layer, const std::string& what) {
    if (!condition) throw std::invalid_argument("layer " + std::to_string(layer) + ": " + what);
}

}  // namespace

void ModelSpec::finish() {
    kv_offset.assign(layers.size(), 0);
    page_bytes[kGlobalPages] = page_bytes[kLocalPages] = 0;
    widest_window = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
        const LayerSpec& layer = layers[i];
        require_layer(layer.head_dim % 16 == 0 && layer.head_dim >= 16 && layer.head_dim <= 256, i,
                      "head_dim " + std::to_string(layer.head_dim) + " is not a multiple of 16 between 16 and 256");
        require_layer(layer.kv_heads > 0 && layer.heads % layer.kv_heads == 0, i, "query heads are not a multiple of KV heads");
        require_layer(layer.window >= 0, i, "the window is negative");
        require_layer(layer.kv_owner >= 0 && size_t(layer.kv_owner) <= i, i, "kv_owner names a later layer");
        const LayerSpec& owner = layers[size_t(layer.kv_owner)];
        require_layer(size_t(owner.kv_owner) == size_t(layer.kv_owner), i, "kv_owner names a layer that owns no KV");
        require_layer(owner.window == layer.window && owner.kv_heads == layer.kv_heads && owner.head_dim == layer.head_dim, i,
                      "kv_owner names a layer of another window or KV shape");
        require_layer(owner.rope.cos == layer.rope.cos && owner.rope.sin == layer.rope.sin, i, "kv_owner names a layer with other RoPE tables");
        widest_window = std::max(widest_window, layer.window);
        const bool owns = size_t(layer.kv_owner) == i;
        require_layer(layer.qkv.k == hidden && layer.qkv.n == layer.query_columns() + (owns ? 2 * layer.kv_columns() : 0), i, "qkv has the wrong shape");
        require_layer(layer.output.size() == 1 && layer.output.front().k == layer.query_columns() && layer.output.front().n == hidden, i, "the output projection has the wrong shape");
        require_layer(is_gated(layer.mlp) || layer.mlp == Epilogue::kRelu2, i, "the MLP has an unknown activation");
        const int64_t halves = is_gated(layer.mlp) ? 2 : 1;
        require_layer(layer.gate_up.k == hidden && !layer.down.empty() && layer.gate_up.n == halves * layer.mlp_columns(), i, "the MLP has the wrong shape");
        for (const PackedWeight& w : layer.down)
            require_layer(w.n == hidden && w.k == layer.down.front().k && w.k % 16 == 0, i, "the MLP has the wrong shape");
        require_layer((layer.attention_post_norm == nullptr) == (layer.mlp_post_norm == nullptr), i, "only one of two post-norms is there");
        require_layer(!owns || (layer.q_norm == nullptr) == (layer.k_norm == nullptr), i, "only one of q_norm and k_norm is there");
        if (owns) {
            kv_offset[i] = page_bytes[layer.kind()];
            page_bytes[layer.kind()] += layer.kv_heads * KvBlockLayout{layer.head_dim}.bytes();
        } else {
            kv_offset[i] = kv_offset[size_t(layer.kv_owner)];
        }
    }
    for (int64_t& bytes : page_bytes) bytes = round_up(bytes, 64);
}

}  // namespace duologue
