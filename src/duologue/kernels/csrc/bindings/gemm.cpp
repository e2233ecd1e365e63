#include <nanobind/stl/pair.h>

#include <memory>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/weights.h"
#include "runtime/pack.h"

namespace duologue {
namespace {

using Codes2 = Array<const int8_t, 2>;
using Floats1 = Array<const float, 1>;
using Range = std::pair<int64_t, int64_t>;
template <typename T>
using Flat = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

// A bias of length 0 is no bias.
void pack(Codes2 codes, Floats1 scale, Floats1 bias, bool gated, Flat<int8_t> out_codes, Array<int32_t, 1> out_compensation,
          Array<float, 1> out_scale, Array<float, 1> out_bias) {
    const int64_t n = codes.shape(0), k = codes.shape(1), biases = bias.shape(0);
    const int64_t n_padded = round_up(n, kPackColumns), k_padded = round_up(k, kPackDepth);
    require(int64_t(scale.shape(0)) == n && (biases == 0 || biases == n), "pack_weight: scale and bias must be [N]");
    require(int64_t(out_codes.size()) == n_padded * k_padded && int64_t(out_compensation.shape(0)) == n_padded &&
                int64_t(out_scale.shape(0)) == n_padded && int64_t(out_bias.shape(0)) == (biases == 0 ? 0 : n_padded),
            "pack_weight: the packed buffers do not fit the weight");
    const WeightSource source{codes.data(), scale.data(), biases == 0 ? nullptr : bias.data(), n, k, gated};
    pack_weight(source, {out_codes.data(), out_compensation.data(), out_scale.data(), biases == 0 ? nullptr : out_bias.data()});
}

void run(const KernelTable& table, const GemmArgs& args, int64_t m, Range rows, Range columns) {
    const int64_t unit = is_gated(args.epilogue) ? 32 : 16;
    require(0 <= rows.first && rows.first <= rows.second && rows.second <= m, "gemm_int8: the row range is outside of a");
    require(0 <= columns.first && columns.first <= columns.second && columns.second <= args.w->n_padded() && columns.first % unit == 0 &&
                columns.second % unit == 0,
            "gemm_int8: a column range must be inside the padded weight, in multiples of 16 (gated: 32)");
    if (rows.first == rows.second || columns.first == columns.second) return;
    const auto bytes = static_cast<size_t>(table.gemm_scratch_bytes(rows.second - rows.first, args.w->k));
    const std::unique_ptr<char[]> scratch(new char[bytes]);
    const nb::gil_scoped_release release;
    table.gemm(args, rows.first, rows.second, columns.first, columns.second, scratch.get());
}

void gemm_int8(Codes2 a, Floats1 a_scale, nb::handle packed, int epilogue, Array<float, 2> out, Range rows, Range columns, float limit, const std::string& isa) {
    const PackedWeight w = weight_of(packed);
    const auto kind = static_cast<Epilogue>(epilogue);
    const int64_t m = a.shape(0), n_out = is_gated(kind) ? w.n / 2 : w.n;
    require(0 <= epilogue && epilogue < kEpilogues, "gemm_int8: unknown epilogue");
    require(int64_t(a.shape(1)) >= w.k_padded() && int64_t(a_scale.shape(0)) == m && int64_t(out.shape(0)) == m && int64_t(out.shape(1)) == n_out,
            "gemm_int8: a must be [M, >= K rounded up to 4], a_scale [M] and out [M, N]");
    run(kernels_named(isa), {a.data(), int64_t(a.shape(1)), a_scale.data(), &w, kind, out.data(), n_out, nullptr, limit}, m, rows, columns);
}

void gemm_int8_accumulators(Codes2 a, nb::handle packed, Array<int32_t, 2> out, Range rows, Range columns, const std::string& isa) {
    const PackedWeight w = weight_of(packed);
    const int64_t m = a.shape(0);
    require(int64_t(a.shape(1)) >= w.k_padded() && int64_t(out.shape(0)) == m && int64_t(out.shape(1)) == w.n_padded(),
            "gemm_int8_accumulators: a must be [M, >= K rounded up to 4] and out [M, N rounded up to 64]");
    run(kernels_named(isa), {a.data(), int64_t(a.shape(1)), nullptr, &w, Epilogue::kStore, nullptr, 0, out.data()}, m, rows, columns);
}

void gemm_f32(Array<const float, 2> a, Array<const float, 2> w, Array<float, 2> out, Range rows, const std::string& isa) {
    const int64_t m = a.shape(0), k = a.shape(1), n = w.shape(0);
    require(int64_t(w.shape(1)) == k && int64_t(out.shape(0)) == m && int64_t(out.shape(1)) == n,
            "gemm_f32: a must be [M, K], w [N, K] and out [M, N]");
    require(0 <= rows.first && rows.first <= rows.second && rows.second <= m, "gemm_f32: the row range is outside of a");
    const KernelTable& table = kernels_named(isa);
    const nb::gil_scoped_release release;
    table.gemm_f32(a.data(), k, w.data(), k, rows.first, rows.second, n, k, out.data(), n);
}

}  // namespace

void register_gemm(nb::module_& m) {
    m.attr("MAX_DEPTH") = kMaxDepth;
    m.attr("PACK_COLUMNS") = kPackColumns;
    m.attr("PACK_DEPTH") = kPackDepth;
    m.def("pack_weight", &pack, nb::arg("codes"), nb::arg("scale"), nb::arg("bias"), nb::arg("gated"), nb::arg("out_codes"),
          nb::arg("out_compensation"), nb::arg("out_scale"), nb::arg("out_bias"));
    m.def("gemm_int8", &gemm_int8, nb::arg("a"), nb::arg("a_scale"), nb::arg("packed"), nb::arg("epilogue"), nb::arg("out"), nb::arg("rows"),
          nb::arg("columns"), nb::arg("limit") = 0.0f, nb::arg("isa") = "");
    m.def("gemm_int8_accumulators", &gemm_int8_accumulators, nb::arg("a"), nb::arg("packed"), nb::arg("out"), nb::arg("rows"),
          nb::arg("columns"), nb::arg("isa") = "");
    m.def("gemm_f32", &gemm_f32, nb::arg("a"), nb::arg("w"), nb::arg("out"), nb::arg("rows"), nb::arg("isa") = "");
}

}  // namespace duologue
