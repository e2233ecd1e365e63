// AVX-512 vectors: 16 lanes as one zmm register. Same contract as scalar.h.
struct F16 {
    __m512 v;
};
struct I16 {
    __m512i v;
};

static inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
static inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
static inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F16 abs(F16 a) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)))};
}
static inline F16 round_even(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

static inline I16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void store_int(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
static inline I16 add_int(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static inline I16 to_int(F16 a) { return {_mm512_cvttps_epi32(a.v)}; }
static inline F16 pow2(I16 n) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))}; }
static inline F16 select_first(int n, F16 a, F16 b) {
    const __mmask16 mask = n >= 16 ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : __mmask16((1u << n) - 1u);
    return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}
static inline F16 select_less(F16 a, F16 bound, F16 x, F16 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, bound.v, _CMP_LT_OQ), y.v, x.v)};
}
static inline void store_codes(int8_t* p, F16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvttps_epi32(a.v)));
}
static inline void store_codes_unsigned(uint8_t* p, F16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(a.v)));
}
static inline bool any_nonfinite(F16 a) {
    return _mm512_cmp_ps_mask(_mm512_sub_ps(a.v, a.v), _mm512_setzero_ps(), _CMP_NEQ_UQ) != 0;
}

static inline float reduce_add_four(__m128 four) {
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline float reduce_add(F16 a) {
    const __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), hi);
    return reduce_add_four(_mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)));
}
static inline float reduce_max(F16 a) {
    const __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
