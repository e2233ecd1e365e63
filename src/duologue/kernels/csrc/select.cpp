#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace duologue {
namespace {

#if defined(__x86_64__)
bool cpu_runs(const KernelTable& table) {
    __builtin_cpu_init();
#if defined(DUOLOGUE_SIMDE)
    if (&table == &kAvx512VnniKernels) return __builtin_cpu_supports("avx2");  // emulated
#endif
    if (&table == &kAvx512VnniKernels)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    if (&table == &kAvx2Kernels) return __builtin_cpu_supports("avx2");
    return true;
}
#if defined(DUOLOGUE_SIMDE)
constexpr const KernelTable* kTables[] = {&kAvx2Kernels, &kAvx512VnniKernels, &kScalarKernels};  // emulation is never the default
#else
constexpr const KernelTable* kTables[] = {&kAvx512VnniKernels, &kAvx2Kernels, &kScalarKernels};
#endif
#else
bool cpu_runs(const KernelTable&) { return true; }
constexpr const KernelTable* kTables[] = {&kScalarKernels};
#endif

}  // namespace

const KernelTable& select_kernels(const char* isa) {
    if (isa == nullptr || *isa == '\0') {
        for (const KernelTable* table : kTables)
            if (cpu_runs(*table)) return *table;
    }
    std::string known;
    for (const KernelTable* table : kTables) {
        if (std::string(isa) == table->name) {
            if (!cpu_runs(*table)) throw std::runtime_error("DUOLOGUE_ISA=" + std::string(isa) + ": this CPU does not have these instructions");
            return *table;
        }
        known += (known.empty() ? "" : ", ") + std::string(table->name);
    }
    throw std::runtime_error("DUOLOGUE_ISA=" + std::string(isa) + " is unknown; choose one of: " + known);
}

const KernelTable& select_kernels() { return select_kernels(std::getenv("DUOLOGUE_ISA")); }

}  // namespace duologue
