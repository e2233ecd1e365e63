// The polynomial rolling hash of token prefixes: H(prefix + t) = (H(prefix) * B + t + 1) mod p, p = 2^61 - 1.
#pragma once

#include <cstdint>
#include <string>

namespace duologue {

inline constexpr uint64_t kHashPrime = (uint64_t(1) << 61) - 1;
// Fixed for ever: stored hashes must mean the same in every process. Any number of about p's size without structure will do.
inline constexpr uint64_t kHashBase = 0x0B2C4D6E8F1A3957ull;

inline uint64_t hash_multiply(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    const uint64_t sum = (static_cast<uint64_t>(product) & kHashPrime) + static_cast<uint64_t>(product >> 61);
    return sum >= kHashPrime ? sum - kHashPrime : sum;
}

// `token` is not negative. + 1 makes a run of zeros differ from nothing.
inline uint64_t hash_extend(uint64_t prefix, int32_t token) {
    const uint64_t sum = hash_multiply(prefix, kHashBase) + static_cast<uint64_t>(token) + 1;
    return sum >= kHashPrime ? sum - kHashPrime : sum;
}

// Over a whole page four tokens at a time: the chain of dependent multiplications is what costs.
inline uint64_t hash_extend(uint64_t prefix, const int32_t* tokens, int64_t count) {
    static const uint64_t base2 = hash_multiply(kHashBase, kHashBase);
    static const uint64_t base3 = hash_multiply(base2, kHashBase);
    static const uint64_t base4 = hash_multiply(base2, base2);
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        // Each product is below p; t + 1 <= 2^31, so the sum of five stays below 2^64.
        uint64_t sum = hash_multiply(prefix, base4) + hash_multiply(static_cast<uint64_t>(tokens[i]) + 1, base3) +
                       hash_multiply(static_cast<uint64_t>(tokens[i + 1]) + 1, base2) + hash_multiply(static_cast<uint64_t>(tokens[i + 2]) + 1, kHashBase) +
                       static_cast<uint64_t>(tokens[i + 3]) + 1;
        sum = (sum & kHashPrime) + (sum >> 61);
        prefix = sum >= kHashPrime ? sum - kHashPrime : sum;
    }
    for (; i < count; ++i) prefix = hash_extend(prefix, tokens[i]);
    return prefix;
}

// The name of a namespace (a digest) as a hash to start from. Equal hashes of different names do no harm: roots are told apart
// by their names.
inline uint64_t hash_of_name(const std::string& name) {
    uint64_t hash = 0;
    for (const char c : name) hash = hash_extend(hash, static_cast<unsigned char>(c));
    return hash;
}

}  // namespace duologue
