#include <cmath>
#include <cstdint>
#include <cstring>

#include <immintrin.h>
#include "kernel_table.h"

#define DUOLOGUE_ISA avx2
#define DUOLOGUE_ISA_NAME "avx2"
#define DUOLOGUE_ISA_TABLE kAvx2Kernels
#define DUOLOGUE_ISA_AVX2 1

namespace duologue {
namespace DUOLOGUE_ISA {
#include "simd/avx2.h"
}
}  // namespace duologue

#include "isa.inc.h"
