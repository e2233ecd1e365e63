#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(DUOLOGUE_SIMDE)
#include "simd/avx512_emulated.h"
#else
#include <immintrin.h>
#endif
#include "kernel_table.h"

#define DUOLOGUE_ISA avx512vnni
#define DUOLOGUE_ISA_NAME "avx512vnni"
#define DUOLOGUE_ISA_TABLE kAvx512VnniKernels
#define DUOLOGUE_ISA_AVX512VNNI 1

namespace duologue {
namespace DUOLOGUE_ISA {
#include "simd/avx512.h"
}
}  // namespace duologue

#include "isa.inc.h"
