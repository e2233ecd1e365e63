// fp32 GEMM with one summation order per output, for calibration. Included inside a per-ISA namespace.

static void gemm_f32(const float* a, int64_t a_stride, const float* w, int64_t w_stride, int64_t m_begin, int64_t m_end, int64_t n,
                     int64_t k, float* out, int64_t out_stride) {
    for (int64_t m = m_begin; m < m_end; ++m)
        for (int64_t j = 0; j < n; ++j) {
            float acc = 0.0f;
            for (int64_t i = 0; i < k; ++i) acc = acc + a[m * a_stride + i] * w[j * w_stride + i];
            out[m * out_stride + j] = acc;
        }
}
