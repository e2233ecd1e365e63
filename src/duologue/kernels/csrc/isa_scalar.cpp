#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernel_table.h"

#define DUOLOGUE_ISA scalar
#define DUOLOGUE_ISA_NAME "scalar"
#define DUOLOGUE_ISA_TABLE kScalarKernels
#define DUOLOGUE_ISA_SCALAR 1

namespace duologue {
namespace DUOLOGUE_ISA {
#include "simd/scalar.h"
}
}  // namespace duologue

#include "isa.inc.h"
