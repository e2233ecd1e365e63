#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "text/spm.h"

namespace duologue {
namespace {

void construct(SpmVocabulary* self, nb::bytes text, Array<const int64_t, 1> ends, Array<const float, 1> scores, Array<const int32_t, 1> hidden,
               Array<const int32_t, 1> byte_ids) {
    require(ends.shape(0) == scores.shape(0) && byte_ids.shape(0) == 256, "SpmVocabulary: ends and scores must be [n] and byte_ids [256]");
    new (self) SpmVocabulary(std::string(text.c_str(), text.size()), ends.data(), scores.data(), int64_t(ends.shape(0)), hidden.data(),
                             int64_t(hidden.shape(0)), byte_ids.data());
}

std::vector<int32_t> encode(const SpmVocabulary& self, nb::bytes text) {
    std::vector<int32_t> ids;
    nb::gil_scoped_release unlocked;
    self.encode(text.c_str(), int64_t(text.size()), ids);
    return ids;
}

}  // namespace

void register_spm(nb::module_& m) {
    nb::class_<SpmVocabulary>(m, "SpmVocabulary")
        .def("__init__", &construct, nb::arg("text"), nb::arg("ends"), nb::arg("scores"), nb::arg("hidden"), nb::arg("byte_ids"))
        .def("encode", &encode, nb::arg("text"));
}

}  // namespace duologue
