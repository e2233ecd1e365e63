#include "bindings/arrays.h"

namespace duologue {

void register_attention(nb::module_& m) { (void)m; }

}  // namespace duologue
