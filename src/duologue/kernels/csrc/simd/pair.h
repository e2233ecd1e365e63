// Two vectors in step. A long chain of dependent operations, such as the exponential, takes as long for one vector as for two.
struct F16x2 {
    F16 a, b;
};
struct I16x2 {
    I16 a, b;
};

#define DUOLOGUE_IN_STEP(op)                                                              \
    static inline F16x2 op(F16x2 x, F16x2 y) { return {op(x.a, y.a), op(x.b, y.b)}; } \
    static inline F16x2 op(F16x2 x, F16 y) { return {op(x.a, y), op(x.b, y)}; }       \
    static inline F16x2 op(F16 x, F16x2 y) { return {op(x, y.a), op(x, y.b)}; }
DUOLOGUE_IN_STEP(add)
DUOLOGUE_IN_STEP(sub)
DUOLOGUE_IN_STEP(mul)
DUOLOGUE_IN_STEP(div)
DUOLOGUE_IN_STEP(max)
DUOLOGUE_IN_STEP(min)
#undef DUOLOGUE_IN_STEP

static inline I16x2 to_int(F16x2 x) { return {to_int(x.a), to_int(x.b)}; }
static inline F16x2 pow2(I16x2 n) { return {pow2(n.a), pow2(n.b)}; }
