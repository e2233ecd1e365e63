// The body of every per-ISA translation unit. DUOLOGUE_ISA names the namespace, DUOLOGUE_ISA_TABLE the exported table.
//
// Everything here is static and inside a namespace of its own: no inline function is shared between units compiled with
// different instruction sets, so the linker cannot pick a copy that the CPU does not run. For the same reason no C++
// library template with external linkage may be used in these files: cmath and cstring only.
namespace duologue {
namespace DUOLOGUE_ISA {

#include "ops/rows.inc.h"
#include "ops/gemm_int8.inc.h"
#include "ops/gemm_f32.inc.h"
#include "ops/attention.inc.h"
#include "ops/sampling.inc.h"
#include "ops/peaks.inc.h"

}  // namespace DUOLOGUE_ISA

extern const KernelTable DUOLOGUE_ISA_TABLE;
const KernelTable DUOLOGUE_ISA_TABLE = {
    DUOLOGUE_ISA_NAME,
    DUOLOGUE_ISA::quantize_rows,
    DUOLOGUE_ISA::rmsnorm_quantize_rows,
    DUOLOGUE_ISA::rmsnorm_rows,
    DUOLOGUE_ISA::rmsnorm_add_rows,
    DUOLOGUE_ISA::silu_mul,
    DUOLOGUE_ISA::gelu_mul,
    DUOLOGUE_ISA::exp_array,
    DUOLOGUE_ISA::gemm_block_rows,
    DUOLOGUE_ISA::gemm_scratch_bytes,
    DUOLOGUE_ISA::gemm,
    DUOLOGUE_ISA::gemm_f32,
    DUOLOGUE_ISA::rope_rotate,
    DUOLOGUE_ISA::kv_store,
    DUOLOGUE_ISA::attention_scratch_bytes,
    DUOLOGUE_ISA::attention_split,
    DUOLOGUE_ISA::attention_merge,
    DUOLOGUE_ISA::attention_finish,
    DUOLOGUE_ISA::argmax,
    DUOLOGUE_ISA::max_value,
    DUOLOGUE_ISA::softmax_weights,
    DUOLOGUE_ISA::all_finite,
    DUOLOGUE_ISA::int8_peak,
    DUOLOGUE_ISA::fp32_peak,
    DUOLOGUE_ISA::read_all,
};

}  // namespace duologue
