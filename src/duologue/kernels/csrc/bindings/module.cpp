#include "bindings/arrays.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "duologue's compiled kernels and executor; use the typed functions in duologue.kernels instead";
    m.attr("PAGE_TOKENS") = duologue::kPageTokens;
    m.attr("SPLIT_TOKENS") = duologue::kSplitTokens;
    m.def("isa_name", [](const std::string& isa) { return std::string(duologue::kernels_named(isa).name); }, nb::arg("isa") = "");
    duologue::register_rows(m);
    duologue::register_gemm(m);
    duologue::register_attention(m);
    duologue::register_bench(m);
    duologue::register_sampling(m);
    duologue::register_executor(m);
    duologue::register_prefix_cache(m);
    duologue::register_spm(m);
    duologue::register_suffix_match(m);
}
