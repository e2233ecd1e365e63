// AVX-512 VNNI int8 GEMM: dpbusd multiplies unsigned activations (code + 128) with signed weights; accumulators start at minus the
// columns' compensation, so they end exact. Weights are read as packed.

static constexpr int64_t kTileRows = 6;
static constexpr int64_t kRowBlockBytes = 256 << 10;  // activations that stay in L2
static constexpr int64_t kDepthSteps = 96;            // steps of four k whose 64 columns (24 KiB) stay in L1
static constexpr int64_t kStreamBytes = 2048;         // how far ahead weights that are used once are fetched

static inline int64_t flipped_stride(int64_t k) { return round_up(k, 64) + 64; }

static inline int64_t most_block_rows(int64_t k) {
    const int64_t rows = kRowBlockBytes / flipped_stride(k) / kTileRows * kTileRows;
    return rows < kTileRows ? kTileRows : rows > 252 ? 252 : rows;
}

static int64_t gemm_block_rows(int64_t rows, int64_t k) { return even_block_rows(rows, most_block_rows(k), kTileRows); }

static int64_t gemm_scratch_bytes(int64_t rows, int64_t k) {
    const int64_t block = rows < most_block_rows(k) ? rows : most_block_rows(k);
    return 64 + block * flipped_stride(k) + block * kPackColumns * 4;
}

static inline void flip_row(const int8_t* a, int64_t depth, uint8_t* out) {
    const __m512i top = _mm512_set1_epi32(static_cast<int32_t>(0x80808080u));
    int64_t k = 0;
    for (; k + 64 <= depth; k += 64) _mm512_storeu_si512(out + k, _mm512_xor_si512(_mm512_loadu_si512(a + k), top));
    for (; k < depth; ++k) out[k] = static_cast<uint8_t>(a[k] ^ 0x80);
}

enum class Fetch { kNothing, kStream, kNext };

// Rows x (Vectors * 16) columns over `steps` steps. kStream: the weights are used this once, so fetch those a little ahead into L1;
// kNext: other rows will use them too, so fetch as many behind them into L2.
template <int Rows, int Vectors, Fetch Ahead>
static void tile(const uint8_t* a, int64_t a_stride, const int8_t* b, int64_t steps, bool first, const int32_t* compensation, int32_t* c) {
    __m512i acc[Rows][Vectors];
    DUOLOGUE_UNROLL
    for (int v = 0; v < Vectors; ++v) {
        const __m512i start = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(compensation + v * 16));
        DUOLOGUE_UNROLL
        for (int r = 0; r < Rows; ++r) acc[r][v] = first ? start : _mm512_loadu_si512(c + r * kPackColumns + v * 16);
    }
    const int64_t ahead = Ahead == Fetch::kStream ? kStreamBytes : steps * kPackStepBytes;
    for (int64_t s = 0; s < steps; ++s, a += kPackDepth, b += kPackStepBytes) {
        __m512i columns[Vectors];
        DUOLOGUE_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            columns[v] = _mm512_loadu_si512(b + v * 64);
            if constexpr (Ahead == Fetch::kStream) _mm_prefetch(reinterpret_cast<const char*>(b) + ahead + v * 64, _MM_HINT_T0);
            if constexpr (Ahead == Fetch::kNext) _mm_prefetch(reinterpret_cast<const char*>(b) + ahead + v * 64, _MM_HINT_T1);
        }
        DUOLOGUE_UNROLL
        for (int r = 0; r < Rows; ++r) {
            int32_t four;
            std::memcpy(&four, a + r * a_stride, sizeof four);
            const __m512i row = _mm512_set1_epi32(four);
            DUOLOGUE_UNROLL
            for (int v = 0; v < Vectors; ++v) acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], row, columns[v]);
        }
    }
    DUOLOGUE_UNROLL
    for (int r = 0; r < Rows; ++r) {
        DUOLOGUE_UNROLL
        for (int v = 0; v < Vectors; ++v) _mm512_storeu_si512(c + r * kPackColumns + v * 16, acc[r][v]);
    }
}

template <int Vectors, Fetch Ahead>
static inline void tile_of(int64_t rows, const uint8_t* a, int64_t a_stride, const int8_t* b, int64_t steps, bool first,
                           const int32_t* compensation, int32_t* c) {
    switch (rows) {
        case 1: return tile<1, Vectors, Ahead>(a, a_stride, b, steps, first, compensation, c);
        case 2: return tile<2, Vectors, Ahead>(a, a_stride, b, steps, first, compensation, c);
        case 3: return tile<3, Vectors, Ahead>(a, a_stride, b, steps, first, compensation, c);
        case 4: return tile<4, Vectors, Ahead>(a, a_stride, b, steps, first, compensation, c);
        case 5: return tile<5, Vectors, Ahead>(a, a_stride, b, steps, first, compensation, c);
        default: return tile<kTileRows, Vectors, Ahead>(a, a_stride, b, steps, first, compensation, c);
    }
}

template <int Vectors>
static inline void tile_rows(int64_t rows, const uint8_t* a, int64_t a_stride, const int8_t* b, int64_t steps, bool first,
                             const int32_t* compensation, int32_t* c) {
    if (rows <= kTileRows) return tile_of<Vectors, Fetch::kStream>(rows, a, a_stride, b, steps, first, compensation, c);
    tile<kTileRows, Vectors, Fetch::kNext>(a, a_stride, b, steps, first, compensation, c);
    for (int64_t m = kTileRows; m < rows; m += kTileRows)
        tile_of<Vectors, Fetch::kNothing>(rows - m, a + m * a_stride, a_stride, b, steps, first, compensation, c + m * kPackColumns);
}

static void gemm(const GemmArgs& args, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end, void* scratch) {
    const PackedWeight& w = *args.w;
    const int64_t steps = w.k_padded() / kPackDepth, a_stride = flipped_stride(w.k), block = gemm_block_rows(m_end - m_begin, w.k);
    const int64_t depth_blocks = (steps + kDepthSteps - 1) / kDepthSteps;
    const int64_t most = m_end - m_begin < block ? m_end - m_begin : block;
    uint8_t* a = reinterpret_cast<uint8_t*>(align_scratch(scratch));
    int32_t* c = reinterpret_cast<int32_t*>(a + most * a_stride);
    for (int64_t m = m_begin; m < m_end; m += block) {
        const int64_t rows = m_end - m < block ? m_end - m : block;
        for (int64_t r = 0; r < rows && !args.rows_ready; ++r) flip_row(args.a + (m + r) * args.a_stride, w.k_padded(), a + r * a_stride);
        for (int64_t n = n_begin; n < n_end;) {
            const int64_t end = group_end(n, n_end);
            const int8_t* b = packed_columns(w, n);
            for (int64_t part = 0; part < depth_blocks; ++part) {
                const int64_t from = steps * part / depth_blocks, count = steps * (part + 1) / depth_blocks - from;
                const uint8_t* a_part = a + from * kPackDepth;
                const int8_t* b_part = b + from * kPackStepBytes;
                if (end - n == kPackColumns) {
                    tile_rows<4>(rows, a_part, a_stride, b_part, count, part == 0, w.compensation + n, c);
                } else {
                    for (int64_t j = 0; j < end - n; j += 16)
                        tile_rows<1>(rows, a_part, a_stride, b_part + j * kPackDepth, count, part == 0, w.compensation + n + j, c + j);
                }
            }
            for (int64_t r = 0; r < rows; ++r) finish_row(args, m + r, n, end, c + r * kPackColumns);
            n = end;
        }
    }
}
