// Where the ending of a token sequence stood before.
#pragma once

#include <cstdint>

namespace duologue {

struct SuffixMatch {
    int64_t end;     // the position behind the earlier occurrence: what followed it begins here
    int64_t length;  // tokens in common, up to the limit; 0: there is none
};

// The earlier place whose last tokens have the most in common with tokens[0..count), up to `most`; of equal ones the latest. At
// least two tokens agree.
SuffixMatch longest_suffix_match(const int32_t* tokens, int64_t count, int64_t most);

}  // namespace duologue
