// Attention tiles with AVX2. Included by attention.inc.h.
//
// A Zen 3 core issues four vector operations per cycle, two of them multiplies.
// q . k on int16 pairs (vpmaddwd, exact): bytes 0 and 2, 1 and 3 of every four become "even" and "odd" with a mask and a shift.
//   Few rows (decode): two multiplies and two adds per 32 products, keys widened on the way.
//   Many rows (prefill): keys widened once into scratch, and Winograd's identity as in the GEMM:
//     sum q0 k0 + q1 k1 = sum (q0 + k1)(q1 + k0) - sum q0 q1 - sum k0 k1
//   one multiply and three adds per 32 products, which the two multiplying pipes sustain better. Keys stay unsigned (code + 128); the
//   row's constant takes out both q0 q1 and 128 sum(q).
// P . V on bytes: codes are at most 127, so pairs (vpmaddubsw) cannot saturate: 2 * 127 * 127 < 2^15. Two multiplies and an add.

static constexpr int kChunkRows = 8;
// From this many rows on, widening a key tile once into scratch is cheaper than widening it again for every chunk.
static constexpr int kPrepareKeysRows = 16;

// A row's codes as int16, dimensions 0 2 1 3 of every four, then the two starting values of its accumulators:
// -128 sum(q) for plain products, and that less sum q0 q1 for Winograd's.
static constexpr int64_t query_stride(int64_t dim) { return dim + 4; }  // int16
static int64_t prepared_query_bytes(int64_t dim) { return query_stride(dim) * 2; }
// [T/16][D/4][even 0-7, even 8-15, odd 0-7, odd 8-15][8][2] int16, then sum k0 k1 [T] int32.
static int64_t prepared_keys_bytes(int64_t dim) { return int64_t(kPageTokens) * (dim * 2 + 4); }

static void prepare_queries(const int8_t* q, int64_t rows, int64_t dim, void* to) {
    int16_t* out = static_cast<int16_t*>(to);
    for (int64_t r = 0; r < rows; ++r, q += dim, out += query_stride(dim)) {
        __m256i sum = _mm256_setzero_si256(), products = sum;
        for (int64_t d = 0; d < dim; d += 16) {
            const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q + d)));
            const __m256i pairs = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(wide, 0xd8), 0xd8);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + d), pairs);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(wide, _mm256_set1_epi16(-128)));
            products = _mm256_add_epi32(products, _mm256_madd_epi16(wide, _mm256_srli_epi32(wide, 16)));
        }
        const int32_t plain = sum_lanes(sum), start[2] = {plain, plain - sum_lanes(products)};
        std::memcpy(out + dim, start, 8);
    }
}

static inline __m256i even_bytes(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi16(0xff)); }
static inline __m256i odd_bytes(__m256i bytes) { return _mm256_srli_epi16(bytes, 8); }

static void prepare_keys(const uint8_t* keys, int64_t dim, int64_t ahead, void* to) {
    __m256i* out = static_cast<__m256i*>(to);
    __m256i* products = out + int64_t(kPageTokens) * dim / 16;
    for (int64_t group = 0; group < kPageTokens / 16; ++group, products += 2) {
        __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int64_t d = 0; d < dim; d += 4, keys += 64, out += 4) {
            __builtin_prefetch(keys + ahead);
            for (int half = 0; half < 2; ++half) {
                const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + half * 32));
                const __m256i even = even_bytes(bytes), odd = odd_bytes(bytes);
                _mm256_store_si256(out + half, even);
                _mm256_store_si256(out + 2 + half, odd);
                sum[half] = _mm256_add_epi32(sum[half], _mm256_madd_epi16(even, odd));
            }
        }
        _mm256_store_si256(products, sum[0]);
        _mm256_store_si256(products + 1, sum[1]);
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

static inline __m256i broadcast_pair(const int16_t* q) {
    int32_t pair;
    std::memcpy(&pair, q, 4);
    return _mm256_set1_epi32(pair);
}

template <int R>
static inline void store_scores(const __m256i (&acc)[R][2], int g, const float* row_scale, const float* key_scales,
                                float (*scores)[kPageTokens]) {
    const F16 key_scale = load(key_scales + g * 16);
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r)
        store(scores[r] + g * 16, mul(mul(to_float(I16{acc[r][0], acc[r][1]}), set1(row_scale[r])), key_scale));
}

template <int R>
static void score_prepared(const int16_t* q_rows, const __m256i* keys, int64_t dim, int group_begin, int group_end, const float* row_scale,
                           const float* key_scales, float (*scores)[kPageTokens]) {
    const int64_t stride = query_stride(dim);
    const __m256i* products = keys + int64_t(kPageTokens) * dim / 16;
    for (int g = group_begin; g < group_end; ++g) {
        const int16_t* q = q_rows;
        const __m256i* k = keys + g * dim;
        __m256i acc[R][2];
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) {
            const __m256i start = broadcast_pair(q + r * stride + dim + 2);
            acc[r][0] = _mm256_sub_epi32(start, products[g * 2]);
            acc[r][1] = _mm256_sub_epi32(start, products[g * 2 + 1]);
        }
        for (int64_t d = 0; d < dim; d += 4, q += 4, k += 4) {
            const __m256i e0 = load_once(k), e1 = load_once(k + 1), o0 = load_once(k + 2), o1 = load_once(k + 3);
            DUOLOGUE_UNROLL
            for (int r = 0; r < R; ++r) {
                const __m256i even = broadcast_pair(q + r * stride), odd = broadcast_pair(q + r * stride + 2);
                accumulate(acc[r][0], _mm256_madd_epi16(_mm256_add_epi16(even, o0), _mm256_add_epi16(odd, e0)));
                accumulate(acc[r][1], _mm256_madd_epi16(_mm256_add_epi16(even, o1), _mm256_add_epi16(odd, e1)));
            }
        }
        store_scores<R>(acc, g, row_scale, key_scales, scores);
    }
}

template <int R>
static inline void add_products(__m256i (&acc)[R][2], const int16_t* q, int64_t stride, __m256i k0, __m256i k1) {
    DUOLOGUE_UNROLL
    for (int r = 0; r < R; ++r) {
        const __m256i pair = broadcast_pair(q + r * stride);
        accumulate(acc[r][0], _mm256_madd_epi16(pair, k0));
        accumulate(acc[r][1], _mm256_madd_epi16(pair, k1));
    }
}

template <int R>
static void score_stored(const int16_t* q_rows, const uint8_t* keys, int64_t dim, int group_begin, int group_end, int64_t ahead,
                         const float* row_scale, const float* key_scales, float (*scores)[kPageTokens]) {
    const int64_t stride = query_stride(dim);
    for (int g = group_begin; g < group_end; ++g) {
        const int16_t* q = q_rows;
        const uint8_t* k = keys + g * dim * 16;
        __m256i acc[R][2];
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = broadcast_pair(q + r * stride + dim);
        for (int64_t d = 0; d < dim; d += 4, q += 4, k += 64) {
            __builtin_prefetch(k + ahead);
            // Loaded twice: holding even and odd at once over twelve accumulators would spill one.
            add_products<R>(acc, q, stride, even_bytes(load_once(k)), even_bytes(load_once(k + 32)));
            add_products<R>(acc, q + 2, stride, odd_bytes(load_once(k)), odd_bytes(load_once(k + 32)));
        }
        store_scores<R>(acc, g, row_scale, key_scales, scores);
    }
}

template <int R>
static void score_keys(bool prepared, const void* queries, int64_t row, const void* keys, int64_t dim, int group_begin, int group_end,
                       int64_t ahead, const float* row_scale, const float* key_scales, float (*scores)[kPageTokens]) {
    const int16_t* q = static_cast<const int16_t*>(queries) + row * query_stride(dim);
    if (prepared) {
        const __m256i* k = static_cast<const __m256i*>(keys);
        constexpr int kFirst = R < 4 ? R : 4;
        score_prepared<kFirst>(q, k, dim, group_begin, group_end, row_scale, key_scales, scores);
        if constexpr (R > kFirst)
            score_prepared<R - kFirst>(q + kFirst * query_stride(dim), k, dim, group_begin, group_end, row_scale + kFirst, key_scales,
                                       scores + kFirst);
        return;
    }
    const uint8_t* k = static_cast<const uint8_t*>(keys);
    constexpr int kFirst = R > 6 ? 4 : R;
    score_stored<kFirst>(q, k, dim, group_begin, group_end, ahead, row_scale, key_scales, scores);
    if constexpr (R > kFirst)
        score_stored<R - kFirst>(q + kFirst * query_stride(dim), k, dim, group_begin, group_end, 0, row_scale + kFirst, key_scales,
                                 scores + kFirst);
}

template <int R>
static void add_value_rows(const uint8_t (*codes)[kPageTokens], const int8_t* values, int64_t dim, int quad_begin, int quad_end,
                       int64_t ahead, const float* alpha, const float* scale, float* out) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t d = 0; d < dim; d += 16) {
        __m256i acc[R][2];
        DUOLOGUE_UNROLL
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = _mm256_setzero_si256();
        const int8_t* v = values + quad_begin * dim * 4 + d * 4;
        for (int quad = quad_begin; quad < quad_end; ++quad, v += dim * 4) {
            const __m256i v0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v));
            __builtin_prefetch(v + ahead);
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

template <int R>
static void add_values(const uint8_t (*codes)[kPageTokens], const int8_t* values, int64_t dim, int quad_begin, int quad_end,
                       int64_t ahead, const float* alpha, const float* scale, float* out) {
    constexpr int kFirst = R > 6 ? 4 : R;
    add_value_rows<kFirst>(codes, values, dim, quad_begin, quad_end, ahead, alpha, scale, out);
    if constexpr (R > kFirst)
        add_value_rows<R - kFirst>(codes + kFirst, values, dim, quad_begin, quad_end, 0, alpha + kFirst, scale + kFirst, out + kFirst * dim);
}
