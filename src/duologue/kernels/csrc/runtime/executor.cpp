#include "runtime/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "runtime/buffers.h"

namespace duologue {
namespace {

// Up to so many rows, columns are cut over the threads and each weight is read by one of them.
constexpr int64_t kFewRows = 64;

enum CounterOf : size_t { kQkv, kAttention, kOutput, kGateUp, kDown };

struct Range {
    int64_t begin, end;
};

// The part of `count` that thread `thread` of `threads` takes, in multiples of `unit`.
Range static_part(int64_t count, int64_t unit, int thread, int threads) {
    const int64_t units = (count + unit - 1) / unit;
    const int64_t begin = units * thread / threads * unit, end = units * (thread + 1) / threads * unit;
    return {std::min(begin, count), std::min(end, count)};
}

}  // namespace

Executor::Executor(const ModelSpec& spec, const KernelTable& kernels, int threads)
    : spec_(spec),
      kernels_(kernels),
      team_(threads),
      scratch_(static_cast<size_t>(team_.size())),
      counters_per_layer_(0),
      counters_per_phase_(1) {
    for (const LayerSpec& layer : spec.layers) {
        counters_per_layer_ = std::max(counters_per_layer_, kDown + layer.down.size());
        const AttentionShape shape = AttentionShape::of(layer);
        auto found = std::find_if(plans_.begin(), plans_.end(), [&](const AttentionPlan& plan) { return plan.shape() == shape; });
        if (found == plans_.end()) found = plans_.emplace(found, shape);
        plan_of_layer_.push_back(static_cast<size_t>(found - plans_.begin()));
    }
    workspace_bytes_ = count_workspace_bytes();
}

int64_t Executor::count_workspace_bytes() const {
    int64_t bytes = bytes_of(x_, codes_, scale_, qkv_, q_codes_, q_scale_, attention_, mlp_, branch_, last_x_, sequence_);
    bytes += bytes_of(plans_, plan_of_layer_, scratch_, counters_);
    for (const AttentionPlan& plan : plans_) bytes += plan.bytes();
    for (const ThreadScratch& scratch : scratch_)
        bytes += bytes_of(scratch.gemm, scratch.attention.kernel, scratch.attention.states, scratch.codes, scratch.scale) + scratch.sampler.bytes();
    return bytes;
}

void Executor::reserve(const StepBatch& batch) {
    const int64_t tokens = batch.token_count();
    int64_t qkv = 0, query = 0, heads = 0, mlp = 0, depth = round_up(spec_.hidden, kPackDepth), head_dim = 0;
    int64_t groups = 1;
    bool post_norms = false;
    for (const LayerSpec& layer : spec_.layers) {
        qkv = std::max(qkv, layer.qkv.n);
        query = std::max(query, layer.query_columns());
        heads = std::max<int64_t>(heads, layer.heads);
        mlp = std::max(mlp, layer.mlp_columns());
        depth = std::max({depth, layer.mlp_columns(), layer.output.front().k_padded()});
        groups = std::max(groups, static_cast<int64_t>(layer.down.size()));
        head_dim = std::max<int64_t>(head_dim, layer.head_dim);
        post_norms = post_norms || layer.attention_post_norm != nullptr;
    }
    grow(x_, tokens * spec_.hidden);
    grow(codes_, std::max<int64_t>(tokens, batch.logit_count) * depth);
    grow(scale_, std::max<int64_t>(tokens, batch.logit_count) * groups);
    grow(qkv_, tokens * qkv);
    grow(q_codes_, tokens * query);
    grow(q_scale_, tokens * heads);
    grow(attention_, tokens * query);
    grow(mlp_, tokens * mlp);
    if (post_norms) grow(branch_, tokens * spec_.hidden);
    grow(last_x_, batch.logit_count * spec_.hidden);
    grow(sequence_, tokens);
    // What a deep map needs says nothing of a shallow one: the kernels block rows by depth.
    const int64_t rows = std::max<int64_t>(tokens, batch.logit_count);
    int64_t gemm_bytes = 0;
    size_t blocks = 1;
    const auto reserve_for = [&](const PackedWeight& w) {
        gemm_bytes = std::max(gemm_bytes, kernels_.gemm_scratch_bytes(rows, w.k));
        blocks = std::max(blocks, static_cast<size_t>(row_blocks(rows, w.k)));
    };
    reserve_for(spec_.head);
    for (const LayerSpec& layer : spec_.layers)
        for (const PackedWeight* w : {&layer.qkv, &layer.output.front(), &layer.gate_up, &layer.down.front()}) reserve_for(*w);
    const size_t phases = spec_.layers.size() * counters_per_layer_ + 2;
    if (counters_.size() < phases * blocks) counters_ = std::vector<Counter>(phases * blocks);
    counters_per_phase_ = blocks;
    for (ThreadScratch& scratch : scratch_) {
        grow(scratch.gemm, gemm_bytes);
        grow(scratch.codes, depth);
        grow(scratch.scale, groups);
        for (const AttentionPlan& plan : plans_) plan.reserve(kernels_, scratch.attention);
    }
}

void Executor::step(const StepBatch& batch, bool check_finite) {
    const int32_t tokens = batch.token_count();
    if (tokens == 0) return;
    reserve(batch);
    for (int32_t s = 0; s < batch.sequences; ++s)
        for (int32_t i = batch.starts[s]; i < batch.starts[s + 1]; ++i) sequence_[static_cast<size_t>(i)] = s;
    for (AttentionPlan& plan : plans_) plan.cut(batch, team_.size());
    for (Counter& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
    check_finite_ = check_finite;
    bad_input_.clear();
    team_.run([&](int thread) { forward(batch, thread); });
    workspace_bytes_.store(count_workspace_bytes(), std::memory_order_relaxed);
    if (!bad_input_.empty()) throw std::runtime_error(bad_input_ + " holds a NaN or an infinity");
}

void Executor::note_if_not_finite(const float* x, int64_t count, size_t layer, const char* tensor) {
    if (kernels_.all_finite(x, count)) return;
    const std::lock_guard<std::mutex> lock(bad_mutex_);
    if (bad_input_.empty()) bad_input_ = "layer " + std::to_string(layer) + ": " + tensor;
}

int64_t Executor::row_blocks(int64_t rows, int64_t depth) const {
    const int64_t block = kernels_.gemm_block_rows(rows, depth);
    return (rows + block - 1) / block;
}

// One token: every thread quantises it for itself, which is cheaper than meeting at a barrier. More: each thread its rows.
template <typename QuantizeRows>
Executor::Quantized Executor::quantize_phase(int64_t rows, int64_t stride, int thread, QuantizeRows&& quantize) {
    if (rows == 1) {
        ThreadScratch& own = scratch_[static_cast<size_t>(thread)];
        quantize(int64_t(0), int64_t(1), own.codes.data(), own.scale.data());
        return {own.codes.data(), own.scale.data(), stride};
    }
    const Range part = static_part(rows, 1, thread, team_.size());
    if (part.begin < part.end) quantize(part.begin, part.end - part.begin, codes_.data() + part.begin * stride, scale_.data() + part.begin);
    team_.barrier();
    return {codes_.data(), scale_.data(), stride};
}

void Executor::gemm_phase(const Quantized& a, int64_t rows, const PackedWeight& w, Epilogue epilogue, float* out, int64_t out_stride, int thread,
                          Counter* counters, float limit) {
    gemm_part(a, rows, w, epilogue, out, out_stride, thread, counters, limit);
    team_.barrier();
}

// What this thread does of a product.
void Executor::gemm_part(const Quantized& a, int64_t rows, const PackedWeight& w, Epilogue epilogue, float* out, int64_t out_stride, int thread,
                         Counter* counters, float limit) {
    GemmArgs args{a.codes, a.stride, a.scale, &w, epilogue, out, out_stride, nullptr, limit};
    void* scratch = scratch_[static_cast<size_t>(thread)].gemm.data();
    if (rows <= kFewRows) {
        // Few rows: the weights are the traffic, so each is read by one thread.
        const Range columns = static_part(w.n_padded(), 32, thread, team_.size());
        if (columns.begin < columns.end) kernels_.gemm(args, 0, rows, columns.begin, columns.end, scratch);
    } else {
        // Many rows: each thread prepares a block of rows of its own and takes its columns in small pieces, then helps with the other
        // blocks. On a shared machine threads are seldom equally fast, and a piece is a tenth of a millisecond.
        const int64_t block = kernels_.gemm_block_rows(rows, w.k), blocks = row_blocks(rows, w.k);
        for (int64_t i = 0; i < blocks; ++i) {
            const int64_t which = (blocks * thread / team_.size() + i) % blocks, begin = which * block;
            args.rows_ready = false;
            for (int64_t column; (column = counters[which].next.fetch_add(kPackColumns, std::memory_order_relaxed)) < w.n_padded();) {
                kernels_.gemm(args, begin, std::min(begin + block, rows), column, column + kPackColumns, scratch);
                args.rows_ready = true;
            }
        }
    }
}

// x += a W^T, or x += rmsnorm(a W^T) * post_norm; where the inputs come in groups, their products are added one after another.
void Executor::add_phase(const Quantized& a, int64_t rows, const std::vector<PackedWeight>& groups, const float* post_norm, float norm_eps, float* x,
                         int thread, Counter* counters) {
    const PackedWeight& w = groups.front();
    float* out = post_norm == nullptr ? x : branch_.data();
    for (size_t g = 0; g < groups.size(); ++g) {
        const int64_t at = static_cast<int64_t>(g);
        const Quantized part{a.codes + at * w.k_padded(), a.scale + at * rows, a.stride};
        const Epilogue epilogue = post_norm != nullptr && g == 0 ? Epilogue::kStore : Epilogue::kAdd;
        gemm_part(part, rows, groups[g], epilogue, out, w.n, thread, counters + g * counters_per_phase_, 0.0f);
        // Of few rows a thread has the same columns in every group.
        if (rows > kFewRows || g + 1 == groups.size()) team_.barrier();
    }
    if (post_norm == nullptr) return;
    const Range part = static_part(rows, 1, thread, team_.size());
    if (part.begin < part.end)
        kernels_.rmsnorm_add_rows(branch_.data() + part.begin * w.n, w.n, part.end - part.begin, w.n, post_norm, norm_eps, x + part.begin * w.n, w.n);
    team_.barrier();
}

void Executor::embed(const StepBatch& batch, int thread) {
    const PackedWeight& w = spec_.embedding;
    const Range part = static_part(batch.token_count(), 1, thread, team_.size());
    for (int64_t i = part.begin; i < part.end; ++i) {
        const int64_t token = batch.tokens[i];
        const int8_t* codes = w.codes + token / kPackColumns * w.k_padded() * kPackColumns + token % kPackColumns * kPackDepth;
        float* x = x_.data() + i * spec_.hidden;
        for (int64_t k = 0; k < spec_.hidden; ++k)
            x[k] = static_cast<float>(codes[k / kPackDepth * kPackColumns * kPackDepth + k % kPackDepth]) * w.scale[token] * spec_.embedding_scale;
        if (spec_.embedding_channels != nullptr)
            for (int64_t k = 0; k < spec_.hidden; ++k) x[k] = x[k] * spec_.embedding_channels[k];
    }
    team_.barrier();
}

void Executor::rope_and_store(const StepBatch& batch, size_t layer_index, int thread) {
    const LayerSpec& layer = spec_.layers[layer_index];
    const int64_t tokens = batch.token_count(), dim = layer.head_dim, heads_per_kv = layer.heads / layer.kv_heads;
    const bool owns = size_t(layer.kv_owner) == layer_index;
    const KvBlockLayout block{dim};
    const Range part = static_part(tokens * layer.kv_heads, 1, thread, team_.size());
    for (int64_t unit = part.begin; unit < part.end; ++unit) {
        const int64_t token = unit / layer.kv_heads, h = unit % layer.kv_heads;
        const int32_t sequence = sequence_[static_cast<size_t>(token)];
        const int64_t position = batch.position(sequence, static_cast<int32_t>(token));
        const float* cos = layer.rope.cos + position * (dim / 2);
        const float* sin = layer.rope.sin + position * (dim / 2);
        float* row = qkv_.data() + token * layer.qkv.n;
        for (int64_t g = 0; g < heads_per_kv; ++g) {
            float* q = row + (h * heads_per_kv + g) * dim;
            if (layer.q_norm != nullptr) kernels_.rmsnorm_rows(q, dim, 1, dim, layer.q_norm, layer.norm_eps, q, dim);
            kernels_.rope_rotate(q, dim, cos, sin);
            if (check_finite_) note_if_not_finite(q, dim, layer_index, "q");
            const int64_t to = (h * tokens + token) * heads_per_kv + g;
            float scale;
            kernels_.quantize_rows(q, dim, 1, dim, q_codes_.data() + to * dim, dim, &scale);
            q_scale_[static_cast<size_t>(to)] = scale * layer.softmax_scale;
        }
        if (!owns) continue;
        float* key = row + layer.query_columns() + h * dim;
        if (layer.k_norm != nullptr) kernels_.rmsnorm_rows(key, dim, 1, dim, layer.k_norm, layer.norm_eps, key, dim);
        kernels_.rope_rotate(key, dim, cos, sin);
        if (layer.key_offset != nullptr)
            for (int64_t d = 0; d < dim; ++d) key[d] -= layer.key_offset[h * dim + d];
        const float* value = row + layer.query_columns() + layer.kv_columns() + h * dim;
        if (check_finite_) {
            note_if_not_finite(key, dim, layer_index, "k");
            note_if_not_finite(value, dim, layer_index, "v");
        }
        const PageKind kind = layer.kind();
        const int64_t page = batch.pages(kind, sequence)[position / kPageTokens];
        uint8_t* to = batch.pool[kind] + page * spec_.page_bytes[kind] + spec_.kv_offset[layer_index] + h * block.bytes();
        kernels_.kv_store(key, value, dim, to, position % kPageTokens);
    }
    team_.barrier();
}

void Executor::attention_phase(const StepBatch& batch, size_t layer_index, int thread, Counter& counter) {
    const LayerSpec& layer = spec_.layers[layer_index];
    const LayerAttention of_layer{
        batch, layer, q_codes_.data(), q_scale_.data(), spec_.page_bytes[layer.kind()], spec_.kv_offset[layer_index], attention_.data()};
    plans_[plan_of_layer_[layer_index]].run(kernels_, of_layer, counter.next, team_.size(), scratch_[static_cast<size_t>(thread)].attention);
    team_.barrier();
}

void Executor::forward(const StepBatch& batch, int thread) {
    int64_t rows = batch.token_count();
    const int64_t hidden = spec_.hidden;
    float* x = x_.data();
    embed(batch, thread);
    const auto normed = [&](const float* weight, float eps, size_t layer, const char* tensor) {
        return quantize_phase(rows, round_up(hidden, kPackDepth), thread, [&](int64_t begin, int64_t count, int8_t* codes, float* scale) {
            if (check_finite_) note_if_not_finite(x + begin * hidden, count * hidden, layer, tensor);
            kernels_.rmsnorm_quantize_rows(x + begin * hidden, hidden, count, hidden, weight, eps, codes, round_up(hidden, kPackDepth), scale);
        });
    };
    const auto plain = [&](const std::vector<float>& from, const std::vector<PackedWeight>& groups, size_t layer, const char* tensor) {
        const auto count_of_groups = static_cast<int64_t>(groups.size());
        const int64_t part = groups.front().k, padded = groups.front().k_padded(), depth = count_of_groups * part, stride = count_of_groups * padded;
        return quantize_phase(rows, stride, thread, [&](int64_t begin, int64_t count, int8_t* codes, float* scale) {
            if (check_finite_) note_if_not_finite(from.data() + begin * depth, count * depth, layer, tensor);
            for (int64_t g = 0; g < count_of_groups; ++g)
                kernels_.quantize_rows(from.data() + begin * depth + g * part, depth, count, part, codes + g * padded, stride, scale + g * rows);
        });
    };
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
        const LayerSpec& layer = spec_.layers[i];
        const auto counters = [&](size_t phase) { return counters_.data() + (i * counters_per_layer_ + phase) * counters_per_phase_; };
        gemm_phase(normed(layer.attention_norm, layer.norm_eps, i, "the input of qkv"), rows, layer.qkv, Epilogue::kStore, qkv_.data(), layer.qkv.n, thread, counters(kQkv),
                   layer.qkv_clamp);
        rope_and_store(batch, i, thread);
        attention_phase(batch, i, thread, *counters(kAttention));
        if (i + 1 == spec_.layers.size()) {
            // Nothing reads the last layer's output except the rows whose logits are wanted.
            const Range part = static_part(batch.logit_count, 1, thread, team_.size());
            const int64_t columns = layer.query_columns();
            for (int64_t r = part.begin; r < part.end; ++r) {
                const int64_t token = batch.logit_tokens[r];
                std::memcpy(last_x_.data() + r * hidden, x + token * hidden, sizeof(float) * static_cast<size_t>(hidden));
                // qkv_ has been read by now and holds the chosen rows of the attention output.
                std::memcpy(qkv_.data() + r * columns, attention_.data() + token * columns, sizeof(float) * static_cast<size_t>(columns));
            }
            team_.barrier();
            rows = batch.logit_count;
            x = last_x_.data();
            if (rows == 0) return;
        }
        const std::vector<float>& attended = i + 1 == spec_.layers.size() ? qkv_ : attention_;
        add_phase(plain(attended, layer.output, i, "the input of output"), rows, layer.output, layer.attention_post_norm, layer.norm_eps, x, thread, counters(kOutput));
        gemm_phase(normed(layer.mlp_norm, layer.norm_eps, i, "the input of gate_up"), rows, layer.gate_up, layer.mlp, mlp_.data(), layer.mlp_columns(), thread, counters(kGateUp),
                   layer.mlp_clamp);
        add_phase(plain(mlp_, layer.down, i, "the input of down"), rows, layer.down, layer.mlp_post_norm, layer.norm_eps, x, thread, counters(kDown));
    }
    Counter* head = counters_.data() + spec_.layers.size() * counters_per_layer_ * counters_per_phase_;
    Counter& sampled = head[counters_per_phase_];
    gemm_phase(normed(spec_.final_norm, spec_.norm_eps, spec_.layers.size(), "the input of head"), rows, spec_.head,
               spec_.logit_softcap > 0.0f ? Epilogue::kSoftcap : Epilogue::kStore, batch.logits, spec_.vocab, thread, head, spec_.logit_softcap);
    if (batch.sampling == nullptr) return;
    Sampler& sampler = scratch_[static_cast<size_t>(thread)].sampler;
    for (int64_t r; (r = sampled.next.fetch_add(1, std::memory_order_relaxed)) < rows;)
        batch.sampled[r] = sampler.sample(kernels_, batch.logits + r * spec_.vocab, spec_.vocab, batch.sampling[r], batch.inputs, r);
}

}  // namespace duologue
