// AVX2 vectors: 16 lanes as two ymm registers. Same contract as scalar.h.
struct F16 {
    __m256 lo, hi;
};
struct I16 {
    __m256i lo, hi;
};

static inline F16 set1(float x) { const __m256 v = _mm256_set1_ps(x); return {v, v}; }
static inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline F16 abs(F16 a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
static inline F16 round_even(F16 a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}

static inline I16 set1_int(int32_t x) { const __m256i v = _mm256_set1_epi32(x); return {v, v}; }
static inline I16 load_int(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
static inline void store_int(int32_t* p, I16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
static inline I16 add_int(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline I16 to_int(F16 a) { return {_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)}; }
static inline F16 pow2(I16 n) {
    const __m256i bias = _mm256_set1_epi32(127);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23))};
}
static inline F16 select_first(int n, F16 a, F16 b) {
    const __m256i count = _mm256_set1_epi32(n);
    const __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i hi = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lo))),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, hi)))};
}
static inline F16 select_less(F16 a, F16 bound, F16 x, F16 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, bound.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, bound.hi, _CMP_LT_OQ))};
}
static inline __m128i narrow_to_int16(__m256i v) {
    const __m256i packed = _mm256_packs_epi32(v, v);  // [0..3 0..3 | 4..7 4..7]
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
static inline void store_codes(int8_t* p, F16 a) {
    const __m128i lo = narrow_to_int16(_mm256_cvttps_epi32(a.lo));
    const __m128i hi = narrow_to_int16(_mm256_cvttps_epi32(a.hi));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(lo, hi));
}
static inline void store_codes_unsigned(uint8_t* p, F16 a) {
    const __m128i lo = narrow_to_int16(_mm256_cvttps_epi32(a.lo));
    const __m128i hi = narrow_to_int16(_mm256_cvttps_epi32(a.hi));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(lo, hi));
}
static inline bool any_nonfinite(F16 a) {
    // x - x is 0 for finite x and NaN otherwise.
    const __m256 zero = _mm256_setzero_ps();
    const __m256 lo = _mm256_cmp_ps(_mm256_sub_ps(a.lo, a.lo), zero, _CMP_NEQ_UQ);
    const __m256 hi = _mm256_cmp_ps(_mm256_sub_ps(a.hi, a.hi), zero, _CMP_NEQ_UQ);
    return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}

static inline float reduce_add(F16 a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float reduce_max(F16 a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
