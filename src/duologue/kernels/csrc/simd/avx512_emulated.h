// AVX-512 on any CPU, through SIMDe, so that its kernels are tested where the instructions are missing (DUOLOGUE_SIMDE).
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/avx2.h>

#include <cmath>

// Conversions that SIMDe 0.7 lacks. Arrays of lanes have the vectors' own layout.
#if !defined(_mm512_cvttps_epi32)
static inline simde__m512i emulated_cvttps_epi32(simde__m512 a) {
    alignas(64) float from[16];
    alignas(64) int32_t to[16];
    simde_mm512_storeu_ps(from, a);
    for (int i = 0; i < 16; ++i) to[i] = from[i] >= -2147483648.0f && from[i] < 2147483648.0f ? static_cast<int32_t>(from[i]) : INT32_MIN;
    return simde_mm512_loadu_si512(to);
}
#define _mm512_cvttps_epi32(a) emulated_cvttps_epi32(a)
#endif
#if !defined(_mm512_cvtps_epi32)
#define _mm512_cvtps_epi32(a) emulated_cvttps_epi32(simde_mm512_roundscale_ps(a, SIMDE_MM_FROUND_TO_NEAREST_INT | SIMDE_MM_FROUND_NO_EXC))
#endif
#if !defined(_mm512_cvtepi32_ps)
static inline simde__m512 emulated_cvtepi32_ps(simde__m512i a) {
    alignas(64) int32_t from[16];
    alignas(64) float to[16];
    simde_mm512_storeu_si512(from, a);
    for (int i = 0; i < 16; ++i) to[i] = static_cast<float>(from[i]);
    return simde_mm512_loadu_ps(to);
}
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)
#endif
#if !defined(_mm512_cvtepi8_epi32)
static inline simde__m512i emulated_cvtepi8_epi32(simde__m128i a) {
    alignas(16) int8_t from[16];
    alignas(64) int32_t to[16];
    simde_mm_storeu_si128(from, a);
    for (int i = 0; i < 16; ++i) to[i] = from[i];
    return simde_mm512_loadu_si512(to);
}
#define _mm512_cvtepi8_epi32(a) emulated_cvtepi8_epi32(a)
#endif
#if !defined(_mm512_cvtepi32_epi8)
static inline simde__m128i emulated_cvtepi32_epi8(simde__m512i a) {
    alignas(64) int32_t from[16];
    alignas(16) int8_t to[16];
    simde_mm512_storeu_si512(from, a);
    for (int i = 0; i < 16; ++i) to[i] = static_cast<int8_t>(static_cast<uint8_t>(from[i]));
    return simde_mm_loadu_si128(to);
}
#define _mm512_cvtepi32_epi8(a) emulated_cvtepi32_epi8(a)
#endif
