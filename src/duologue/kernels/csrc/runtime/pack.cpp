#include "runtime/pack.h"

#include <cstring>
#include <stdexcept>
#include <string>

namespace duologue {
namespace {

// The source row of packed column `column`, or -1 in the padding. Gated pairs alternate runs of 16: gate, up, gate, ...
int64_t source_row(const WeightSource& source, int64_t column) {
    if (!source.gated) return column < source.n ? column : -1;
    const int64_t half = source.n / 2, row = column / 32 * 16 + column % 16;
    if (row >= half) return -1;
    return column % 32 < 16 ? row : half + row;
}

int32_t checked_sum(const int8_t* row, int64_t k, int64_t n) {
    int32_t sum = 0;
    bool fits = true;
    for (int64_t i = 0; i < k; ++i) {
        sum += row[i];
        fits = fits && row[i] != -128;
    }
    if (!fits) throw std::invalid_argument("pack_weight: row " + std::to_string(n) + " holds the code -128; codes are symmetric, -127 to 127");
    return sum;
}

}  // namespace

void pack_weight(const WeightSource& source, const PackedParts& packed) {
    if (source.n < 1 || source.k < 1) throw std::invalid_argument("pack_weight: a weight needs at least one row and one column");
    if (source.k > kMaxDepth)
        throw std::invalid_argument("pack_weight: K = " + std::to_string(source.k) + " is over " + std::to_string(kMaxDepth) +
                                    ", where int32 accumulators could overflow; split the weight along K");
    if (source.gated && source.n % 2 != 0) throw std::invalid_argument("pack_weight: a gated pair needs as many gate rows as up rows");

    const int64_t n_padded = round_up(source.n, kPackColumns), k_padded = round_up(source.k, kPackDepth);
    const int64_t whole = source.k / kPackDepth * kPackDepth;
    std::memset(packed.codes, 0, static_cast<size_t>(n_padded * k_padded));
    for (int64_t column = 0; column < n_padded; ++column) {
        const int64_t n = source_row(source, column);
        packed.compensation[column] = 0;
        packed.scale[column] = 0.0f;
        if (packed.bias != nullptr) packed.bias[column] = 0.0f;
        if (n < 0) continue;
        const int8_t* row = source.codes + n * source.k;
        packed.compensation[column] = 128 * checked_sum(row, source.k, n);
        packed.scale[column] = source.scale[n];
        if (packed.bias != nullptr) packed.bias[column] = source.bias[n];
        int8_t* to = packed.codes + column / kPackColumns * kPackColumns * k_padded + column % kPackColumns * kPackDepth;
        for (int64_t k = 0; k < whole; k += kPackDepth) std::memcpy(to + k * kPackColumns, row + k, kPackDepth);
        std::memcpy(to + whole * kPackColumns, row + whole, static_cast<size_t>(source.k - whole));
    }
}

}  // namespace duologue
