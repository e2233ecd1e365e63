// Attention over numpy page pools, for tests and benchmarks: the executor calls the kernel table itself.
#include <vector>

#include "bindings/arrays.h"

namespace duologue {
namespace {

constexpr int64_t kMaxHeadDim = 256;

void check_block(int64_t head_dim, int64_t block_offset, int64_t page_bytes) {
    require(head_dim > 0 && head_dim % 16 == 0 && head_dim <= kMaxHeadDim, "head_dim must be a multiple of 16, at most 256");
    require(block_offset >= 0 && block_offset % 64 == 0 && page_bytes % 64 == 0, "block_offset and page_bytes must be multiples of 64");
    require(block_offset + KvBlockLayout{head_dim}.bytes() <= page_bytes, "the KV block does not fit in a page");
}

void check_pages(const Array<const int32_t, 1>& pages, int64_t pool_pages, int64_t positions) {
    require(int64_t(pages.shape(0)) * kPageTokens >= positions, "pages must cover every position");
    for (size_t i = 0; i < pages.shape(0); ++i)
        require(pages.data()[i] >= 0 && pages.data()[i] < pool_pages, "a page id lies outside the pool");
}

void kv_store(Array<uint8_t, 2> pool, Array<const int32_t, 1> pages, int64_t block_offset, int64_t first_position,
              Array<const float, 2> keys, Array<const float, 2> values, const std::string& isa) {
    const int64_t tokens = keys.shape(0), dim = keys.shape(1), page_bytes = pool.shape(1);
    check_block(dim, block_offset, page_bytes);
    require(first_position >= 0 && int64_t(values.shape(0)) == tokens && int64_t(values.shape(1)) == dim,
            "keys and values must both be [T, head_dim]");
    check_pages(pages, pool.shape(0), first_position + tokens);
    const KernelTable& table = kernels_named(isa);
    for (int64_t t = 0; t < tokens; ++t) {
        const int64_t position = first_position + t;
        uint8_t* block = pool.data() + pages.data()[position / kPageTokens] * page_bytes + block_offset;
        table.kv_store(keys.data() + t * dim, values.data() + t * dim, dim, block, position % kPageTokens);
    }
}

// Every split into a fresh partial state, merged in ascending order, rows cut into calls of row_block.
void attention(Array<const uint8_t, 2> pool, Array<const int32_t, 1> pages, Array<const int64_t, 1> block_offsets,
               Array<const int8_t, 3> q, Array<const float, 2> q_scale, int64_t group, int64_t first_position, int64_t window,
               float softcap, Array<const float, 2> sinks, int64_t row_block, Array<float, 3> out, const std::string& isa) {
    const int64_t blocks = q.shape(0), rows = q.shape(1), dim = q.shape(2), page_bytes = pool.shape(1);
    require(group > 0 && row_block > 0 && window >= 0 && first_position >= 0 && rows > 0, "group, row_block and rows start at 1, window and first_position at 0");
    require(row_block % group == 0 || row_block >= rows, "row_block must be a multiple of group");
    require(int64_t(block_offsets.shape(0)) == blocks && int64_t(q_scale.shape(0)) == blocks && int64_t(q_scale.shape(1)) == rows,
            "block_offsets must be [B] and q_scale [B, rows]");
    require(int64_t(out.shape(0)) == blocks && int64_t(out.shape(1)) == rows && int64_t(out.shape(2)) == dim, "out must be [B, rows, head_dim]");
    const bool has_sinks = sinks.shape(0) != 0;
    require(!has_sinks || (int64_t(sinks.shape(0)) == blocks && int64_t(sinks.shape(1)) == group), "sinks must be [B, group]");
    for (int64_t b = 0; b < blocks; ++b) check_block(dim, block_offsets.data()[b], page_bytes);
    check_pages(pages, pool.shape(0), first_position + (rows - 1) / group + 1);

    const KernelTable& table = kernels_named(isa);
    const int64_t call_rows = row_block < rows ? row_block : rows;
    std::vector<float> memory(static_cast<size_t>(2 * call_rows * (dim + 2)));
    std::vector<uint8_t> scratch(static_cast<size_t>(table.attention_scratch_bytes(static_cast<int32_t>(call_rows), static_cast<int32_t>(dim))));
    auto state_at = [&](int64_t i) {
        float* base = memory.data() + i * call_rows * (dim + 2);
        return AttentionState{base, base + call_rows, base + 2 * call_rows};
    };
    const AttentionState total = state_at(0), partial = state_at(1);

    nb::gil_scoped_release release;
    for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t row = 0; row < rows; row += call_rows) {
            const int64_t count = row + call_rows < rows ? call_rows : rows - row;
            const int64_t position = first_position + row / group;
            const int64_t last = first_position + (row + count - 1) / group;
            AttentionArgs args = {q.data() + (b * rows + row) * dim,
                                        q_scale.data() + b * rows + row,
                                        static_cast<int32_t>(count),
                                        static_cast<int32_t>(group),
                                        static_cast<int32_t>(position),
                                        static_cast<int32_t>(window),
                                        static_cast<int32_t>(dim),
                                        pool.data(),
                                        page_bytes,
                                        block_offsets.data()[b],
                                        pages.data(),
                                        softcap};
            const int64_t first_key = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
            const int64_t first_split = first_key / kSplitTokens;
            const int64_t last_split = last / kSplitTokens;
            for (int64_t split = first_split; split <= last_split; ++split) {
                if (split < last_split)
                    args.next_block = args.block((split + 1) * kSplitTokens);
                else
                    args.next_block = b + 1 < blocks ? args.block(first_key) + block_offsets.data()[b + 1] - args.block_offset : nullptr;
                table.attention_split(args, split, split == first_split ? total : partial, scratch.data());
                if (split > first_split) table.attention_merge(total, partial, count, dim);
            }
            if (has_sinks) {
                fill_sinks(partial, sinks.data() + b * group, group, count, dim);
                table.attention_merge(total, partial, count, dim);
            }
            table.attention_finish(total, count, dim, out.data() + (b * rows + row) * dim, dim);
        }
    }
}

}  // namespace

void register_attention(nb::module_& m) {
    m.attr("P_SCALE_TOKENS") = kPScaleTokens;
    m.def("kv_block_bytes", [](int64_t head_dim) { return KvBlockLayout{head_dim}.bytes(); }, nb::arg("head_dim"));
    m.def("kv_store", &kv_store, nb::arg("pool"), nb::arg("pages"), nb::arg("block_offset"), nb::arg("first_position"), nb::arg("keys"),
          nb::arg("values"), nb::arg("isa") = "");
    m.def("attention", &attention, nb::arg("pool"), nb::arg("pages"), nb::arg("block_offsets"), nb::arg("q"), nb::arg("q_scale"),
          nb::arg("group"), nb::arg("first_position"), nb::arg("window"), nb::arg("softcap"), nb::arg("sinks"), nb::arg("row_block"), nb::arg("out"), nb::arg("isa") = "");
}

}  // namespace duologue
