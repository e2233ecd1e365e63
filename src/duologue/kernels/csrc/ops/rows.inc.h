// Row-wise kernels: exponential, RMSNorm, the one quantiser, RoPE, KV stores. Included inside a per-ISA namespace.

#include "simd/pair.h"

// exp(x), about 1 ulp: x = n ln2 + r, degree-6 polynomial in r, scaled by 2^n in two halves so that the whole fp32 range works.
// Below -87.3 the result is exactly 0 (the softmax tail); above 88.7 it is infinite. Plain multiply and add: on AVX2 cores the two
// run on different ports, so fusing would gain nothing and would make the result depend on the instruction set.
static inline F16 exp16(F16 x) {
    const F16 clamped = max(min(x, set1(89.0f)), set1(-88.0f));
    const F16 n = round_even(mul(clamped, set1(1.44269504f)));
    F16 r = sub(clamped, mul(n, set1(0.693359375f)));  // ln2's high part: n * it is exact
    r = add(r, mul(n, set1(2.12194440e-4f)));        // minus its (negative) low part
    F16 p = add(mul(r, set1(1.9875691500e-4f)), set1(1.3981999507e-3f));
    p = add(mul(p, r), set1(8.3334519073e-3f));
    p = add(mul(p, r), set1(4.1665795894e-2f));
    p = add(mul(p, r), set1(1.6666665459e-1f));
    p = add(mul(p, r), set1(5.0000001201e-1f));
    p = add(add(mul(mul(p, r), r), r), set1(1.0f));
    const F16 half = round_even(mul(n, set1(0.5f)));
    const F16 scaled = mul(mul(p, pow2(to_int(half))), pow2(to_int(sub(n, half))));
    return select_less(x, set1(-87.3f), set1(0.0f), scaled);
}

// The same for x <= 0 (softmax): one scaling is enough because n >= -126.
static inline F16 exp16_nonpositive(F16 x) {
    const F16 clamped = max(x, set1(-87.3f));
    const F16 n = round_even(mul(clamped, set1(1.44269504f)));
    F16 r = sub(clamped, mul(n, set1(0.693359375f)));
    r = add(r, mul(n, set1(2.12194440e-4f)));
    F16 p = set1(1.9875691500e-4f);
    p = add(mul(p, r), set1(1.3981999507e-3f));
    p = add(mul(p, r), set1(8.3334519073e-3f));
    p = add(mul(p, r), set1(4.1665795894e-2f));
    p = add(mul(p, r), set1(1.6666665459e-1f));
    p = add(mul(p, r), set1(5.0000001201e-1f));
    p = add(add(mul(mul(p, r), r), r), set1(1.0f));
    return select_less(x, set1(-87.3f), set1(0.0f), mul(p, pow2(to_int(n))));
}

// x / (1 + exp16(-z)), the same bits in half the operations: what is added to 1 counts for nothing below 2^-25, so that nothing small
// needs care, and doubling p keeps the power of two in range. (Adding 1.5 * 2^23 rounds to an integer.)
template <typename V>
static inline V times_sigmoid16(V x, V z) {
    const V clamped = max(min(sub(set1(0.0f), z), set1(89.0f)), set1(-80.0f));
    const V shifted = add(mul(clamped, set1(1.44269504f)), set1(12582912.0f));
    const V n = sub(shifted, set1(12582912.0f));
    V r = sub(clamped, mul(n, set1(0.693359375f)));
    r = add(r, mul(n, set1(2.12194440e-4f)));
    V p = add(mul(r, set1(1.9875691500e-4f)), set1(1.3981999507e-3f));
    p = add(mul(p, r), set1(8.3334519073e-3f));
    p = add(mul(p, r), set1(4.1665795894e-2f));
    p = add(mul(p, r), set1(1.6666665459e-1f));
    p = add(mul(p, r), set1(5.0000001201e-1f));
    p = add(add(mul(mul(p, r), r), r), set1(1.0f));
    const V e = mul(add(p, p), pow2(to_int(sub(shifted, set1(12582913.0f)))));
    return div(x, add(set1(1.0f), e));
}

template <typename V>
static inline V silu16(V x) {
    return times_sigmoid16(x, x);
}

// x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, by (1 + tanh(u)) / 2 = sigmoid(2u).
template <typename V>
static inline V gelu16(V x) {
    return times_sigmoid16(x, mul(x, add(mul(mul(x, x), set1(0.0713548163f)), set1(1.59576912f))));
}

// cap * tanh(x / cap) = 2 cap sigmoid(2 x / cap) - cap; inverse = 2 / cap. Its error is that of a number near cap.
template <typename V>
static inline V softcap16(V x, float cap, float inverse) {
    return sub(times_sigmoid16(set1(2.0f * cap), mul(x, set1(inverse))), set1(cap));
}

template <typename V>
static inline V limit16(V x, float limit) {
    return max(min(x, set1(limit)), set1(-limit));
}

// amax below 2^-120 counts as zero: scale 1, zero codes.
static inline bool is_zero_row(float amax) { return !(amax >= 7.52316385e-37f); }

static inline float amax_row(const float* x, int64_t k) {
    F16 best = set1(0.0f);
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) best = max(abs(load(x + i)), best);
    float amax = reduce_max(best);
    for (; i < k; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
    return amax;
}

static inline F16 codes16(F16 x, F16 inv) { return max(min(round_even(mul(x, inv)), set1(127.0f)), set1(-127.0f)); }

static inline float code1(float x, float inv) {
    const float rounded = std::nearbyintf(x * inv);
    return rounded > 127.0f ? 127.0f : rounded < -127.0f ? -127.0f : rounded;
}

static inline float quantize_row(const float* x, int64_t k, int8_t* codes, int64_t k_padded) {
    const float amax = amax_row(x, k);
    if (is_zero_row(amax)) {
        std::memset(codes, 0, static_cast<size_t>(k_padded));
        return 1.0f;
    }
    const float inv = 127.0f / amax;
    const F16 inv16 = set1(inv);
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) store_codes(codes + i, codes16(load(x + i), inv16));
    for (; i < k; ++i) codes[i] = static_cast<int8_t>(code1(x[i], inv));
    for (; i < k_padded; ++i) codes[i] = 0;
    return amax / 127.0f;
}

static void quantize_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, int8_t* codes, int64_t codes_stride, float* scale) {
    for (int64_t m = 0; m < rows; ++m)
        scale[m] = quantize_row(x + m * x_stride, k, codes + m * codes_stride, round_up(k, kPackDepth));
}

// 1 / sqrt(mean(x^2) + eps): 16 running lanes, the fixed tree, then the tail in order.
static inline float inverse_rms(const float* x, int64_t k, float eps) {
    F16 lanes = set1(0.0f);
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        const F16 v = load(x + i);
        lanes = add(lanes, mul(v, v));
    }
    float sum = reduce_add(lanes);
    for (; i < k; ++i) sum = sum + x[i] * x[i];
    return 1.0f / std::sqrt(sum / static_cast<float>(k) + eps);
}

static void rmsnorm_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, const float* weight, float eps, float* out,
                         int64_t out_stride) {
    for (int64_t m = 0; m < rows; ++m) {
        const float* row = x + m * x_stride;
        float* to = out + m * out_stride;
        const float r = inverse_rms(row, k, eps);
        const F16 r16 = set1(r);
        int64_t i = 0;
        for (; i + 16 <= k; i += 16) store(to + i, mul(mul(load(row + i), r16), load(weight + i)));
        for (; i < k; ++i) to[i] = (row[i] * r) * weight[i];
    }
}

// The normalised row is recomputed for the codes instead of kept: it costs two multiplies and no memory.
static void rmsnorm_quantize_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, const float* weight, float eps,
                                  int8_t* codes, int64_t codes_stride, float* scale) {
    for (int64_t m = 0; m < rows; ++m) {
        const float* row = x + m * x_stride;
        int8_t* to = codes + m * codes_stride;
        const float r = inverse_rms(row, k, eps);
        const F16 r16 = set1(r);
        F16 best = set1(0.0f);
        int64_t i = 0;
        for (; i + 16 <= k; i += 16) best = max(abs(mul(mul(load(row + i), r16), load(weight + i))), best);
        float amax = reduce_max(best);
        for (; i < k; ++i) {
            const float v = std::fabs((row[i] * r) * weight[i]);
            amax = v > amax ? v : amax;
        }
        const int64_t k_padded = round_up(k, kPackDepth);
        if (is_zero_row(amax)) {
            std::memset(to, 0, static_cast<size_t>(k_padded));
            scale[m] = 1.0f;
            continue;
        }
        const float inv = 127.0f / amax;
        const F16 inv16 = set1(inv);
        for (i = 0; i + 16 <= k; i += 16) store_codes(to + i, codes16(mul(mul(load(row + i), r16), load(weight + i)), inv16));
        for (; i < k; ++i) to[i] = static_cast<int8_t>(code1((row[i] * r) * weight[i], inv));
        for (; i < k_padded; ++i) to[i] = 0;
        scale[m] = amax / 127.0f;
    }
}

static void rmsnorm_add_rows(const float* from, int64_t from_stride, int64_t rows, int64_t k, const float* weight, float eps, float* x,
                             int64_t x_stride) {
    for (int64_t m = 0; m < rows; ++m) {
        const float* row = from + m * from_stride;
        float* to = x + m * x_stride;
        const float r = inverse_rms(row, k, eps);
        const F16 r16 = set1(r);
        int64_t i = 0;
        for (; i + 16 <= k; i += 16) store(to + i, add(load(to + i), mul(mul(load(row + i), r16), load(weight + i))));
        for (; i < k; ++i) to[i] = to[i] + (row[i] * r) * weight[i];
    }
}

// Tails run through the same 16-lane code on a padded copy, so that every element sees the same arithmetic.
template <typename Gate>
static inline void gate_mul(Gate&& gated, const float* gate, const float* up, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) store(out + i, mul(gated(load(gate + i)), load(up + i)));
    if (i < count) {
        float g[16] = {}, u[16] = {}, o[16];
        std::memcpy(g, gate + i, sizeof(float) * static_cast<size_t>(count - i));
        std::memcpy(u, up + i, sizeof(float) * static_cast<size_t>(count - i));
        store(o, mul(gated(load(g)), load(u)));
        std::memcpy(out + i, o, sizeof(float) * static_cast<size_t>(count - i));
    }
}

static void silu_mul(const float* gate, const float* up, int64_t count, float* out) {
    gate_mul([](F16 x) { return silu16(x); }, gate, up, count, out);
}

static void gelu_mul(const float* gate, const float* up, int64_t count, float* out) {
    gate_mul([](F16 x) { return gelu16(x); }, gate, up, count, out);
}

static void exp_array(const float* x, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) store(out + i, exp16(load(x + i)));
    if (i < count) {
        float a[16] = {}, o[16];
        std::memcpy(a, x + i, sizeof(float) * static_cast<size_t>(count - i));
        store(o, exp16(load(a)));
        std::memcpy(out + i, o, sizeof(float) * static_cast<size_t>(count - i));
    }
}

static void rope_rotate(float* x, int64_t head_dim, const float* cos, const float* sin) {
    const int64_t half = head_dim / 2;
    float* upper = x + half;
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) {
        const F16 a = load(x + i), b = load(upper + i), c = load(cos + i), s = load(sin + i);
        store(x + i, sub(mul(a, c), mul(b, s)));
        store(upper + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = upper[i];
        x[i] = a * cos[i] - b * sin[i];
        upper[i] = b * cos[i] + a * sin[i];
    }
}

// head_dim is at most 256 (checked when a model is loaded).
static void kv_store(const float* key, const float* value, int64_t head_dim, uint8_t* block, int64_t slot) {
    const KvBlockLayout layout{head_dim};
    int8_t codes[256];
    float* key_scales = reinterpret_cast<float*>(block + layout.key_scales_offset());
    float* value_scales = reinterpret_cast<float*>(block + layout.value_scales_offset());

    key_scales[slot] = quantize_row(key, head_dim, codes, head_dim);
    uint8_t* keys = block + (slot / 16) * head_dim * 16 + (slot % 16) * 4;  // [T/16][D/4][16][4]
    for (int64_t d = 0; d < head_dim; d += 4)
        for (int64_t j = 0; j < 4; ++j) keys[(d / 4) * 64 + j] = static_cast<uint8_t>(codes[d + j] + 128);

    value_scales[slot] = quantize_row(value, head_dim, codes, head_dim);
    uint8_t* values = block + layout.values_offset() + (slot / 4) * head_dim * 4 + slot % 4;  // [T/4][D][4]
    for (int64_t d = 0; d < head_dim; ++d) values[d * 4] = static_cast<uint8_t>(codes[d]);
}

static bool all_finite(const float* x, int64_t count) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        if (any_nonfinite(load(x + i))) return false;
    for (; i < count; ++i)
        if (!std::isfinite(x[i])) return false;
    return true;
}
