// Layout constants shared by every instruction set. Packed weights and KV pages look the same everywhere.
#pragma once

#include <cstdint>

// Functions of the headers that the per-ISA units share are forced inline: an ordinary inline function would be emitted once
// for each unit, and the linker could keep the copy compiled for instructions that the CPU does not have.
#define DUOLOGUE_INLINE inline __attribute__((always_inline))

namespace duologue {

// Positions in a KV page; also the attention key tile and (later) the step of the prefix hash.
inline constexpr int kPageTokens = 64;
// Keys whose partial softmax is computed on its own; partials are merged in ascending order of their split.
inline constexpr int kSplitTokens = 512;
static_assert(kSplitTokens % kPageTokens == 0);
// Keys of a tile whose softmax weights share one scale when they are quantised: 32 or 64.
inline constexpr int kPScaleTokens = 64;

// Packed int8 weights: [N/64][K/4][64][4] bytes, N and K padded with zeros.
inline constexpr int kPackColumns = 64;
inline constexpr int kPackDepth = 4;
// u8 x s8 products over this depth cannot overflow int32 (255 * 127 * 66,311 < 2^31).
inline constexpr int64_t kMaxDepth = 66311;

DUOLOGUE_INLINE constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Weights of one linear map y = x W^T, W[N,K] symmetric int8 per output channel.
// A gated pair (gate_n, up_n) is packed with columns interleaved in runs of 16: g0..15, u0..15, g16..31, ...
struct PackedWeight {
    const int8_t* codes = nullptr;          // [N_padded/64][K_padded/4][64][4]
    const int32_t* compensation = nullptr;  // [N_padded], 128 * sum over k of the codes
    const float* scale = nullptr;           // [N_padded], 0 in the padding
    const float* bias = nullptr;            // [N_padded] or null
    int64_t n = 0;                          // output channels (of both halves for a gated pair)
    int64_t k = 0;

    DUOLOGUE_INLINE int64_t n_padded() const { return round_up(n, kPackColumns); }
    DUOLOGUE_INLINE int64_t k_padded() const { return round_up(k, kPackDepth); }
};

// One (owner layer, KV head) part of a page:
//   keys   [T/16][D/4][16][4] bytes, code + 128
//   values [T/4][D][4]        bytes, signed codes
//   key scales [T] fp32, value scales [T] fp32
struct KvBlockLayout {
    int64_t head_dim;

    DUOLOGUE_INLINE int64_t values_offset() const { return int64_t(kPageTokens) * head_dim; }
    DUOLOGUE_INLINE int64_t key_scales_offset() const { return 2 * int64_t(kPageTokens) * head_dim; }
    DUOLOGUE_INLINE int64_t value_scales_offset() const { return key_scales_offset() + 4 * kPageTokens; }
    DUOLOGUE_INLINE int64_t bytes() const { return value_scales_offset() + 4 * kPageTokens; }
};

}  // namespace duologue
