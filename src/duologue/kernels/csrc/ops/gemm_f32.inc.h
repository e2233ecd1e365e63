// fp32 GEMM with one summation order per output, for calibration. Included inside a per-ISA namespace.
//
// out[m, n] adds a[m, k] * w[n, k] in ascending k, the product rounded first. Vectors run over columns, so blocking never touches
// that order: a block of k only takes up the sums where the one before left them.

#if defined(DUOLOGUE_ISA_AVX512VNNI)
static constexpr int kPanelVectors = 4;  // 24 accumulators
#else
static constexpr int kPanelVectors = 1;  // 12 ymm accumulators
#endif
static constexpr int kPanelColumns = kPanelVectors * 16;
static constexpr int kPanelRows = 6;
static constexpr int64_t kPanelDepth = 256;
static constexpr int64_t kFloatRowBlock = 192;  // rows x kPanelDepth floats stay in L2

// panel [depth][kPanelColumns] of w's rows n .. n + columns, zero beyond.
static inline void transpose_panel(const float* w, int64_t w_stride, int64_t columns, int64_t depth, float* panel) {
    if (columns < kPanelColumns) std::memset(panel, 0, sizeof(float) * static_cast<size_t>(depth * kPanelColumns));
    for (int64_t n = 0; n < columns; ++n)
        for (int64_t k = 0; k < depth; ++k) panel[k * kPanelColumns + n] = w[n * w_stride + k];
}

template <int Rows>
static inline void panel_rows(const float* a, int64_t a_stride, const float* panel, int64_t depth, bool first, float* c, int64_t c_stride) {
    F16 acc[Rows][kPanelVectors];
    DUOLOGUE_UNROLL
    for (int r = 0; r < Rows; ++r) {
        DUOLOGUE_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = first ? set1(0.0f) : load(c + r * c_stride + v * 16);
    }
    for (int64_t k = 0; k < depth; ++k, panel += kPanelColumns) {
        F16 columns[kPanelVectors];
        DUOLOGUE_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) columns[v] = load(panel + v * 16);
        DUOLOGUE_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const F16 row = set1(a[r * a_stride + k]);
            DUOLOGUE_UNROLL
            for (int v = 0; v < kPanelVectors; ++v) acc[r][v] = add(acc[r][v], mul(row, columns[v]));
        }
    }
    DUOLOGUE_UNROLL
    for (int r = 0; r < Rows; ++r) {
        DUOLOGUE_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) store(c + r * c_stride + v * 16, acc[r][v]);
    }
}

static inline void panel_block(const float* a, int64_t a_stride, int64_t rows, const float* panel, int64_t depth, bool first, float* c,
                               int64_t c_stride) {
    int64_t m = 0;
    for (; m + kPanelRows <= rows; m += kPanelRows)
        panel_rows<kPanelRows>(a + m * a_stride, a_stride, panel, depth, first, c + m * c_stride, c_stride);
    for (; m < rows; ++m) panel_rows<1>(a + m * a_stride, a_stride, panel, depth, first, c + m * c_stride, c_stride);
}

static void gemm_f32(const float* a, int64_t a_stride, const float* w, int64_t w_stride, int64_t m_begin, int64_t m_end, int64_t n,
                     int64_t k, float* out, int64_t out_stride) {
    alignas(64) float panel[kPanelDepth * kPanelColumns];
    alignas(64) float edge[kFloatRowBlock * kPanelColumns];  // results of a panel that reaches past n
    for (int64_t m = m_begin; m < m_end; m += kFloatRowBlock) {
        const int64_t rows = m_end - m < kFloatRowBlock ? m_end - m : kFloatRowBlock;
        // An empty depth still writes its zeros.
        for (int64_t from = 0; from == 0 || from < k; from += kPanelDepth) {
            const int64_t depth = k - from < kPanelDepth ? k - from : kPanelDepth;
            for (int64_t j = 0; j < n; j += kPanelColumns) {
                const int64_t columns = n - j < kPanelColumns ? n - j : kPanelColumns;
                const float* a_block = a + m * a_stride + from;
                float* c = out + m * out_stride + j;
                transpose_panel(w + j * w_stride + from, w_stride, columns, depth, panel);
                if (columns == kPanelColumns) {
                    panel_block(a_block, a_stride, rows, panel, depth, from == 0, c, out_stride);
                    continue;
                }
                const size_t bytes = sizeof(float) * static_cast<size_t>(columns);
                for (int64_t r = 0; r < rows && from > 0; ++r) std::memcpy(edge + r * kPanelColumns, c + r * out_stride, bytes);
                panel_block(a_block, a_stride, rows, panel, depth, from == 0, edge, kPanelColumns);
                for (int64_t r = 0; r < rows; ++r) std::memcpy(c + r * out_stride, edge + r * kPanelColumns, bytes);
            }
        }
    }
}
