#include "text/suffix_match.h"

namespace duologue {

SuffixMatch longest_suffix_match(const int32_t* tokens, int64_t count, int64_t most) {
    SuffixMatch best{0, 0};
    if (count < 3 || most < 2) return best;
    const int32_t last = tokens[count - 1], before = tokens[count - 2];
    for (int64_t i = count - 2; i > 0; --i) {
        if (tokens[i] != last || tokens[i - 1] != before) continue;
        int64_t length = 2;
        while (length < most && i >= length && tokens[i - length] == tokens[count - 1 - length]) ++length;
        if (length > best.length) best = {i + 1, length};
        if (length == most) break;
    }
    return best;
}

}  // namespace duologue
