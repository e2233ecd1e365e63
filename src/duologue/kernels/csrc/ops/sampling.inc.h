// Vocabulary-sized scans used by the sampler. Included inside a per-ISA namespace.

static float max_value(const float* x, int64_t count) {
    F16 best = set1(-INFINITY);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) best = max(load(x + i), best);
    float result = reduce_max(best);
    for (; i < count; ++i) result = x[i] > result ? x[i] : result;
    return result;
}

static int64_t argmax(const float* x, int64_t count) {
    const float best = max_value(x, count);
    for (int64_t i = 0; i < count; ++i)
        if (x[i] == best) return i;
    return 0;
}

static float softmax_weights(const float* x, int64_t count, float max, float inv_temperature, float* out) {
    const F16 m = set1(max), t = set1(inv_temperature);
    F16 lanes = set1(0.0f);
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const F16 e = exp16_nonpositive(mul(sub(load(x + i), m), t));
        store(out + i, e);
        lanes = add(lanes, e);
    }
    if (i < count) {
        float tail[16];
        for (int j = 0; j < 16; ++j) tail[j] = i + j < count ? x[i + j] : -INFINITY;
        const F16 e = exp16_nonpositive(mul(sub(load(tail), m), t));
        store(tail, e);
        std::memcpy(out + i, tail, sizeof(float) * static_cast<size_t>(count - i));
        lanes = add(lanes, e);
    }
    return reduce_add(lanes);
}
