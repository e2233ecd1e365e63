#include "text/suffix_match.h"

#include <utility>

#include <nanobind/stl/pair.h>

#include "bindings/arrays.h"

namespace duologue {

void register_suffix_match(nb::module_& m) {
    m.def("longest_suffix_match",
          [](Array<const int32_t, 1> tokens, int64_t most) {
              const SuffixMatch match = longest_suffix_match(tokens.data(), int64_t(tokens.shape(0)), most);
              return std::pair(match.end, match.length);
          },
          nb::arg("tokens"), nb::arg("most"));
}

}  // namespace duologue
