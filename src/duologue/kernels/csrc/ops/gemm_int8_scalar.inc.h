// Portable int8 GEMM: plain products in ascending k, 16 columns at a time so that a compiler may vectorise over columns.

static int64_t gemm_block_rows(int64_t rows, int64_t) { return rows < 128 ? rows : 128; }

static int64_t gemm_scratch_bytes(int64_t rows, int64_t k) {
    (void)rows;
    (void)k;
    return 0;
}

static void gemm(const GemmArgs& args, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end, void* scratch) {
    (void)scratch;
    const PackedWeight& w = *args.w;
    const int64_t depth = w.k_padded();
    for (int64_t n = n_begin; n < n_end;) {
        const int64_t end = group_end(n, n_end);
        for (int64_t m = m_begin; m < m_end; ++m) {
            const int8_t* a = args.a + m * args.a_stride;
            int32_t acc[kPackColumns] = {};
            for (int64_t column = n; column < end; column += 16) {
                const int8_t* b = packed_columns(w, column);
                int32_t* to = acc + (column - n);
                for (int64_t k = 0; k < depth; k += kPackDepth, b += kPackStepBytes)
                    for (int j = 0; j < 16; ++j)
                        to[j] += int32_t(a[k]) * b[4 * j] + int32_t(a[k + 1]) * b[4 * j + 1] + int32_t(a[k + 2]) * b[4 * j + 2] +
                                 int32_t(a[k + 3]) * b[4 * j + 3];
            }
            finish_row(args, m, n, end, acc);
        }
        n = end;
    }
}
