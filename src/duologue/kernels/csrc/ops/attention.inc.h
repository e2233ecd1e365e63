// int8 paged attention over one split of keys. Included inside a per-ISA namespace.
//
// Per row and key tile (a page), in base 2 so that the exponential needs no reduction by ln 2:
//   s = (float(q . k) * (q_scale * log2 e)) * k_scale        exact int32 dot product
//   with a cap c > 0: s = c' * tanh(s / c'), c' = c log2 e
//   m' = max(m, max s),  alpha = 2^(m - m'),  p = 2^(s - m')
//   sum = sum * alpha + (sum of p: 16 lanes over the tile's groups of 16 keys in ascending order, then the fixed tree)
//   w = p * v_scale; per kPScaleTokens keys: codes = round(w * (127 / amax)) in 0..127
//   out = out * alpha + float(codes . V) * (amax / 127)        exact int32; alpha with the first kPScaleTokens keys, then 1
// Keys that a row does not see are left out by selection at every step (their bytes and scales may be stale, NaN too), so that a
// row's result depends neither on them nor on the rows that it shares a call or a chunk with.

#if defined(DUOLOGUE_UNROLL)
#elif defined(__clang__)
#define DUOLOGUE_UNROLL _Pragma("unroll")
#else
#define DUOLOGUE_UNROLL _Pragma("GCC unroll 8")
#endif

// Each file gives: kChunkRows, kPrepareKeysRows; queries and keys made ready once per call and per tile; score_keys<R> (float scores
// of R rows against groups of 16 keys), add_values<R> (out = out * alpha + (codes . V) * scale over groups of 4 keys),
// scale_by_exponent and store_weight_codes.
#if defined(DUOLOGUE_ISA_AVX2)
#include "ops/attention_tiles_avx2.inc.h"
#elif defined(DUOLOGUE_ISA_AVX512VNNI)
#include "ops/attention_tiles_avx512.inc.h"
#else
#include "ops/attention_tiles_scalar.inc.h"
#endif

static constexpr float kLog2E = 1.44269504f;

// 2^x for x <= 0 within 2e-7, exactly 1 at 0. Below -64 it stays at 2^-64: beside a term of 1 in the same sum that is nothing, and
// no denormal ever arises. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
static inline F16 exp2_nonpositive(F16 x) {
    const F16 magic = set1(12582912.0f);
    const F16 clamped = max(x, set1(-64.0f));
    const F16 shifted = add(clamped, magic);
    const F16 f = sub(clamped, sub(shifted, magic));  // [-0.5, 0.5]
    F16 p = set1(1.3264727e-3f);
    p = add(mul(p, f), set1(9.671513e-3f));
    p = add(mul(p, f), set1(5.5507336e-2f));
    p = add(mul(p, f), set1(2.4022242e-1f));
    p = add(mul(p, f), set1(6.93147e-1f));
    p = add(mul(p, f), set1(1.0f));
    return scale_by_exponent(p, shifted);
}

static inline F16 select_range(int begin, int end, F16 inside, F16 outside) {
    return select_first(begin, outside, select_first(end, inside, outside));
}

struct KeyTile {
    const void* keys;  // stored bytes, or prepared
    bool prepared;
    const float* key_scales;
    const int8_t* values;
    const float* value_scales;
    int64_t begin;  // position of its first key
    int64_t ahead;  // bytes from this block to the one to fetch meanwhile, 0 when there is none
};

struct AttentionRows {
    const void* queries;  // prepared, all rows of the call
    int64_t dim;
    int64_t group;
    int64_t first_position;
    int64_t window;
    const float* scale;  // q_scale of all rows of the call
    float softcap;       // in units of log2 e
};

template <int R, bool Masked>
static void attend_chunk(const KeyTile& tile, const AttentionRows& rows, int64_t row, const AttentionState& state) {
    constexpr int kGroups = kPageTokens / 16;
    constexpr int kParts = kPageTokens / kPScaleTokens;
    static_assert(R <= 16 && kPScaleTokens % 32 == 0 && kPageTokens % kPScaleTokens == 0);
    const F16 zero = set1(0.0f);

    int seen_begin[R], seen_end[R];
    int group_begin = 0, group_end = kGroups;
    if constexpr (Masked) {
        int first = kPageTokens, last = 0;
        for (int r = 0; r < R; ++r) {
            const int64_t end = rows.first_position + (row + r) / rows.group + 1 - tile.begin;
            const int64_t begin = rows.window > 0 ? end - rows.window : 0;
            seen_begin[r] = static_cast<int>(begin > 0 ? begin : 0);
            seen_end[r] = static_cast<int>(end < kPageTokens ? end : kPageTokens);
            first = seen_begin[r] < first ? seen_begin[r] : first;
            last = seen_end[r] > last ? seen_end[r] : last;
        }
        group_begin = first / 16;
        group_end = (last + 15) / 16;
    }

    alignas(64) float weights[R][kPageTokens];
    alignas(64) uint8_t codes[R][kPageTokens];
    alignas(64) float row_scale[16] = {}, tile_max[16] = {}, row_max[16] = {}, row_sum[16] = {}, part_sum[16] = {};
    alignas(64) float amax[kParts][16] = {}, inverse[kParts][16], scale[kParts][16], alpha[16];
    for (int r = 0; r < R; ++r) {
        row_scale[r] = rows.scale[row + r];
        row_max[r] = state.max[row + r];
        row_sum[r] = state.sum[row + r];
    }
    store(row_scale, mul(load(row_scale), set1(kLog2E)));

    score_keys<R>(tile.prepared, rows.queries, row, tile.keys, rows.dim, group_begin, group_end, tile.ahead, row_scale, tile.key_scales,
                  weights);
    if (rows.softcap > 0.0f)
        for (int r = 0; r < R; ++r)
            for (int i = group_begin * 16; i < group_end * 16; i += 16)
                store(weights[r] + i, softcap16(load(weights[r] + i), rows.softcap, 2.0f / rows.softcap));

    for (int r = 0; r < R; ++r) {
        F16 best = set1(-INFINITY);
        for (int g = group_begin; g < group_end; ++g) {
            F16 s = load(weights[r] + g * 16);
            if constexpr (Masked) s = select_range(seen_begin[r] - g * 16, seen_end[r] - g * 16, s, set1(-INFINITY));
            best = max(s, best);
        }
        tile_max[r] = reduce_max(best);
    }
    const F16 old_max = load(row_max);
    const F16 new_max = max(load(tile_max), old_max);
    const F16 decay = exp2_nonpositive(sub(old_max, new_max));  // a row without keys so far has sum and out 0
    store(alpha, decay);
    store(row_max, new_max);

    for (int r = 0; r < R; ++r) {
        const F16 top = set1(row_max[r]);
        F16 sum = zero, best[kParts];
        for (int part = 0; part < kParts; ++part) best[part] = zero;
        DUOLOGUE_UNROLL
        for (int g = 0; g < kGroups; ++g) {
            float* to = weights[r] + g * 16;
            if (Masked && (g < group_begin || g >= group_end)) {
                store(to, zero);
                continue;
            }
            F16 p = exp2_nonpositive(sub(load(to), top));
            F16 w = mul(p, load(tile.value_scales + g * 16));
            if constexpr (Masked) {
                p = select_range(seen_begin[r] - g * 16, seen_end[r] - g * 16, p, zero);
                w = select_range(seen_begin[r] - g * 16, seen_end[r] - g * 16, w, zero);
            }
            sum = add(sum, p);
            best[g * 16 / kPScaleTokens] = max(w, best[g * 16 / kPScaleTokens]);
            store(to, w);
        }
        part_sum[r] = reduce_add(sum);
        for (int part = 0; part < kParts; ++part) amax[part][r] = reduce_max(best[part]);
    }
    store(row_sum, add(mul(load(row_sum), decay), load(part_sum)));

    const F16 top_code = set1(127.0f), smallest = set1(7.52316385e-37f);
    for (int part = 0; part < kParts; ++part) {
        const F16 largest = load(amax[part]);
        store(inverse[part], select_less(largest, smallest, zero, div(top_code, largest)));
        store(scale[part], select_less(largest, smallest, set1(1.0f), div(largest, top_code)));
    }
    for (int r = 0; r < R; ++r) {
        DUOLOGUE_UNROLL
        for (int t = 0; t < kPageTokens; t += 32) {
            const F16 inv = set1(inverse[t / kPScaleTokens][r]);
            store_weight_codes(codes[r] + t, mul(load(weights[r] + t), inv), mul(load(weights[r] + t + 16), inv));
        }
        state.max[row + r] = row_max[r];
        state.sum[row + r] = row_sum[r];
    }
    for (int part = 0; part < kParts; ++part) {
        constexpr int kQuads = kPScaleTokens / 4;
        const int begin = group_begin * 4 > part * kQuads ? group_begin * 4 : part * kQuads;
        const int end = group_end * 4 < (part + 1) * kQuads ? group_end * 4 : (part + 1) * kQuads;
        add_values<R>(codes, tile.values, rows.dim, begin, end, tile.ahead, alpha, scale[part], state.out + row * rows.dim);
        store(alpha, set1(1.0f));
    }
}

template <int R>
static void attend_rows(const KeyTile& tile, const AttentionRows& rows, int64_t row, int64_t count, const AttentionState& state) {
    if (count < R) {
        if constexpr (R > 1) attend_rows<R - 1>(tile, rows, row, count, state);
        return;
    }
    const int64_t first = rows.first_position + row / rows.group, last = rows.first_position + (row + R - 1) / rows.group;
    const bool whole = first >= tile.begin + kPageTokens - 1 && (rows.window == 0 || last - rows.window + 1 <= tile.begin);
    if (whole)
        attend_chunk<R, false>(tile, rows, row, state);
    else
        attend_chunk<R, true>(tile, rows, row, state);
}

static int64_t attention_scratch_bytes(int32_t rows, int32_t head_dim) {
    return 64 + round_up(rows * prepared_query_bytes(head_dim), 64) + prepared_keys_bytes(head_dim);
}

static void attention_split(const AttentionArgs& args, int64_t split, const AttentionState& state, void* scratch) {
    const int64_t dim = args.head_dim, rows = args.rows;
    for (int64_t r = 0; r < rows; ++r) {
        state.max[r] = -INFINITY;
        state.sum[r] = 0.0f;
    }
    std::memset(state.out, 0, sizeof(float) * static_cast<size_t>(rows * dim));

    uint8_t* queries = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<intptr_t>(scratch), 64));
    uint8_t* prepared_keys = queries + round_up(rows * prepared_query_bytes(dim), 64);
    prepare_queries(args.q, rows, dim, queries);

    const KvBlockLayout layout{dim};
    const AttentionRows view = {queries, dim, args.group, args.first_position, args.window, args.q_scale, args.softcap * kLog2E};
    const int64_t last_position = args.first_position + (rows - 1) / args.group;
    const int64_t end = (split + 1) * kSplitTokens <= last_position ? (split + 1) * kSplitTokens : last_position + 1;
    for (int64_t begin = split * kSplitTokens; begin < end; begin += kPageTokens) {
        // Positions ascend with the rows, so the rows that see a key of this tile are one run.
        const int64_t row_begin = begin > args.first_position ? (begin - args.first_position) * args.group : 0;
        int64_t row_end = rows;
        if (args.window > 0) {
            const int64_t past = (begin + kPageTokens - 1 + args.window - args.first_position) * args.group;
            row_end = past < rows ? past : rows;
        }
        if (row_begin >= row_end) continue;

        const uint8_t* block = args.block(begin);
        KeyTile tile;
        tile.keys = block;
        tile.key_scales = reinterpret_cast<const float*>(block + layout.key_scales_offset());
        tile.values = reinterpret_cast<const int8_t*>(block + layout.values_offset());
        tile.value_scales = reinterpret_cast<const float*>(block + layout.value_scales_offset());
        tile.begin = begin;
        const uint8_t* next = begin + kPageTokens < end ? args.block(begin + kPageTokens) : args.next_block;
        tile.ahead = next != nullptr ? next - block : 0;
        for (int64_t i = layout.key_scales_offset(); i < layout.bytes(); i += 64) __builtin_prefetch(block + tile.ahead + i);
        tile.prepared = row_end - row_begin >= kPrepareKeysRows;
        if (tile.prepared) {
            prepare_keys(block, dim, tile.ahead, prepared_keys);
            tile.keys = prepared_keys;
        }
        for (int64_t row = row_begin; row < row_end;) {
            // Chunks of nearly one size: 9 rows are 5 and 4, not 8 and 1.
            const int64_t left = row_end - row, chunks = (left + kChunkRows - 1) / kChunkRows, count = (left + chunks - 1) / chunks;
            attend_rows<kChunkRows>(tile, view, row, count, state);
            row += count;
            tile.ahead = 0;
        }
    }
}

// The factors come from one vector call each: a scalar exponential would be another spelling.
static inline float exp2_scalar(float x) {
    float lanes[16];
    store(lanes, exp2_nonpositive(set1(x)));
    return lanes[0];
}

static void attention_merge(const AttentionState& into, const AttentionState& from, int64_t rows, int64_t head_dim) {
    for (int64_t r = 0; r < rows; ++r) {
        float* a = into.out + r * head_dim;
        const float* b = from.out + r * head_dim;
        if (from.max[r] == -INFINITY) continue;
        if (into.max[r] == -INFINITY) {
            into.max[r] = from.max[r];
            into.sum[r] = from.sum[r];
            std::memcpy(a, b, sizeof(float) * static_cast<size_t>(head_dim));
            continue;
        }
        const float best = into.max[r] > from.max[r] ? into.max[r] : from.max[r];
        const float x = exp2_scalar(into.max[r] - best), y = exp2_scalar(from.max[r] - best);
        into.sum[r] = into.sum[r] * x + from.sum[r] * y;
        into.max[r] = best;
        for (int64_t d = 0; d < head_dim; d += 16) store(a + d, add(mul(load(a + d), set1(x)), mul(load(b + d), set1(y))));
    }
}

static void attention_finish(const AttentionState& state, int64_t rows, int64_t head_dim, float* out, int64_t out_stride) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < head_dim; d += 16)
            store(out + r * out_stride + d, div(load(state.out + r * head_dim + d), set1(state.sum[r])));
}
