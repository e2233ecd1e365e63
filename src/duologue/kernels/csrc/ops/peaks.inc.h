// Loops that show what the machine can do, for the bench. Included inside a per-ISA namespace.
//
// Those on registers alone return the operations done (a multiply and an add count as two), 0 where there is no such loop.

#if defined(DUOLOGUE_ISA_AVX2)

// The compiler must not see that an operand stays the same, or it would multiply once.
static inline void opaque(__m256i& x) { asm volatile("" : "+x"(x)); }
static inline void opaque(F16& x) { asm volatile("" : "+x"(x.lo), "+x"(x.hi)); }

// The exact int32 dot products that AVX2 offers: 0 on int16 (pmaddwd), 1 on bytes with the sign moved (maddubs), 2 on int16 with
// Winograd's identity (gemm_int8_avx2.inc.h).
template <int Sequence>
static int64_t int8_loop(int64_t rounds) {
    constexpr int count = Sequence == 0 ? 12 : 8;
    __m256i acc[count], x = _mm256_set1_epi8(1), y = _mm256_set1_epi8(2);
    const __m256i ones = _mm256_set1_epi16(1);
    DUOLOGUE_UNROLL
    for (int i = 0; i < count; ++i) acc[i] = _mm256_setzero_si256();
    for (int64_t round = 0; round < rounds; ++round) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < count; ++i) {
            opaque(x);
            if constexpr (Sequence == 0) add_to(acc[i], _mm256_madd_epi16(x, y));
            if constexpr (Sequence == 1) add_to(acc[i], _mm256_madd_epi16(_mm256_maddubs_epi16(y, _mm256_sign_epi8(x, y)), ones));
            if constexpr (Sequence == 2) add_to(acc[i], _mm256_madd_epi16(_mm256_add_epi16(x, y), _mm256_add_epi16(x, ones)));
        }
    }
    DUOLOGUE_UNROLL
    for (int i = 0; i < count; ++i) opaque(acc[i]);
    return rounds * count * 2 * (Sequence == 0 ? 16 : 32);
}

static int64_t int8_peak(int sequence, int64_t rounds) {
    switch (sequence) {
        case 0: return int8_loop<0>(rounds);
        case 1: return int8_loop<1>(rounds);
        case 2: return int8_loop<2>(rounds);
        default: return 0;
    }
}

static constexpr int kPeakVectors = 6;

#elif defined(DUOLOGUE_ISA_AVX512VNNI) && !defined(DUOLOGUE_SIMDE)

static inline void opaque(__m512i& x) { asm volatile("" : "+v"(x)); }
static inline void opaque(F16& x) { asm volatile("" : "+v"(x.v)); }
static constexpr int kPeakVectors = 16;

static int64_t int8_peak(int sequence, int64_t rounds) {
    if (sequence != 0) return 0;
    __m512i acc[kPeakVectors], x = _mm512_set1_epi8(1), y = _mm512_set1_epi8(2);
    DUOLOGUE_UNROLL
    for (int i = 0; i < kPeakVectors; ++i) acc[i] = _mm512_setzero_si512();
    for (int64_t round = 0; round < rounds; ++round) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < kPeakVectors; ++i) {
            opaque(x);
            acc[i] = _mm512_dpbusd_epi32(acc[i], x, y);
        }
    }
    DUOLOGUE_UNROLL
    for (int i = 0; i < kPeakVectors; ++i) opaque(acc[i]);
    return rounds * kPeakVectors * 2 * 64;
}

#endif

#if defined(DUOLOGUE_ISA_SCALAR) || (defined(DUOLOGUE_ISA_AVX512VNNI) && defined(DUOLOGUE_SIMDE))

static int64_t int8_peak(int, int64_t) { return 0; }
static int64_t fp32_peak(int64_t) { return 0; }

#else

// Multiply, then add: nothing in this project fuses them.
static int64_t fp32_peak(int64_t rounds) {
    F16 acc[kPeakVectors], x = set1(0.5f), y = set1(0.25f);
    DUOLOGUE_UNROLL
    for (int i = 0; i < kPeakVectors; ++i) acc[i] = set1(0.0f);
    for (int64_t round = 0; round < rounds; ++round) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < kPeakVectors; ++i) {
            opaque(x);
            acc[i] = add(acc[i], mul(x, y));
        }
    }
    DUOLOGUE_UNROLL
    for (int i = 0; i < kPeakVectors; ++i) opaque(acc[i]);
    return rounds * kPeakVectors * 2 * 16;
}

#endif

// Reads `count` bytes (a multiple of 256) in four streams, which is faster than one; returns `count` when any float of them is
// positive. A maximum, because a sum of integers could overflow.
static int64_t read_all(const uint8_t* bytes, int64_t count) {
    const int64_t part = count / 4;
    F16 most[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
    for (int64_t i = 0; i < part; i += 64) {
        DUOLOGUE_UNROLL
        for (int s = 0; s < 4; ++s) most[s] = max(most[s], load(reinterpret_cast<const float*>(bytes + s * part + i)));
    }
    return reduce_max(max(max(most[0], most[1]), max(most[2], most[3]))) > 0.0f ? count : 0;
}
