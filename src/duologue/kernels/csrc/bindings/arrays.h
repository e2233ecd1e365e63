// Array arguments of the bindings: C-contiguous numpy arrays of one dtype and rank, refused by nanobind otherwise.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace duologue {

namespace nb = nanobind;

template <typename T, int Rank>
using Array = nb::ndarray<T, nb::ndim<Rank>, nb::c_contig, nb::device::cpu>;

inline const KernelTable& kernels_named(const std::string& isa) { return isa.empty() ? select_kernels() : select_kernels(isa.c_str()); }

inline void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

void register_rows(nb::module_& m);
void register_gemm(nb::module_& m);
void register_attention(nb::module_& m);
void register_bench(nb::module_& m);
void register_sampling(nb::module_& m);
void register_executor(nb::module_& m);
void register_prefix_cache(nb::module_& m);
void register_spm(nb::module_& m);
void register_suffix_match(nb::module_& m);

}  // namespace duologue
