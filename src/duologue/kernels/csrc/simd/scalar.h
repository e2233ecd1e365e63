// Portable vectors: 16 lanes as plain arrays. Included inside a per-ISA namespace, once.
// Every operation is the IEEE one on each lane, so that all instruction sets give the same bits.
struct F16 {
    float lane[16];
};
struct I16 {
    int32_t lane[16];
};

#define DUOLOGUE_LANES for (int i = 0; i < 16; ++i)

static inline F16 set1(float x) { F16 r; DUOLOGUE_LANES r.lane[i] = x; return r; }
static inline F16 load(const float* p) { F16 r; DUOLOGUE_LANES r.lane[i] = p[i]; return r; }
static inline void store(float* p, F16 a) { DUOLOGUE_LANES p[i] = a.lane[i]; }
static inline F16 add(F16 a, F16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] + b.lane[i]; return a; }
static inline F16 sub(F16 a, F16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] - b.lane[i]; return a; }
static inline F16 mul(F16 a, F16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] * b.lane[i]; return a; }
static inline F16 div(F16 a, F16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] / b.lane[i]; return a; }
// max/min take the second operand when the comparison is false, as the x86 instructions do.
static inline F16 max(F16 a, F16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
static inline F16 min(F16 a, F16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
static inline F16 abs(F16 a) { DUOLOGUE_LANES a.lane[i] = std::fabs(a.lane[i]); return a; }
static inline F16 round_even(F16 a) { DUOLOGUE_LANES a.lane[i] = std::nearbyintf(a.lane[i]); return a; }

static inline I16 set1_int(int32_t x) { I16 r; DUOLOGUE_LANES r.lane[i] = x; return r; }
static inline I16 load_int(const int32_t* p) { I16 r; DUOLOGUE_LANES r.lane[i] = p[i]; return r; }
static inline void store_int(int32_t* p, I16 a) { DUOLOGUE_LANES p[i] = a.lane[i]; }
static inline I16 add_int(I16 a, I16 b) { DUOLOGUE_LANES a.lane[i] = a.lane[i] + b.lane[i]; return a; }
static inline F16 to_float(I16 a) { F16 r; DUOLOGUE_LANES r.lane[i] = static_cast<float>(a.lane[i]); return r; }
// Exact for integral lanes (callers round first).
static inline I16 to_int(F16 a) { I16 r; DUOLOGUE_LANES r.lane[i] = static_cast<int32_t>(a.lane[i]); return r; }
// 2^n for n in [-126, 127].
static inline F16 pow2(I16 n) {
    F16 r;
    DUOLOGUE_LANES {
        const uint32_t bits = static_cast<uint32_t>(n.lane[i] + 127) << 23;
        std::memcpy(&r.lane[i], &bits, 4);
    }
    return r;
}
// Lanes i < n from a, the others from b.
static inline F16 select_first(int n, F16 a, F16 b) { DUOLOGUE_LANES if (i >= n) a.lane[i] = b.lane[i]; return a; }
// a < bound ? x : y, per lane.
static inline F16 select_less(F16 a, F16 bound, F16 x, F16 y) { DUOLOGUE_LANES if (!(a.lane[i] < bound.lane[i])) x.lane[i] = y.lane[i]; return x; }
// Integral lanes in [-128, 127] (or [0, 255]) to bytes.
static inline void store_codes(int8_t* p, F16 a) { DUOLOGUE_LANES p[i] = static_cast<int8_t>(static_cast<int32_t>(a.lane[i])); }
static inline void store_codes_unsigned(uint8_t* p, F16 a) { DUOLOGUE_LANES p[i] = static_cast<uint8_t>(static_cast<int32_t>(a.lane[i])); }
static inline bool any_nonfinite(F16 a) { bool bad = false; DUOLOGUE_LANES bad = bad || !std::isfinite(a.lane[i]); return bad; }

// The one reduction tree: lanes i and i+8, then i+4, i+2, i+1.
static inline float reduce_add(F16 a) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] + a.lane[i + width];
    return a.lane[0];
}
static inline float reduce_max(F16 a) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] > a.lane[i + width] ? a.lane[i] : a.lane[i + width];
    return a.lane[0];
}
#undef DUOLOGUE_LANES
