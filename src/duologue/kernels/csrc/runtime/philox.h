// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator, so the
// noise of a token depends on nothing but its seed, choice and position.
#pragma once

#include <cstdint>

namespace duologue {

struct PhiloxBlock {
    uint32_t word[4];
};

inline PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * counter.word[0];
        const uint64_t b = uint64_t(0xCD9E8D57u) * counter.word[2];
        counter = {{uint32_t(b >> 32) ^ counter.word[1] ^ key0, uint32_t(b), uint32_t(a >> 32) ^ counter.word[3] ^ key1, uint32_t(a)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// Uniform in [0, 1) with 53 bits.
inline double philox_uniform(uint64_t seed, uint32_t choice, uint64_t position) {
    const PhiloxBlock block = philox4x32({{uint32_t(position), uint32_t(position >> 32), choice, 0}}, uint32_t(seed), uint32_t(seed >> 32));
    const uint64_t bits = (uint64_t(block.word[0]) << 32 | block.word[1]) >> 11;
    return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace duologue
