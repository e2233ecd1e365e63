// int8 GEMM with exact int32 accumulation and fused epilogues. Included inside a per-ISA namespace.

static int64_t gemm_scratch_bytes(int64_t rows, int64_t k) {
    (void)rows;
    (void)k;
    return 0;
}

static inline int32_t dot_packed(const int8_t* a, const PackedWeight& w, int64_t column) {
    const int64_t depth = w.k_padded();
    const int8_t* b = w.codes + (column / kPackColumns) * depth * kPackColumns + (column % kPackColumns) * kPackDepth;
    int32_t acc = 0;
    for (int64_t k = 0; k < depth; k += kPackDepth, b += kPackColumns * kPackDepth)
        for (int64_t j = 0; j < kPackDepth; ++j) acc += int32_t(a[k + j]) * int32_t(b[j]);
    return acc;
}

static void gemm(const GemmArgs& args, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end, void* scratch) {
    (void)scratch;
    const PackedWeight& w = *args.w;
    for (int64_t m = m_begin; m < m_end; ++m) {
        const int8_t* a = args.a + m * args.a_stride;
        const F16 a_scale = set1(args.a_scale[m]);
        F16 gate = set1(0.0f);
        for (int64_t n = n_begin; n < n_end; n += 16) {
            int32_t acc[16];
            for (int64_t j = 0; j < 16; ++j) acc[j] = dot_packed(a, w, n + j);
            if (args.acc_out != nullptr) {
                store_int(args.acc_out + m * w.n_padded() + n, load_int(acc));
                continue;
            }
            F16 y = mul(mul(to_float(load_int(acc)), a_scale), load(w.scale + n));
            if (w.bias != nullptr) y = add(y, load(w.bias + n));
            float* out = args.out + m * args.out_stride;
            int64_t column = n, limit = w.n;
            if (args.epilogue == Epilogue::kGatedSilu) {
                if (n % 32 == 0) {
                    gate = y;
                    continue;
                }
                y = mul(silu16(gate), y);
                column = n / 32 * 16;
                limit = w.n / 2;
            }
            const int64_t count = limit - column < 16 ? limit - column : 16;
            float lanes[16];
            store(lanes, y);
            for (int64_t j = 0; j < count; ++j)
                out[column + j] = args.epilogue == Epilogue::kAdd ? out[column + j] + lanes[j] : lanes[j];
        }
    }
}
