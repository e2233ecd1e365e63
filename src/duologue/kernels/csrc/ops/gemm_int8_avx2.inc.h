// AVX2 int8 GEMM.
//
// AVX2 has no exact byte dot product: maddubs needs one unsigned side, and taking the sign per pair costs as much as widening.
// So both sides are widened to int16 once and reused: bytes (0, 2) and (1, 3) of every four become two vectors, "even" and "odd".
// Over eight rows, the tiles also use Winograd's identity (1968), exact in integers:
//     sum a0 b0 + a1 b1 = sum (a0 + b1)(a1 + b0) - sum a0 a1 - sum b0 b1
// which halves the multiplications. One pmaddwd, two paddw and one paddd make 32 products, where plain pmaddwd needs two and two;
// on Zen 3 only two of the four vector pipes multiply, and the tile runs at 56 operations per cycle where a loop of plain
// pmaddwd + paddd on registers alone peaks at 51. Fewer rows read each weight once and widen it on the fly: there the identity's
// sum over the weights would cost what it saves.

//
// A tile reads 32 or 64 bytes of every 256, a pattern that the hardware fetches late: from memory, four rows ran at 6 GB/s instead
// of 14. So each tile asks for its share of the next 64 columns, line by line, while it works on its own.

static constexpr int64_t kRowBlockBytes = 416 << 10;  // widened activations that stay in L2 (512 KiB)
static constexpr int64_t kDepthSteps = 144;           // steps of four k whose widened weights (18 KiB) stay in L1
static constexpr int64_t kStreamBytes = 2048;         // how far ahead a single row fetches its weights
static constexpr int64_t kWidenAhead = 24;            // steps whose weights are on their way while columns are widened
static constexpr int64_t kFinishAhead = 6;            // rows whose output is on its way while a row is finished

static inline __m256i even_codes(__m256i bytes) { return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8); }
static inline __m256i odd_codes(__m256i bytes) { return _mm256_srai_epi16(bytes, 8); }
static inline int32_t sum_lanes(__m256i v) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

// Left to plain intrinsics, gcc reassociates the sums of neighbouring steps and spills accumulators, and folds the weights' loads
// into every row's additions, so that loads limit the tile.
static inline void add_to(__m256i& acc, __m256i product) { asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(product)); }
static inline void keep_in_registers(__m256i& a, __m256i& b, __m256i& c, __m256i& d) { asm("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d)); }

static inline void fetch_to_l1(const int8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
static inline void fetch_to_l2(const int8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

// Rows up to which weights are widened on the fly.
static constexpr int64_t kDirectRows = 8;
// Rows of a tile, whose widened codes lie side by side: one stream for the fetcher, one address.
static constexpr int64_t kTileRows = 4;

// int32 words of a widened row: two (even, odd) per four codes. The odd cache line keeps rows off each other's L1 sets.
static inline int64_t widened_stride(int64_t k) { return round_up(k, 32) / 2 + 16; }

static inline int64_t most_block_rows(int64_t k) {
    const int64_t rows = kRowBlockBytes / (widened_stride(k) * 4) / kTileRows * kTileRows;
    return rows < kDirectRows ? kDirectRows : rows > 256 ? 256 : rows;
}

static int64_t gemm_block_rows(int64_t rows, int64_t k) { return even_block_rows(rows, most_block_rows(k), kTileRows); }

static int64_t gemm_scratch_bytes(int64_t rows, int64_t k) {
    const int64_t block = rows < most_block_rows(k) ? rows : most_block_rows(k);
    return 64 + round_up(block, kTileRows) * widened_stride(k) * 4 + kDepthSteps * 128 + block * (kPackColumns + 16) * 4;
}

// 32 codes from a + k, zeros past depth.
static inline __m256i codes_at(const int8_t* a, int64_t k, int64_t depth) {
    if (k + 32 <= depth) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + k));
    alignas(32) int8_t tail[32] = {};
    std::memcpy(tail, a + k, static_cast<size_t>(depth - k));
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(tail));
}

// out [K/4][even, odd] int32 pairs of int16.
static inline void widen_row(const int8_t* a, int64_t depth, int32_t* out) {
    for (int64_t k = 0; k < depth; k += 32, out += 16) {
        const __m256i bytes = codes_at(a, k, depth);
        const __m256i even = even_codes(bytes), odd = odd_codes(bytes);
        const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
        _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_store_si256(reinterpret_cast<__m256i*>(out) + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
}

// Four rows, of which `rows` exist: out [K/4][4 rows][even, odd] int32 pairs of int16; products[r] = sum a0 a1 + a2 a3.
static inline void widen_panel(const int8_t* a, int64_t a_stride, int64_t rows, int64_t depth, int32_t* out, int32_t* products) {
    __m256i sums[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    const int8_t* row[4];
    for (int64_t r = 0; r < 4; ++r) row[r] = a + (r < rows ? r : 0) * a_stride;
    for (int64_t k = 0; k < depth; k += 32, out += 64) {
        __m256i low[4], high[4];  // of each half: steps 0 and 1, 2 and 3, as (even, odd)
        DUOLOGUE_UNROLL
        for (int r = 0; r < 4; ++r) {
            const __m256i bytes = codes_at(row[r], k, depth);
            const __m256i even = even_codes(bytes), odd = odd_codes(bytes);
            sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(even, odd));
            low[r] = _mm256_unpacklo_epi32(even, odd);
            high[r] = _mm256_unpackhi_epi32(even, odd);
        }
        __m256i* to = reinterpret_cast<__m256i*>(out);
        DUOLOGUE_UNROLL
        for (int i = 0; i < 2; ++i) {
            const __m256i* v = i == 0 ? low : high;
            const __m256i t0 = _mm256_unpacklo_epi64(v[0], v[1]), t1 = _mm256_unpackhi_epi64(v[0], v[1]);
            const __m256i t2 = _mm256_unpacklo_epi64(v[2], v[3]), t3 = _mm256_unpackhi_epi64(v[2], v[3]);
            _mm256_store_si256(to + i * 2, _mm256_permute2x128_si256(t0, t2, 0x20));
            _mm256_store_si256(to + i * 2 + 1, _mm256_permute2x128_si256(t1, t3, 0x20));
            _mm256_store_si256(to + i * 2 + 4, _mm256_permute2x128_si256(t0, t2, 0x31));
            _mm256_store_si256(to + i * 2 + 5, _mm256_permute2x128_si256(t1, t3, 0x31));
        }
    }
    for (int64_t r = 0; r < rows; ++r) products[r] = sum_lanes(sums[r]);
}

// 16 columns: out [steps][even 0-7, odd 0-7, even 8-15, odd 8-15]; products = sum b0 b1 + b2 b3 of each column.
static inline void widen_columns(const int8_t* b, int64_t steps, __m256i* out, __m256i products[2]) {
    __m256i left = _mm256_setzero_si256(), right = left;
    for (int64_t s = 0; s < steps; ++s, b += kPackStepBytes, out += 4) {
        fetch_to_l1(b + kWidenAhead * kPackStepBytes);
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
        const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b) + 1);
        const __m256i e0 = even_codes(x), o0 = odd_codes(x), e1 = even_codes(y), o1 = odd_codes(y);
        left = _mm256_add_epi32(left, _mm256_madd_epi16(e0, o0));
        right = _mm256_add_epi32(right, _mm256_madd_epi16(e1, o1));
        _mm256_store_si256(out, e0);
        _mm256_store_si256(out + 1, o0);
        _mm256_store_si256(out + 2, e1);
        _mm256_store_si256(out + 3, o1);
    }
    products[0] = left;
    products[1] = right;
}

// Rows x 16 columns over `steps` steps: c = (first ? -a_products : c) - b_products + sum (a0 + b1)(a1 + b0).
// With Fetch, also fetches the steps * 64 bytes at `ahead` into L2.
template <int Rows, bool Fetch = false>
static inline void tile(const int32_t* a, const __m256i* b, int64_t steps, const __m256i b_products[2], bool first,
                        const int32_t* a_products, int32_t* c, const int8_t* ahead = nullptr) {
    __m256i acc[Rows][2];
    DUOLOGUE_UNROLL
    for (int r = 0; r < Rows; ++r) {
        const __m256i* from = reinterpret_cast<const __m256i*>(c + r * kPackColumns);
        const __m256i left = first ? _mm256_set1_epi32(-a_products[r]) : _mm256_load_si256(from);
        const __m256i right = first ? left : _mm256_load_si256(from + 1);
        acc[r][0] = _mm256_sub_epi32(left, b_products[0]);
        acc[r][1] = _mm256_sub_epi32(right, b_products[1]);
    }
    const auto step = [&](const int32_t* row, const __m256i* columns) __attribute__((always_inline)) {
        __m256i e0 = columns[0], o0 = columns[1], e1 = columns[2], o1 = columns[3];
        keep_in_registers(e0, o0, e1, o1);
        DUOLOGUE_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const __m256i even = _mm256_set1_epi32(row[2 * r]), odd = _mm256_set1_epi32(row[2 * r + 1]);
            add_to(acc[r][0], _mm256_madd_epi16(_mm256_add_epi16(even, o0), _mm256_add_epi16(odd, e0)));
            add_to(acc[r][1], _mm256_madd_epi16(_mm256_add_epi16(even, o1), _mm256_add_epi16(odd, e1)));
        }
    };
    int64_t s = 0;
    for (; s + 2 <= steps; s += 2, a += 16, b += 8) {
        if constexpr (Fetch) {
            fetch_to_l2(ahead + s * 64);
            fetch_to_l2(ahead + s * 64 + 64);
        }
        step(a, b);
        step(a + 8, b + 4);
    }
    if (s < steps) step(a, b);
    DUOLOGUE_UNROLL
    for (int r = 0; r < Rows; ++r) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(c + r * kPackColumns), acc[r][0]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(c + r * kPackColumns) + 1, acc[r][1]);
    }
}

// Rows x (Vectors * 8) columns over the whole depth, weights widened on the fly, plain products. Also fetches as many bytes as it
// reads at `ahead` into L2; with all 64 columns at once, its own next ones into L1.
template <int Rows, int Vectors>
static inline void direct_tile(const int32_t* a, int64_t a_stride, const int8_t* b, int64_t steps, int32_t* c, const int8_t* ahead) {
    __m256i acc[Rows][Vectors];
    DUOLOGUE_UNROLL
    for (int i = 0; i < Rows * Vectors; ++i) acc[i / Vectors][i % Vectors] = _mm256_setzero_si256();
    for (int64_t s = 0; s < steps; ++s, a += 2, b += kPackStepBytes) {
        DUOLOGUE_UNROLL
        for (int i = 0; i < Vectors; i += 2) {
            if constexpr (Vectors == 8)
                fetch_to_l1(b + kStreamBytes + i * 32);
            else
                fetch_to_l2(ahead + (s * Vectors + i) * 32);
        }
        const auto bytes = [&](int v) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b) + v); };
        if constexpr (Rows <= 2) {
            // Every row's two broadcasts stay in registers, the weights pass by.
            DUOLOGUE_UNROLL
            for (int v = 0; v < Vectors; ++v) {
                const __m256i even = even_codes(bytes(v)), odd = odd_codes(bytes(v));
                DUOLOGUE_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    add_to(acc[r][v], _mm256_madd_epi16(even, _mm256_set1_epi32(a[r * a_stride])));
                    add_to(acc[r][v], _mm256_madd_epi16(odd, _mm256_set1_epi32(a[r * a_stride + 1])));
                }
            }
        } else {
            __m256i even[Vectors], odd[Vectors];
            DUOLOGUE_UNROLL
            for (int v = 0; v < Vectors; ++v) even[v] = even_codes(bytes(v)), odd[v] = odd_codes(bytes(v));
            DUOLOGUE_UNROLL
            for (int r = 0; r < Rows; ++r) {
                const __m256i row_even = _mm256_set1_epi32(a[r * a_stride]), row_odd = _mm256_set1_epi32(a[r * a_stride + 1]);
                DUOLOGUE_UNROLL
                for (int v = 0; v < Vectors; ++v) {
                    add_to(acc[r][v], _mm256_madd_epi16(even[v], row_even));
                    add_to(acc[r][v], _mm256_madd_epi16(odd[v], row_odd));
                }
            }
        }
    }
    DUOLOGUE_UNROLL
    for (int r = 0; r < Rows; ++r)
        DUOLOGUE_UNROLL
        for (int v = 0; v < Vectors; ++v) _mm256_store_si256(reinterpret_cast<__m256i*>(c + r * kPackColumns) + v, acc[r][v]);
}

// What to fetch during columns [n, end): the packed block behind them, or themselves again when they are the last.
static inline const int8_t* next_group(const PackedWeight& w, int64_t n, int64_t end, int64_t n_end) {
    return packed_columns(w, end < n_end ? end : n / kPackColumns * kPackColumns);
}

template <int Rows, int Vectors>
static void direct_columns(const GemmArgs& args, const int32_t* a, int64_t m_begin, int64_t n_begin, int64_t n_end) {
    const PackedWeight& w = *args.w;
    const int64_t steps = w.k_padded() / kPackDepth, a_stride = widened_stride(w.k);
    alignas(32) int32_t c[Rows * kPackColumns];
    for (int64_t n = n_begin; n < n_end;) {
        const int64_t end = group_end(n, n_end);
        const int8_t* ahead = next_group(w, n, end, n_end);
        int64_t column = n;
        const auto share = [&] { return ahead + (column - n) * steps * kPackDepth; };
        for (; column + Vectors * 8 <= end; column += Vectors * 8)
            direct_tile<Rows, Vectors>(a, a_stride, packed_columns(w, column), steps, c + (column - n), share());
        for (; column < end; column += 8)
            direct_tile<Rows, 1>(a, a_stride, packed_columns(w, column), steps, c + (column - n), share());
        for (int r = 0; r < Rows; ++r) finish_row(args, m_begin + r, n, end, c + r * kPackColumns);
        n = end;
    }
}

// Rows of the output are far apart, so the hardware does not see the next one coming. The address may lie past the last row.
static inline void fetch_output(const GemmArgs& args, int64_t m, int64_t n, int64_t end) {
    const int64_t halved = is_gated(args.epilogue) ? 2 : 1;
    const uintptr_t out = reinterpret_cast<uintptr_t>(args.out) + static_cast<uintptr_t>(m * args.out_stride + n / halved) * sizeof(float);
    for (int64_t i = 0; i < (end - n) / halved; i += 16) fetch_to_l1(reinterpret_cast<const int8_t*>(out + static_cast<uintptr_t>(i) * sizeof(float)));
}

// More than eight rows.
static void gemm_block(const GemmArgs& args, const int32_t* a, const int32_t* a_products, int64_t m_begin, int64_t rows, int64_t n_begin,
                       int64_t n_end, __m256i* b, int32_t* c) {
    const PackedWeight& w = *args.w;
    const int64_t steps = w.k_padded() / kPackDepth, panel = kTileRows * widened_stride(w.k);
    const int64_t depth_blocks = (steps + kDepthSteps - 1) / kDepthSteps;
    for (int64_t n = n_begin; n < n_end;) {
        const int64_t end = group_end(n, n_end);
        const int8_t* ahead = next_group(w, n, end, w.n_padded());  // most often this thread takes those columns next
        for (int64_t column = n; column < end; column += 16) {
            for (int64_t block = 0; block < depth_blocks; ++block) {
                const int64_t from = steps * block / depth_blocks, count = steps * (block + 1) / depth_blocks - from;
                __m256i b_products[2];
                widen_columns(packed_columns(w, column) + from * kPackStepBytes, count, b, b_products);
                const int32_t* a_panel = a + from * kTileRows * 2;
                int32_t* to = c + (column - n);
                const int8_t* share = ahead + ((column - n) * steps + from * 16) * kPackDepth;
                tile<kTileRows, true>(a_panel, b, count, b_products, block == 0, a_products, to, share);
                int64_t m = kTileRows;
                for (a_panel += panel; m + kTileRows <= rows; m += kTileRows, a_panel += panel)
                    tile<kTileRows>(a_panel, b, count, b_products, block == 0, a_products + m, to + m * kPackColumns);
                to += m * kPackColumns;
                if (rows - m == 3) tile<3>(a_panel, b, count, b_products, block == 0, a_products + m, to);
                if (rows - m == 2) tile<2>(a_panel, b, count, b_products, block == 0, a_products + m, to);
                if (rows - m == 1) tile<1>(a_panel, b, count, b_products, block == 0, a_products + m, to);
            }
        }
        for (int64_t m = 0; m < rows; ++m) {
            fetch_output(args, m_begin + m + kFinishAhead, n, end);
            finish_row(args, m_begin + m, n, end, c + m * kPackColumns);
        }
        n = end;
    }
}

static void gemm(const GemmArgs& args, int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end, void* scratch) {
    const PackedWeight& w = *args.w;
    const int64_t a_stride = widened_stride(w.k), block = gemm_block_rows(m_end - m_begin, w.k);
    const int64_t most = m_end - m_begin < block ? m_end - m_begin : block;
    char* at = align_scratch(scratch);
    int32_t* a = reinterpret_cast<int32_t*>(at);
    __m256i* b = reinterpret_cast<__m256i*>(at += round_up(most, kTileRows) * a_stride * 4);
    int32_t* c = reinterpret_cast<int32_t*>(at += kDepthSteps * 128);
    int32_t* a_products = c + most * kPackColumns;
    for (int64_t m = m_begin; m < m_end; m += block) {
        const int64_t rows = m_end - m < block ? m_end - m : block;
        const int8_t* from = args.a + m * args.a_stride;
        for (int64_t r = 0; r < rows && !args.rows_ready; r += rows > kDirectRows ? kTileRows : 1) {
            if (rows > kDirectRows)
                widen_panel(from + r * args.a_stride, args.a_stride, rows - r < kTileRows ? rows - r : kTileRows, w.k_padded(), a + r * a_stride, a_products + r);
            else
                widen_row(from + r * args.a_stride, w.k_padded(), a + r * a_stride);
        }
        switch (rows) {
            case 1: direct_columns<1, 8>(args, a, m, n_begin, n_end); break;
            case 2: direct_columns<2, 4>(args, a, m, n_begin, n_end); break;
            case 3: direct_columns<3, 2>(args, a, m, n_begin, n_end); break;
            case 4: direct_columns<4, 2>(args, a, m, n_begin, n_end); break;
            case 5: direct_columns<5, 1>(args, a, m, n_begin, n_end); break;
            case 6: direct_columns<6, 1>(args, a, m, n_begin, n_end); break;
            case 7: direct_columns<7, 1>(args, a, m, n_begin, n_end); break;
            case 8: direct_columns<8, 1>(args, a, m, n_begin, n_end); break;
            default: gemm_block(args, a, a_products, m, rows, n_begin, n_end, b, c);
        }
    }
}
