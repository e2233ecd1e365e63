#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/sampling.h"
#include "bindings/weights.h"
#include "runtime/executor.h"
#include "runtime/memory.h"

namespace duologue {
namespace {

using Ints = Array<const int32_t, 1>;
using Floats = Array<const float, 1>;
using Matrix = Array<const float, 2>;

// The arrays stay alive as long as the model: numpy owns them, the spec points into them.
struct Model {
    ModelSpec spec;
    std::vector<nb::object> keep_alive;
    bool finished = false;

    const ModelSpec& finished_spec() const {
        require(finished, "Executor: the model's finish() has not been called");
        return spec;
    }

    template <typename A>
    const typename A::Scalar* hold(const A& array) {
        keep_alive.push_back(nb::cast(array));
        return array.data();
    }

    // Null for None; `length` values otherwise.
    const float* hold_optional(const std::optional<Floats>& array, int64_t length, const char* message) {
        if (!array.has_value()) return nullptr;
        require(int64_t(array->shape(0)) == length, message);
        return hold(*array);
    }

    PackedWeight weight(nb::handle packed, bool gated = false) {
        require(nb::cast<bool>(packed.attr("gated")) == gated, "a packed weight is a gated pair where a plain one belongs, or the other way round");
        return weight_of(packed, [this](const auto& array) { hold(array); });
    }
};

class PyExecutor {
public:
    PyExecutor(Model& model, int threads, const std::string& isa) : model_(model), executor_(model.finished_spec(), kernels_named(isa), threads) {}

    void step(Ints tokens, Ints starts, Ints first_position, Array<const int32_t, 2> global_pages, Array<const int32_t, 2> local_pages,
              std::optional<Array<uint8_t, 2>> global_pool, std::optional<Array<uint8_t, 2>> local_pool, Ints logit_tokens, Array<float, 2> logits,
              const std::optional<SamplingArrays>& sampling, std::optional<Array<int32_t, 1>> sampled, bool check_finite) {
        const ModelSpec& spec = model_.spec;
        StepBatch batch{};
        const auto sequences = int64_t(first_position.shape(0));
        require(int64_t(starts.shape(0)) == sequences + 1 && starts(0) == 0 && starts(sequences) == int64_t(tokens.shape(0)),
                "step: starts must run from 0 to the number of tokens");
        batch.tokens = tokens.data();
        batch.starts = starts.data();
        batch.first_position = first_position.data();
        batch.sequences = static_cast<int32_t>(sequences);
        for (size_t i = 0; i < tokens.shape(0); ++i) require(tokens(i) >= 0 && tokens(i) < spec.vocab, "step: a token id is outside the vocabulary");
        int64_t positions = INT64_MAX;
        for (const LayerSpec& layer : spec.layers) positions = std::min(positions, layer.rope.positions);
        for (int64_t s = 0; s < sequences; ++s)
            require(starts(s) < starts(s + 1) && first_position(s) >= 0 && int64_t(first_position(s)) + starts(s + 1) - starts(s) <= positions,
                    "step: a sequence is empty or runs past the model's positions");
        set_pages(batch, kGlobalPages, global_pages, global_pool);
        set_pages(batch, kLocalPages, local_pages, local_pool);
        batch.logit_tokens = logit_tokens.data();
        batch.logit_count = static_cast<int32_t>(logit_tokens.shape(0));
        for (int32_t i = 0; i < batch.logit_count; ++i)
            require(logit_tokens(i) >= 0 && logit_tokens(i) < batch.token_count() && (i == 0 || logit_tokens(i) > logit_tokens(i - 1)),
                    "step: logit_tokens must ascend within the tokens");
        require(int64_t(logits.shape(0)) >= batch.logit_count && int64_t(logits.shape(1)) == spec.vocab, "step: logits must be [logit tokens, vocabulary]");
        batch.logits = logits.data();
        if (sampling.has_value()) {
            require(sampled.has_value() && int64_t(sampled->shape(0)) == batch.logit_count, "step: sampled must have one entry for each logit token");
            batch.inputs = sampling->checked(batch.logit_count, spec.vocab);
            batch.sampling = sampling->rows();
            batch.sampled = sampled->data();
        }
        nb::gil_scoped_release release;
        executor_.step(batch, check_finite);
    }

    int threads() const { return executor_.threads(); }
    int64_t workspace_bytes() const { return executor_.workspace_bytes(); }

private:
    void set_pages(StepBatch& batch, PageKind kind, const Array<const int32_t, 2>& table, const std::optional<Array<uint8_t, 2>>& pool) {
        const int64_t page_bytes = model_.spec.page_bytes[kind];
        if (page_bytes == 0) return;
        require(pool.has_value() && int64_t(pool->shape(1)) == page_bytes, "step: a pool must be [pages, page bytes] of its kind");
        require(int64_t(table.shape(0)) == batch.sequences, "step: a page table must have one row for each sequence");
        for (int64_t s = 0; s < batch.sequences; ++s) {
            const int64_t last = int64_t(batch.first_position[s]) + batch.starts[s + 1] - batch.starts[s] - 1;
            require(last / kPageTokens < int64_t(table.shape(1)), "step: a page table is shorter than its sequence");
            // What lies before every window is given back while the sequence runs, and not read.
            const int64_t needed = kind == kLocalPages ? std::max<int64_t>(0, int64_t(batch.first_position[s]) - model_.spec.widest_window + 1) / kPageTokens : 0;
            for (int64_t p = 0; p <= last / kPageTokens; ++p)
                require(table(s, p) < int64_t(pool->shape(0)) && (table(s, p) >= 0 || p < needed), "step: a page id is outside the pool");
        }
        batch.page_table[kind] = table.data();
        batch.page_columns[kind] = int64_t(table.shape(1));
        batch.pool[kind] = pool->data();
    }

    Model& model_;
    Executor executor_;
};

}  // namespace

void register_executor(nb::module_& m) {
    nb::class_<HugeBuffer>(m, "HugeBuffer")
        .def(nb::init<size_t>(), nb::arg("bytes"))
        .def("read_file", &HugeBuffer::read_file, nb::arg("path"), nb::arg("count"), nb::call_guard<nb::gil_scoped_release>())
        .def("array",
             [](nb::object self) {
                 HugeBuffer& buffer = nb::cast<HugeBuffer&>(self);
                 return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(buffer.data(), {buffer.bytes()}, self);
             });

    nb::class_<Model>(m, "Model")
        .def("__init__",
             [](Model* model, int64_t vocab, int64_t hidden, float norm_eps, nb::handle embedding, nb::handle head, Floats final_norm, float embedding_scale,
                float logit_softcap, std::optional<Floats> embedding_channels) {
                 new (model) Model();
                 model->spec.vocab = vocab;
                 model->spec.hidden = hidden;
                 model->spec.norm_eps = norm_eps;
                 model->spec.embedding_scale = embedding_scale;
                 model->spec.logit_softcap = logit_softcap;
                 model->spec.embedding_channels = model->hold_optional(embedding_channels, hidden, "embedding_channels must be [hidden]");
                 model->spec.embedding = model->weight(embedding);
                 model->spec.head = model->weight(head);
                 model->spec.final_norm = model->hold(final_norm);
                 require(int64_t(final_norm.shape(0)) == hidden, "final_norm must be [hidden]");
                 require(model->spec.embedding.n == vocab && model->spec.embedding.k == hidden && model->spec.head.n == vocab && model->spec.head.k == hidden,
                         "embedding and head must be [vocab, hidden]");
             },
             nb::arg("vocab"), nb::arg("hidden"), nb::arg("norm_eps"), nb::arg("embedding"), nb::arg("head"), nb::arg("final_norm"),
             nb::arg("embedding_scale") = 1.0f, nb::arg("logit_softcap") = 0.0f, nb::arg("embedding_channels") = nb::none())
        .def("add_layer",
             [](Model& model, int heads, int kv_heads, int head_dim, int window, int kv_owner, float norm_eps, float softmax_scale, Matrix rope_cos, Matrix rope_sin,
                Floats attention_norm, Floats mlp_norm, nb::handle qkv, nb::handle output, nb::handle gate_up, nb::typed<nb::sequence, nb::object> down, int mlp, float attention_softcap,
                float qkv_clamp, float mlp_clamp, std::optional<Floats> attention_post_norm, std::optional<Floats> mlp_post_norm, std::optional<Floats> q_norm,
                std::optional<Floats> k_norm, std::optional<Floats> sinks, std::optional<Floats> key_offset) {
                 require(!model.finished, "add_layer: the model is finished");
                 require(int64_t(rope_cos.shape(1)) == head_dim / 2 && rope_sin.shape(0) == rope_cos.shape(0) && rope_sin.shape(1) == rope_cos.shape(1),
                         "rope tables must be [positions, head_dim / 2]");
                 require(int64_t(attention_norm.shape(0)) == model.spec.hidden && int64_t(mlp_norm.shape(0)) == model.spec.hidden, "norm weights must be [hidden]");
                 LayerSpec layer{};
                 layer.heads = heads;
                 layer.kv_heads = kv_heads;
                 layer.head_dim = head_dim;
                 layer.window = window;
                 layer.kv_owner = kv_owner;
                 layer.norm_eps = norm_eps;
                 layer.softmax_scale = softmax_scale;
                 layer.attention_softcap = attention_softcap;
                 layer.qkv_clamp = qkv_clamp;
                 layer.mlp_clamp = mlp_clamp;
                 layer.mlp = static_cast<Epilogue>(mlp);
                 layer.attention_post_norm = model.hold_optional(attention_post_norm, model.spec.hidden, "norm weights must be [hidden]");
                 layer.mlp_post_norm = model.hold_optional(mlp_post_norm, model.spec.hidden, "norm weights must be [hidden]");
                 layer.q_norm = model.hold_optional(q_norm, head_dim, "q_norm and k_norm must be [head_dim]");
                 layer.k_norm = model.hold_optional(k_norm, head_dim, "q_norm and k_norm must be [head_dim]");
                 layer.sinks = model.hold_optional(sinks, heads, "sinks must be [heads]");
                 layer.key_offset = model.hold_optional(key_offset, int64_t(kv_heads) * head_dim, "key_offset must be [kv_heads * head_dim]");
                 layer.rope = {model.hold(rope_cos), model.hold(rope_sin), int64_t(rope_cos.shape(0))};
                 layer.attention_norm = model.hold(attention_norm);
                 layer.mlp_norm = model.hold(mlp_norm);
                 layer.qkv = model.weight(qkv);
                 layer.output.push_back(model.weight(output));
                 layer.gate_up = model.weight(gate_up, is_gated(layer.mlp));
                 for (nb::handle group : down) layer.down.push_back(model.weight(group));
                 model.spec.layers.push_back(layer);
             },
             nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("window"), nb::arg("kv_owner"), nb::arg("norm_eps"), nb::arg("softmax_scale"),
             nb::arg("rope_cos"), nb::arg("rope_sin"), nb::arg("attention_norm"), nb::arg("mlp_norm"), nb::arg("qkv"), nb::arg("output"), nb::arg("gate_up"),
             nb::arg("down"), nb::arg("mlp") = static_cast<int>(Epilogue::kGatedSilu), nb::arg("attention_softcap") = 0.0f, nb::arg("qkv_clamp") = 0.0f,
             nb::arg("mlp_clamp") = 0.0f, nb::arg("attention_post_norm") = nb::none(), nb::arg("mlp_post_norm") = nb::none(), nb::arg("q_norm") = nb::none(),
             nb::arg("k_norm") = nb::none(), nb::arg("sinks") = nb::none(), nb::arg("key_offset") = nb::none())
        .def("finish",
             [](Model& model) {
                 model.spec.finish();
                 model.finished = true;
             })
        .def_prop_ro("global_page_bytes", [](const Model& model) { return model.spec.page_bytes[kGlobalPages]; })
        .def_prop_ro("local_page_bytes", [](const Model& model) { return model.spec.page_bytes[kLocalPages]; });

    nb::class_<PyExecutor>(m, "Executor")
        .def(nb::init<Model&, int, const std::string&>(), nb::arg("model"), nb::arg("threads"), nb::arg("isa") = "", nb::keep_alive<1, 2>())
        .def("step", &PyExecutor::step, nb::arg("tokens"), nb::arg("starts"), nb::arg("first_position"), nb::arg("global_pages"), nb::arg("local_pages"),
             nb::arg("global_pool").none(), nb::arg("local_pool").none(), nb::arg("logit_tokens"), nb::arg("logits"), nb::arg("sampling").none(),
             nb::arg("sampled").none(), nb::arg("check_finite"))
        .def_prop_ro("threads", &PyExecutor::threads)
        .def_prop_ro("workspace_bytes", &PyExecutor::workspace_bytes);
}

}  // namespace duologue
