// Python's PackedWeight as the kernels see it.
#pragma once

#include "bindings/arrays.h"

namespace duologue {

// A view: `hold` gets each array that it points into and must keep it alive as long as the view. Throws
// std::invalid_argument when the buffers do not fit n and k, and nb::cast_error for arrays of another type or layout.
template <typename Hold>
PackedWeight weight_of(nb::handle packed, Hold hold) {
    PackedWeight w;
    w.n = nb::cast<int64_t>(packed.attr("n"));
    w.k = nb::cast<int64_t>(packed.attr("k"));
    const auto codes = nb::cast<nb::ndarray<const int8_t, nb::c_contig, nb::device::cpu>>(packed.attr("codes"), false);
    const auto compensation = nb::cast<Array<const int32_t, 1>>(packed.attr("compensation"), false);
    const auto scale = nb::cast<Array<const float, 1>>(packed.attr("scale"), false);
    require(w.n > 0 && w.k > 0 && w.k <= kMaxDepth && int64_t(codes.size()) == w.n_padded() * w.k_padded() &&
                int64_t(compensation.shape(0)) == w.n_padded() && int64_t(scale.shape(0)) == w.n_padded(),
            "a packed weight's buffers do not fit its shape");
    hold(codes);
    hold(compensation);
    hold(scale);
    w.codes = codes.data();
    w.compensation = compensation.data();
    w.scale = scale.data();
    if (!packed.attr("bias").is_none()) {
        const auto bias = nb::cast<Array<const float, 1>>(packed.attr("bias"), false);
        require(int64_t(bias.shape(0)) == w.n_padded(), "a packed weight's bias does not fit its shape");
        hold(bias);
        w.bias = bias.data();
    }
    return w;
}

// A view that is used only while the caller keeps `packed` alive.
inline PackedWeight weight_of(nb::handle packed) {
    return weight_of(packed, [](const auto&) {});
}

}  // namespace duologue
