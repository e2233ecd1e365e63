#include "bindings/arrays.h"

namespace duologue {
namespace {

using Floats1 = Array<const float, 1>;
using Floats2 = Array<const float, 2>;

void quantize_rows(Floats2 x, Array<int8_t, 2> codes, Array<float, 1> scale, const std::string& isa) {
    const auto rows = x.shape(0), k = x.shape(1);
    require(codes.shape(0) == rows && int64_t(codes.shape(1)) >= round_up(k, kPackDepth) && scale.shape(0) == rows,
            "quantize_rows: codes must be [M, >= K rounded up to 4] and scale [M]");
    kernels_named(isa).quantize_rows(x.data(), k, rows, k, codes.data(), codes.shape(1), scale.data());
}

void rmsnorm_quantize_rows(Floats2 x, Floats1 weight, float eps, Array<int8_t, 2> codes, Array<float, 1> scale, const std::string& isa) {
    const auto rows = x.shape(0), k = x.shape(1);
    require(codes.shape(0) == rows && int64_t(codes.shape(1)) >= round_up(k, kPackDepth) && scale.shape(0) == rows && weight.shape(0) == k,
            "rmsnorm_quantize_rows: weight must be [K], codes [M, >= K rounded up to 4] and scale [M]");
    kernels_named(isa).rmsnorm_quantize_rows(x.data(), k, rows, k, weight.data(), eps, codes.data(), codes.shape(1), scale.data());
}

void rmsnorm_rows(Floats2 x, Floats1 weight, float eps, Array<float, 2> out, const std::string& isa) {
    const auto rows = x.shape(0), k = x.shape(1);
    require(out.shape(0) == rows && out.shape(1) == k && weight.shape(0) == k, "rmsnorm_rows: weight must be [K] and out [M, K]");
    kernels_named(isa).rmsnorm_rows(x.data(), k, rows, k, weight.data(), eps, out.data(), k);
}

void rmsnorm_add_rows(Floats2 from, Floats1 weight, float eps, Array<float, 2> x, const std::string& isa) {
    const auto rows = x.shape(0), k = x.shape(1);
    require(from.shape(0) == rows && from.shape(1) == k && weight.shape(0) == k, "rmsnorm_add_rows: weight must be [K], from and x [M, K]");
    kernels_named(isa).rmsnorm_add_rows(from.data(), k, rows, k, weight.data(), eps, x.data(), k);
}

void gate_mul(Floats1 gate, Floats1 up, Array<float, 1> out, bool gelu, const std::string& isa) {
    require(gate.shape(0) == up.shape(0) && gate.shape(0) == out.shape(0), "gate_mul: gate, up and out must have one length");
    const KernelTable& table = kernels_named(isa);
    (gelu ? table.gelu_mul : table.silu_mul)(gate.data(), up.data(), gate.shape(0), out.data());
}

void exp_array(Floats1 x, Array<float, 1> out, const std::string& isa) {
    require(x.shape(0) == out.shape(0), "exp: x and out must have one length");
    kernels_named(isa).exp_array(x.data(), x.shape(0), out.data());
}

// x [M, heads, head_dim] rotated in place by the tables of each row's position, [M, head_dim / 2].
void rope_rotate(Array<float, 3> x, Floats2 cos, Floats2 sin, const std::string& isa) {
    const auto rows = x.shape(0), heads = x.shape(1), dim = x.shape(2);
    require(dim % 2 == 0 && cos.shape(0) == rows && sin.shape(0) == rows && cos.shape(1) == dim / 2 && sin.shape(1) == dim / 2,
            "rope_rotate: cos and sin must be [M, head_dim / 2]");
    const KernelTable& table = kernels_named(isa);
    for (size_t m = 0; m < rows; ++m)
        for (size_t h = 0; h < heads; ++h)
            table.rope_rotate(x.data() + (m * heads + h) * dim, dim, cos.data() + m * (dim / 2), sin.data() + m * (dim / 2));
}

bool all_finite(Floats1 x, const std::string& isa) { return kernels_named(isa).all_finite(x.data(), x.shape(0)); }

}  // namespace

void register_rows(nb::module_& m) {
    m.def("quantize_rows", &quantize_rows, nb::arg("x"), nb::arg("codes"), nb::arg("scale"), nb::arg("isa") = "");
    m.def("rmsnorm_quantize_rows", &rmsnorm_quantize_rows, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("codes"),
          nb::arg("scale"), nb::arg("isa") = "");
    m.def("rmsnorm_rows", &rmsnorm_rows, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"), nb::arg("isa") = "");
    m.def("rmsnorm_add_rows", &rmsnorm_add_rows, nb::arg("from_"), nb::arg("weight"), nb::arg("eps"), nb::arg("x"), nb::arg("isa") = "");
    m.def("gate_mul", &gate_mul, nb::arg("gate"), nb::arg("up"), nb::arg("out"), nb::arg("gelu"), nb::arg("isa") = "");
    m.def("exp_array", &exp_array, nb::arg("x"), nb::arg("out"), nb::arg("isa") = "");
    m.def("rope_rotate", &rope_rotate, nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("isa") = "");
    m.def("all_finite", &all_finite, nb::arg("x"), nb::arg("isa") = "");
}

}  // namespace duologue
