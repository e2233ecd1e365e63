// int8 paged attention over one split of keys. Included inside a per-ISA namespace.
//
// Per row and key tile: s = (float(q . k) * q_scale) * k_scale; running maximum; p = exp(s - max); the denominator sums p;
// w = p * v_scale is quantised to codes 0..127 with the tile's own amax; exact int32 codes . V; out = out * alpha + acc * (amax / 127).

static int64_t attention_scratch_bytes(int32_t rows, int32_t head_dim) {
    (void)rows;
    (void)head_dim;
    return 0;
}

static void attention_split(const AttentionArgs& args, int64_t split, const AttentionState& state, void* scratch) {
    (void)scratch;
    const int64_t dim = args.head_dim;
    const KvBlockLayout layout{dim};
    for (int64_t r = 0; r < args.rows; ++r) {
        const int64_t position = args.first_position + r / args.group;
        const int64_t first = args.window > 0 && position - args.window + 1 > 0 ? position - args.window + 1 : 0;
        const int8_t* q = args.q + r * dim;
        float* out = state.out + r * dim;
        float row_max = -INFINITY, row_sum = 0.0f;
        for (int64_t d = 0; d < dim; ++d) out[d] = 0.0f;
        for (int64_t begin = split * kSplitTokens; begin < (split + 1) * kSplitTokens; begin += kPageTokens) {
            if (begin > position || begin + kPageTokens <= first) continue;
            const uint8_t* block = args.pool + args.pages[begin / kPageTokens] * args.page_bytes + args.block_offset;
            const float* key_scales = reinterpret_cast<const float*>(block + layout.key_scales_offset());
            const float* value_scales = reinterpret_cast<const float*>(block + layout.value_scales_offset());
            const int8_t* values = reinterpret_cast<const int8_t*>(block + layout.values_offset());
            float s[kPageTokens], w[kPageTokens];
            int32_t codes[kPageTokens];
            float tile_max = -INFINITY;
            for (int64_t t = 0; t < kPageTokens; ++t) {
                const bool seen = begin + t >= first && begin + t <= position;
                s[t] = -INFINITY;
                if (!seen) continue;
                const uint8_t* key = block + (t / 16) * dim * 16 + (t % 16) * 4;
                int32_t acc = 0;
                for (int64_t d = 0; d < dim; ++d) acc += int32_t(q[d]) * (int32_t(key[(d / 4) * 64 + d % 4]) - 128);
                s[t] = (static_cast<float>(acc) * args.q_scale[r]) * key_scales[t];
                tile_max = s[t] > tile_max ? s[t] : tile_max;
            }
            const float new_max = tile_max > row_max ? tile_max : row_max;
            F16 sum = set1(0.0f), best = set1(0.0f);
            for (int64_t t = 0; t < kPageTokens; t += 16) {
                const F16 p = exp16_nonpositive(sub(load(s + t), set1(new_max)));
                sum = add(sum, p);
                float lanes[16];
                store(lanes, p);
                for (int64_t j = 0; j < 16; ++j) {
                    const bool seen = begin + t + j >= first && begin + t + j <= position;
                    w[t + j] = seen ? lanes[j] * value_scales[t + j] : 0.0f;
                }
                best = max(load(w + t), best);
            }
            const float amax = reduce_max(best);
            const bool zero = is_zero_row(amax);
            const float inv = zero ? 0.0f : 127.0f / amax;
            const float scale = zero ? 1.0f : amax / 127.0f;
            for (int64_t t = 0; t < kPageTokens; ++t) codes[t] = static_cast<int32_t>(code1(w[t], inv));
            const float alpha = row_max == -INFINITY ? 0.0f : exp_scalar_nonpositive(row_max - new_max);
            row_sum = row_sum * alpha + reduce_add(sum);
            row_max = new_max;
            for (int64_t d = 0; d < dim; ++d) {
                int32_t acc = 0;
                for (int64_t t = 0; t < kPageTokens; ++t) acc += codes[t] * int32_t(values[(t / 4) * dim * 4 + d * 4 + t % 4]);
                out[d] = out[d] * alpha + static_cast<float>(acc) * scale;
            }
        }
        state.max[r] = row_max;
        state.sum[r] = row_sum;
    }
}

static void attention_merge(const AttentionState& into, const AttentionState& from, int64_t rows, int64_t head_dim) {
    for (int64_t r = 0; r < rows; ++r) {
        float* a = into.out + r * head_dim;
        const float* b = from.out + r * head_dim;
        if (from.max[r] == -INFINITY) continue;
        if (into.max[r] == -INFINITY) {
            into.max[r] = from.max[r];
            into.sum[r] = from.sum[r];
            for (int64_t d = 0; d < head_dim; ++d) a[d] = b[d];
            continue;
        }
        const float best = into.max[r] > from.max[r] ? into.max[r] : from.max[r];
        const float x = exp_scalar_nonpositive(into.max[r] - best), y = exp_scalar_nonpositive(from.max[r] - best);
        into.sum[r] = into.sum[r] * x + from.sum[r] * y;
        into.max[r] = best;
        for (int64_t d = 0; d < head_dim; ++d) a[d] = a[d] * x + b[d] * y;
    }
}

static void attention_finish(const AttentionState& state, int64_t rows, int64_t head_dim, float* out, int64_t out_stride) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < head_dim; ++d) out[r * out_stride + d] = state.out[r * head_dim + d] / state.sum[r];
}
