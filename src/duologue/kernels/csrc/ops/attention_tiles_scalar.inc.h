// Attention tiles, portable: the plain spelling of what the vector files compute. Included by attention.inc.h.

static constexpr int kChunkRows = 4;
static constexpr int kPrepareKeysRows = 1 << 30;

static int64_t prepared_query_bytes(int64_t dim) { return dim; }
static int64_t prepared_keys_bytes(int64_t) { return 0; }

static void prepare_queries(const int8_t* q, int64_t rows, int64_t dim, void* to) {
    std::memcpy(to, q, static_cast<size_t>(rows * dim));
}

static void prepare_keys(const uint8_t*, int64_t, int64_t, void*) {}

static inline F16 scale_by_exponent(F16 p, F16 shifted) {
    for (int i = 0; i < 16; ++i) {
        uint32_t bits, exponent;
        std::memcpy(&bits, &p.lane[i], 4);
        std::memcpy(&exponent, &shifted.lane[i], 4);
        bits += exponent << 23;
        std::memcpy(&p.lane[i], &bits, 4);
    }
    return p;
}

static inline void store_weight_codes(uint8_t* to, F16 a, F16 b) {
    for (int i = 0; i < 16; ++i) {
        to[i] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyintf(a.lane[i])));
        to[16 + i] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyintf(b.lane[i])));
    }
}

template <int R>
static void score_keys(bool, const void* queries, int64_t row, const void* keys, int64_t dim, int group_begin, int group_end,
                       int64_t, const float* row_scale, const float* key_scales, float (*scores)[kPageTokens]) {
    const int8_t* q = static_cast<const int8_t*>(queries) + row * dim;
    for (int r = 0; r < R; ++r, q += dim) {
        for (int t = group_begin * 16; t < group_end * 16; ++t) {
            const uint8_t* key = static_cast<const uint8_t*>(keys) + (t / 16) * dim * 16 + (t % 16) * 4;
            int32_t acc = 0;
            for (int64_t d = 0; d < dim; d += 4)
                for (int64_t j = 0; j < 4; ++j) acc += int32_t(q[d + j]) * (int32_t(key[d * 16 + j]) - 128);
            scores[r][t] = (static_cast<float>(acc) * row_scale[r]) * key_scales[t];
        }
    }
}

template <int R>
static void add_values(const uint8_t (*codes)[kPageTokens], const int8_t* values, int64_t dim, int quad_begin, int quad_end,
                       int64_t, const float* alpha, const float* scale, float* out) {
    for (int r = 0; r < R; ++r, out += dim) {
        for (int64_t d = 0; d < dim; ++d) {
            int32_t acc = 0;
            for (int64_t t = quad_begin * 4; t < quad_end * 4; ++t)
                acc += int32_t(codes[r][t]) * int32_t(values[(t / 4) * dim * 4 + d * 4 + t % 4]);
            out[d] = out[d] * alpha[r] + static_cast<float>(acc) * scale[r];
        }
    }
}
