// Attention tiles with AVX2. Included by attention.inc.h.
//
// A Zen 3 core issues two integer multiplies and four vector operations per cycle. q . k: int16 pairs (vpmaddwd, exact), 16
// products for a multiply and an add. Against the sign trick on bytes (32 products for a sign, two multiplies and an add) that is
// the same number of operations without the abs/sign preparation per row, and keys expanded once serve every row of the call.
// P . V: codes are at most 127, so byte pairs (vpmaddubsw) cannot saturate: 2 * 127 * 127 < 2^15.
//
// Register tiles are 6 rows x 2 ymm: 12 accumulators, 2 operands, 1 broadcast, 1 constant = 16 registers.

static constexpr int kChunkRows = 6;
// From this many rows on, expanding a key tile once into scratch is cheaper than expanding it again for every chunk.
static constexpr int kPrepareKeysRows = 5;

static int64_t prepared_query_bytes(int64_t dim) { return dim * 2; }
static int64_t prepared_keys_bytes(int64_t dim) { return int64_t(kPageTokens) * dim * 2; }

// Codes as int16; dim is a multiple of 16.
static void prepare_queries(const int8_t* q, int64_t rows, int64_t dim, void* to) {
    int16_t* out = static_cast<int16_t*>(to);
    for (int64_t i = 0; i < rows * dim; i += 16) {
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + i)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), wide);
    }
}

// Eight keys x four dimensions of stored bytes -> two vectors of eight keys x two dimensions of signed int16.
static inline void expand_keys(__m256i bytes, __m256i& first, __m256i& second) {
    const __m256i low = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1,
                                         12, -1, 13, -1);
    const __m256i high = _mm256_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11,
                                          -1, 14, -1, 15, -1);
    const __m256i zero_code = _mm256_set1_epi16(128);
    first = _mm256_sub_epi16(_mm256_shuffle_epi8(bytes, low), zero_code);
    second = _mm256_sub_epi16(_mm256_shuffle_epi8(bytes, high), zero_code);
}

// [T/16][D/4][16][4] bytes -> [T/16][D/2][16][2] int16, zero at zero.
static void prepare_keys(const uint8_t* keys, int64_t dim, void* to) {
    __m256i* out = static_cast<__m256i*>(to);
    for (int64_t i = 0; i < kPageTokens * dim; i += 64, out += 4) {
        expand_keys(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i)), out[0], out[2]);
        expand_keys(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + i + 32)), out[1], out[3]);
    }
}

static inline F16 scale_by_exponent(F16 p, F16 shifted) {
    const __m256i lo = _mm256_slli_epi32(_mm256_castps_si256(shifted.lo), 23), hi = _mm256_slli_epi32(_mm256_castps_si256(shifted.hi), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.lo), lo)),
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.hi), hi))};
}

static inline void store_weight_codes(uint8_t* to, F16 a, F16 b) {
    const __m256i first = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i second = _mm256_packs_epi32(_mm256_cvtps_epi32(b.lo), _mm256_cvtps_epi32(b.hi));
    // Packing works within halves: put the eight quads back in order.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(first, second), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

// Plain intrinsics let gcc sum the products of two steps before adding them to the accumulator, run out of registers and spill every
// accumulator in every step; and fold the operands' loads into each of the six rows' multiplies, past two loads per cycle.
static inline void accumulate(__m256i& acc, __m256i product) { asm volatile("vpaddd %1, %0, %0" : "+x"(acc) : "x"(product)); }
static inline __m256i load_once(const void* p) {
    __m256i v = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    asm volatile("" : "+x"(v));
    return v;
}

template <int R>
static inline void add_products(__m256i (&acc)[R][2], const int16_t* q, int64_t dim, __m256i k0, __m256i k1) {
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r) {
        int32_t pair;
        std::memcpy(&pair, q + r * dim, 4);
        const __m256i q_pair = _mm256_set1_epi32(pair);
        accumulate(acc[r][0], _mm256_madd_epi16(q_pair, k0));
        accumulate(acc[r][1], _mm256_madd_epi16(q_pair, k1));
    }
}

template <int R, bool Prepared>
static void score_keys(const void* queries, int64_t row, const void* keys, int64_t dim, int group_begin, int group_end,
                       const float* row_scale, const float* key_scales, float (*scores)[kPageTokens]) {
    for (int g = group_begin; g < group_end; ++g) {
        const int16_t* q = static_cast<const int16_t*>(queries) + row * dim;
        __m256i acc[R][2];
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
        if constexpr (Prepared) {
            const int16_t* k = static_cast<const int16_t*>(keys) + g * dim * 16;
            for (int64_t d = 0; d < dim; d += 4, q += 4, k += 64) {
                const __m256i k0 = load_once(k), k1 = load_once(k + 16);
                add_products<R>(acc, q, dim, k0, k1);
                const __m256i k2 = load_once(k + 32), k3 = load_once(k + 48);
                add_products<R>(acc, q + 2, dim, k2, k3);
            }
        } else {
            const uint8_t* k = static_cast<const uint8_t*>(keys) + g * dim * 16;
            for (int64_t d = 0; d < dim; d += 4, q += 4, k += 64) {
                __m256i first[2], second[2];
                expand_keys(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(k)), first[0], second[0]);
                expand_keys(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + 32)), first[1], second[1]);
                add_products<R>(acc, q, dim, first[0], first[1]);
                add_products<R>(acc, q + 2, dim, second[0], second[1]);
            }
        }
        const F16 key_scale = load(key_scales + g * 16);
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r)
            store(scores[r] + g * 16, mul(mul(to_float(I16{acc[r][0], acc[r][1]}), set1(row_scale[r])), key_scale));
    }
}

template <int R>
static void add_values(const uint8_t (*codes)[kPageTokens], const int8_t* values, int64_t dim, int quad_begin, int quad_end,
                       const float* alpha, const float* scale, float* out) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t d = 0; d < dim; d += 16) {
        __m256i acc[R][2];
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
        const int8_t* v = values + quad_begin * dim * 4 + d * 4;
        for (int quad = quad_begin; quad < quad_end; ++quad, v += dim * 4) {
            const __m256i v0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v));
            const __m256i v1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + 32));
            DUOLOGUE_UNROLL
            for (int r = 0; r < R; ++r) {
                int32_t four;
                std::memcpy(&four, codes[r] + quad * 4, 4);
                const __m256i p = _mm256_set1_epi32(four);
                accumulate(acc[r][0], _mm256_madd_epi16(_mm256_maddubs_epi16(p, v0), ones));
                accumulate(acc[r][1], _mm256_madd_epi16(_mm256_maddubs_epi16(p, v1), ones));
            }
        }
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) {
            float* to = out + r * dim + d;
            const F16 kept = mul(load(to), set1(alpha[r]));
            store(to, add(kept, mul(to_float(I16{acc[r][0], acc[r][1]}), set1(scale[r]))));
        }
    }
}
