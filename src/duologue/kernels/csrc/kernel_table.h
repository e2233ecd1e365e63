// The border between the executor and the kernels: one table of functions per instruction set.
//
// Every function works on plain pointers, touches only the rows and columns it is given, and keeps no state, so the
// executor may cut work over threads as it likes: results never depend on the cut.
#pragma once

#include <cstdint>

#include "layout.h"

namespace duologue {

enum class Epilogue : int32_t {
    kStore = 0,     // out[m, n] = y
    kAdd = 1,       // out[m, n] += y (residual stream)
    kGatedSilu = 2, // out[m, n/2] = silu(gate) * up, columns interleaved in runs of 16 (see PackedWeight)
    kGatedGelu = 3, // the same with GELU in its tanh form
    kRelu2 = 4,     // out[m, n] = max(y, 0)^2
    kSoftcap = 5    // out[m, n] = limit * tanh(y / limit)
};
inline constexpr int32_t kEpilogues = 6;

DUOLOGUE_INLINE constexpr bool is_gated(Epilogue epilogue) { return epilogue == Epilogue::kGatedSilu || epilogue == Epilogue::kGatedGelu; }

// y[m, n] = (float(acc[m, n]) * a_scale[m]) * w.scale[n] (+ bias[n]), acc exact int32. A `limit` > 0 keeps y within [-limit, limit]
// before it goes into out (kStore), an activation or a gated pair; kAdd has none.
struct GemmArgs {
    const int8_t* a;       // [M, a_stride] signed codes; the first k_padded bytes of each row are readable, zero past k
    int64_t a_stride;      // bytes
    const float* a_scale;  // [M]
    const PackedWeight* w;
    Epilogue epilogue;
    float* out;            // [M, out_stride]
    int64_t out_stride;    // floats; columns beyond w->n are never written
    int32_t* acc_out;      // when not null: raw accumulators [M, n_padded] instead of out (tests)
    float limit = 0.0f;
    bool rows_ready = false;  // the scratch still holds these rows, one block of them, from the call before
};

// Queries of one sequence and one KV head against one split of keys.
// Row r belongs to token r / group (position first_position + r / group), head r % group of the KV head's group.
struct AttentionArgs {
    const int8_t* q;         // [rows, head_dim] signed codes
    const float* q_scale;    // [rows], softmax scale included
    int32_t rows;
    int32_t group;
    int32_t first_position;  // of row 0
    int32_t window;          // 0: global; W: a query at p sees keys p-W+1 .. p
    int32_t head_dim;        // multiple of 16
    const uint8_t* pool;     // first byte of page 0
    int64_t page_bytes;
    int64_t block_offset;    // of this (owner layer, KV head) inside a page
    const int32_t* pages;    // page ids of the sequence, by position / kPageTokens
    float softcap = 0.0f;    // > 0: scores s become softcap * tanh(s / softcap)
    const uint8_t* next_block = nullptr;  // KV block that the calling thread reads next, fetched during the call's last tile

    // The KV block of `position`'s page.
    DUOLOGUE_INLINE const uint8_t* block(int64_t position) const { return pool + pages[position / kPageTokens] * page_bytes + block_offset; }
};

// Running softmax state of each row: maximum, denominator, unnormalised output.
struct AttentionState {
    float* max;    // [rows]
    float* sum;    // [rows]
    float* out;    // [rows, head_dim]
};

// The state of rows that see one key of score sinks[r % group] without a value: a sink, merged after all splits.
DUOLOGUE_INLINE void fill_sinks(const AttentionState& state, const float* sinks, int64_t group, int64_t rows, int64_t head_dim) {
    constexpr float kLog2E = 1.44269504f;  // scores are in base 2
    for (int64_t r = 0; r < rows; ++r) {
        state.max[r] = sinks[r % group] * kLog2E;
        state.sum[r] = 1.0f;
    }
    for (int64_t i = 0; i < rows * head_dim; ++i) state.out[i] = 0.0f;
}

struct KernelTable {
    const char* name;

    // codes[m, 0..k) of x[m, :]; codes[m, k..k_padded) = 0. See kernels.md's quantiser.
    void (*quantize_rows)(const float* x, int64_t x_stride, int64_t rows, int64_t k, int8_t* codes, int64_t codes_stride, float* scale);
    // The same of rmsnorm(x) * weight.
    void (*rmsnorm_quantize_rows)(const float* x, int64_t x_stride, int64_t rows, int64_t k, const float* weight, float eps,
                                  int8_t* codes, int64_t codes_stride, float* scale);
    // out[m, :] = rmsnorm(x[m, :]) * weight
    void (*rmsnorm_rows)(const float* x, int64_t x_stride, int64_t rows, int64_t k, const float* weight, float eps, float* out,
                         int64_t out_stride);
    // x[m, :] += rmsnorm(from[m, :]) * weight
    void (*rmsnorm_add_rows)(const float* from, int64_t from_stride, int64_t rows, int64_t k, const float* weight, float eps, float* x,
                             int64_t x_stride);
    // out = silu(gate) * up, elementwise; gelu_mul in tanh form
    void (*silu_mul)(const float* gate, const float* up, int64_t count, float* out);
    void (*gelu_mul)(const float* gate, const float* up, int64_t count, float* out);
    void (*exp_array)(const float* x, int64_t count, float* out);

    // Rows that gemm prepares in scratch and works on at a time, when it is given `rows`: units of this size waste nothing.
    int64_t (*gemm_block_rows)(int64_t rows, int64_t k);
    // Bytes of scratch one gemm call over `rows` rows may use.
    int64_t (*gemm_scratch_bytes)(int64_t rows, int64_t k);
    // Rows [m_begin, m_end), columns [n_begin, n_end) with n_begin a multiple of 16 (32 for a gated pair) and n_end too or == n_padded.
    void (*gemm)(const GemmArgs& args, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end, void* scratch);
    // fp32 y = a W^T with one fixed order per output: ascending k, multiply then add, not fused. Calibration only.
    void (*gemm_f32)(const float* a, int64_t a_stride, const float* w, int64_t w_stride, int64_t m_begin, int64_t m_end,
                     int64_t n, int64_t k, float* out, int64_t out_stride);

    // x[d] rotated by halves in place: (x0, x1) -> (x0 cos - x1 sin, x1 cos + x0 sin), cos/sin [d/2].
    void (*rope_rotate)(float* x, int64_t head_dim, const float* cos, const float* sin);
    // Quantise one key and one value (fp32 [head_dim]) into slot `slot` of a KV block.
    void (*kv_store)(const float* key, const float* value, int64_t head_dim, uint8_t* block, int64_t slot);

    int64_t (*attention_scratch_bytes)(int32_t rows, int32_t head_dim);
    // Computes keys [split * kSplitTokens, ...) into fresh partial states; rows that see no key of the split get max = -inf, sum = 0, out = 0.
    void (*attention_split)(const AttentionArgs& args, int64_t split, const AttentionState& state, void* scratch);
    // into = merge(into, from), `from` being the later split. A side with max == -inf is the identity (the other is copied, bits kept).
    void (*attention_merge)(const AttentionState& into, const AttentionState& from, int64_t rows, int64_t head_dim);
    // out[r, :] = state.out[r, :] / state.sum[r]
    void (*attention_finish)(const AttentionState& state, int64_t rows, int64_t head_dim, float* out, int64_t out_stride);

    // Index of the first maximum of x[0..count).
    int64_t (*argmax)(const float* x, int64_t count);
    float (*max_value)(const float* x, int64_t count);
    // out[i] = exp((x[i] - max) * inv_temperature); returns the sum in the fixed lane order.
    float (*softmax_weights)(const float* x, int64_t count, float max, float inv_temperature, float* out);
    bool (*all_finite)(const float* x, int64_t count);

    // Register-only loops for the bench: operations done in `rounds` rounds, 0 where the set has no such loop.
    int64_t (*int8_peak)(int sequence, int64_t rounds);
    int64_t (*fp32_peak)(int64_t rounds);
    // Reads `count` bytes (a multiple of 256) as fast as this set can; returns `count` when any float of them is positive.
    int64_t (*read_all)(const uint8_t* bytes, int64_t count);
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512VnniKernels;

// The best table this CPU runs, or the one DUOLOGUE_ISA names (scalar, avx2, avx512vnni). Throws std::runtime_error
// naming the variable when the name is unknown or the CPU lacks it.
const KernelTable& select_kernels();
const KernelTable& select_kernels(const char* isa);

}  // namespace duologue
