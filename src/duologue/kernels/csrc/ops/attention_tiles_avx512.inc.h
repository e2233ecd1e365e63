// Attention tiles with AVX-512 VNNI. Included by attention.inc.h.
//
// vpdpbusd multiplies unsigned by signed bytes: stored keys are unsigned already (q . k = acc - 128 * sum(q)), and so are P's codes.
// Register tiles are 6 rows x 4 zmm: 24 accumulators, 4 operands, the broadcasts come from memory.

static constexpr int kChunkRows = 6;
static constexpr int kPrepareKeysRows = 1 << 30;

// A row's codes, then 128 * their sum in a lane of its own.
static int64_t prepared_query_bytes(int64_t dim) { return dim + 4; }
static int64_t prepared_keys_bytes(int64_t) { return 0; }

static void prepare_queries(const int8_t* q, int64_t rows, int64_t dim, void* to) {
    int8_t* out = static_cast<int8_t*>(to);
    for (int64_t r = 0; r < rows; ++r, q += dim, out += dim + 4) {
        std::memcpy(out, q, static_cast<size_t>(dim));
        int32_t sum = 0;
        for (int64_t d = 0; d < dim; ++d) sum += q[d];
        sum *= 128;
        std::memcpy(out + dim, &sum, 4);
    }
}

static void prepare_keys(const uint8_t*, int64_t, int64_t, void*) {}

static inline F16 scale_by_exponent(F16 p, F16 shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), exponent))};
}

static inline void store_weight_codes(uint8_t* to, F16 a, F16 b) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b.v)));
}

static inline __m512i broadcast_four(const void* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

// As an intrinsic, gcc 12 copies every accumulator around the instruction and stores it in every step.
static inline void add_dot(__m512i& acc, __m512i unsigned_bytes, __m512i signed_bytes) {
#if defined(DUOLOGUE_SIMDE)
    acc = _mm512_dpbusd_epi32(acc, unsigned_bytes, signed_bytes);
#else
    asm volatile("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(unsigned_bytes), "v"(signed_bytes));
#endif
}

template <int R, int Groups>
static inline void score_groups(const int8_t* q, const uint8_t* keys, int64_t dim, int g, int64_t ahead, const float* row_scale,
                                const float* key_scales, float (*scores)[kPageTokens]) {
    const int64_t q_stride = dim + 4;
    __m512i acc[R][Groups];
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < Groups; ++i) acc[r][i] = _mm512_setzero_si512();
    }
    const uint8_t* from = keys + g * dim * 16;
    for (int64_t d = 0; d < dim; d += 4) {
        __m512i k[Groups];
        DUOLOGUE_UNROLL
        for (int i = 0; i < Groups; ++i) {
            k[i] = _mm512_loadu_si512(from + i * dim * 16 + d * 16);
            __builtin_prefetch(from + i * dim * 16 + d * 16 + ahead);
        }
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m512i q_four = broadcast_four(q + r * q_stride + d);
            DUOLOGUE_UNROLL
            for (int i = 0; i < Groups; ++i) add_dot(acc[r][i], k[i], q_four);
        }
    }
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r) {
        const __m512i compensation = broadcast_four(q + r * q_stride + dim);
        const F16 scale = set1(row_scale[r]);
        DUOLOGUE_UNROLL
        for (int i = 0; i < Groups; ++i) {
            const int t = (g + i) * 16;
            const F16 dot = {_mm512_cvtepi32_ps(_mm512_sub_epi32(acc[r][i], compensation))};
            store(scores[r] + t, mul(mul(dot, scale), load(key_scales + t)));
        }
    }
}

template <int R>
static void score_keys(bool, const void* queries, int64_t row, const void* keys, int64_t dim, int group_begin, int group_end,
                       int64_t ahead, const float* row_scale, const float* key_scales, float (*scores)[kPageTokens]) {
    const int8_t* q = static_cast<const int8_t*>(queries) + row * (dim + 4);
    const uint8_t* k = static_cast<const uint8_t*>(keys);
    int g = group_begin;
    for (; g + 4 <= group_end; g += 4) score_groups<R, 4>(q, k, dim, g, ahead, row_scale, key_scales, scores);
    for (; g < group_end; ++g) score_groups<R, 1>(q, k, dim, g, ahead, row_scale, key_scales, scores);
}

template <int R, int Vectors>
static inline void add_value_columns(const uint8_t (*codes)[kPageTokens], const int8_t* values, int64_t dim, int64_t d, int quad_begin,
                                     int quad_end, int64_t ahead, const float* alpha, const float* scale, float* out) {
    __m512i acc[R][Vectors];
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < Vectors; ++i) acc[r][i] = _mm512_setzero_si512();
    }
    for (int quad = quad_begin; quad < quad_end; ++quad) {
        __m512i v[Vectors];
        DUOLOGUE_UNROLL
        for (int i = 0; i < Vectors; ++i) {
            v[i] = _mm512_loadu_si512(values + quad * dim * 4 + d * 4 + i * 64);
            __builtin_prefetch(values + quad * dim * 4 + d * 4 + i * 64 + ahead);
        }
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m512i p = broadcast_four(codes[r] + quad * 4);
            DUOLOGUE_UNROLL
            for (int i = 0; i < Vectors; ++i) add_dot(acc[r][i], p, v[i]);
        }
    }
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < Vectors; ++i) {
            float* to = out + r * dim + d + i * 16;
            const F16 kept = mul(load(to), set1(alpha[r]));
            store(to, add(kept, mul(to_float(I16{acc[r][i]}), set1(scale[r]))));
        }
    }
}

template <int R>
static void add_values(const uint8_t (*codes)[kPageTokens], const int8_t* values, int64_t dim, int quad_begin, int quad_end,
                       int64_t ahead, const float* alpha, const float* scale, float* out) {
    int64_t d = 0;
    for (; d + 64 <= dim; d += 64) add_value_columns<R, 4>(codes, values, dim, d, quad_begin, quad_end, ahead, alpha, scale, out);
    for (; d < dim; d += 16) add_value_columns<R, 1>(codes, values, dim, d, quad_begin, quad_end, ahead, alpha, scale, out);
}
