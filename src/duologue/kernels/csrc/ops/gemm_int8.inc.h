// int8 GEMM with exact int32 accumulation and fused epilogues. Included inside a per-ISA namespace.
//
// Each instruction set supplies gemm_scratch_bytes and gemm: it computes int32 accumulators of a few rows and up to 64
// columns into a buffer that stays in cache, and hands each row of it to the one epilogue below.

#if defined(DUOLOGUE_UNROLL)
#elif defined(__clang__)
#define DUOLOGUE_UNROLL _Pragma("unroll")
#else
#define DUOLOGUE_UNROLL _Pragma("GCC unroll 16")
#endif

// y of 16 columns from n.
static inline F16 scaled_columns(const PackedWeight& w, F16 a_scale, int64_t n, const int32_t* acc) {
    const F16 y = mul(mul(to_float(load_int(acc)), a_scale), load(w.scale + n));
    return w.bias == nullptr ? y : add(y, load(w.bias + n));
}

static inline void put(float* to, F16 y, int64_t count, bool residual) {
    if (count >= 16) {
        store(to, residual ? add(load(to), y) : y);
        return;
    }
    float lanes[16];
    store(lanes, y);
    for (int64_t j = 0; j < count; ++j) to[j] = residual ? to[j] + lanes[j] : lanes[j];
}

// What the epilogues without a gate make of y.
static inline F16 activated(const GemmArgs& args, F16 y) {
    if (args.epilogue == Epilogue::kSoftcap) return softcap16(y, args.limit, 2.0f / args.limit);
    if (args.limit > 0.0f) y = limit16(y, args.limit);
    if (args.epilogue == Epilogue::kStore) return y;
    const F16 positive = max(y, set1(0.0f));
    return mul(positive, positive);
}

// Columns [n_begin, n_end) of row m from their accumulators, at most 64; n_begin is a multiple of 16 (32 for a gated pair).
static inline void finish_row(const GemmArgs& args, int64_t m, int64_t n_begin, int64_t n_end, const int32_t* acc) {
    const PackedWeight& w = *args.w;
    if (args.acc_out != nullptr) {
        std::memcpy(args.acc_out + m * w.n_padded() + n_begin, acc, sizeof(int32_t) * static_cast<size_t>(n_end - n_begin));
        return;
    }
    const F16 a_scale = set1(args.a_scale[m]);
    float* out = args.out + m * args.out_stride;
    if (!is_gated(args.epilogue)) {
        for (int64_t n = n_begin; n < n_end; n += 16, acc += 16) {
            const F16 y = scaled_columns(w, a_scale, n, acc);
            if (args.epilogue == Epilogue::kAdd || (args.epilogue == Epilogue::kStore && args.limit == 0.0f))
                put(out + n, y, w.n - n, args.epilogue == Epilogue::kAdd);
            else
                put(out + n, activated(args, y), w.n - n, false);
        }
        return;
    }
    const bool limited = args.limit > 0.0f, gelu = args.epilogue == Epilogue::kGatedGelu;
    const auto at = [&](int64_t n) {
        const F16 y = scaled_columns(w, a_scale, n, acc + (n - n_begin));
        return limited ? limit16(y, args.limit) : y;
    };
    const int64_t half = w.n / 2;
    if (n_end - n_begin == 64) {
        const F16x2 gate{at(n_begin), at(n_begin + 32)}, up{at(n_begin + 16), at(n_begin + 48)};
        const F16x2 y = mul(gelu ? gelu16(gate) : silu16(gate), up);
        put(out + n_begin / 2, y.a, half - n_begin / 2, false);
        put(out + n_begin / 2 + 16, y.b, half - n_begin / 2 - 16, false);
        return;
    }
    const F16 gate = at(n_begin);
    put(out + n_begin / 2, mul(gelu ? gelu16(gate) : silu16(gate), at(n_begin + 16)), half - n_begin / 2, false);
}

static inline char* align_scratch(void* scratch) {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t(63));
}

// Columns [column, column + 16) of packed weights: step s of K/4 is 64 bytes at s * 256.
static inline const int8_t* packed_columns(const PackedWeight& w, int64_t column) {
    return w.codes + (column / kPackColumns) * w.k_padded() * kPackColumns + (column % kPackColumns) * kPackDepth;
}
static constexpr int64_t kPackStepBytes = int64_t(kPackColumns) * kPackDepth;

// The next multiple of 64 columns, or n_end: groups never straddle two packed blocks.
static inline int64_t group_end(int64_t n, int64_t n_end) {
    const int64_t end = (n / kPackColumns + 1) * kPackColumns;
    return end < n_end ? end : n_end;
}

// Blocks of nearly one size, a multiple of `tile`: a small last one would prepare the weights for a few rows.
static inline int64_t even_block_rows(int64_t rows, int64_t most, int64_t tile) {
    const int64_t blocks = (rows + most - 1) / most;
    return blocks <= 1 ? rows : round_up((rows + blocks - 1) / blocks, tile);
}

#if defined(DUOLOGUE_ISA_AVX2)
#include "ops/gemm_int8_avx2.inc.h"
#elif defined(DUOLOGUE_ISA_AVX512VNNI)
#include "ops/gemm_int8_vnni.inc.h"
#else
#include "ops/gemm_int8_scalar.inc.h"
#endif
