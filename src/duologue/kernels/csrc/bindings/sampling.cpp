#include "bindings/sampling.h"

#include <algorithm>

namespace duologue {
namespace {

template <typename A>
int64_t length(const std::optional<A>& array) {
    return array.has_value() ? int64_t(array->shape(0)) : 0;
}

template <typename A>
auto data_or_null(const std::optional<A>& array) {
    return array.has_value() ? array->data() : nullptr;
}

void require_ids(const std::optional<Array<const int32_t, 1>>& ids, int64_t vocab) {
    // As unsigned, a negative id is past every vocabulary.
    uint32_t highest = 0;
    for (int64_t i = 0; i < length(ids); ++i) highest = std::max(highest, static_cast<uint32_t>(ids->data()[i]));
    require(length(ids) == 0 || int64_t(highest) < vocab, "sampling: a token id is outside the vocabulary");
}

}  // namespace

SamplingInputs SamplingArrays::checked(int64_t count, int64_t vocab) const {
    require(int64_t(packed.shape(0)) == count && packed.shape(1) == sizeof(SamplingRow), "sampling: there must be one row for each logit token");
    require_ids(history, vocab);
    require_ids(bias_ids, vocab);
    require(length(bias_ids) == length(bias_values), "sampling: bias_ids and bias_values must be equally long");
    require(!masks.has_value() || int64_t(masks->shape(1)) * 32 >= vocab, "sampling: a mask must have a bit for each token");
    require(length(logprob_ids) == length(logprobs) && (!logprobs.has_value() || logprobs->shape(1) == logprob_ids->shape(1)),
            "sampling: logprob_ids and logprobs must have one shape");
    const int64_t columns = logprobs.has_value() ? int64_t(logprobs->shape(1)) : 0;
    for (int64_t r = 0; r < count; ++r) {
        const SamplingRow& row = rows()[r];
        require(0 <= row.bias_begin && row.bias_begin <= row.bias_end && row.bias_end <= length(bias_ids), "sampling: a bias is outside its array");
        require(0 <= row.history_begin && row.history_begin <= row.reply_begin && row.reply_begin <= row.history_end && row.history_end <= length(history),
                "sampling: a history is outside its array");
        require(row.mask < length(masks), "sampling: a mask is outside its array");
        require(row.logprobs < 0 || (length(logprobs) == count && row.logprobs < columns), "sampling: log-probabilities have no room");
    }
    return {data_or_null(history),       data_or_null(bias_ids), data_or_null(bias_values), data_or_null(masks), masks.has_value() ? int64_t(masks->shape(1)) : 0,
            data_or_null(logprob_ids), data_or_null(logprobs), columns};
}

void register_sampling(nb::module_& m) {
    using Ints = Array<const int32_t, 1>;
    nb::class_<SamplingArrays>(m, "SamplingArrays")
        .def(nb::init<Array<const uint8_t, 2>, std::optional<Ints>, std::optional<Ints>, std::optional<Array<const float, 1>>, std::optional<Array<const uint32_t, 2>>,
                      std::optional<Array<int32_t, 2>>, std::optional<Array<float, 2>>>(),
             nb::arg("rows"), nb::arg("history") = nb::none(), nb::arg("bias_ids") = nb::none(), nb::arg("bias_values") = nb::none(), nb::arg("masks") = nb::none(),
             nb::arg("logprob_ids") = nb::none(), nb::arg("logprobs") = nb::none());

    m.def("sample_rows",
          [](Array<const float, 2> logits, const SamplingArrays& sampling, Array<int32_t, 1> sampled, const std::string& isa) {
              const auto rows = int64_t(logits.shape(0)), vocab = int64_t(logits.shape(1));
              require(int64_t(sampled.shape(0)) == rows, "sampling: sampled must have one entry for each row");
              const SamplingInputs inputs = sampling.checked(rows, vocab);
              Sampler sampler;
              for (int64_t r = 0; r < rows; ++r)
                  sampled.data()[r] = sampler.sample(kernels_named(isa), logits.data() + r * vocab, vocab, sampling.rows()[r], inputs, r);
          },
          nb::arg("logits"), nb::arg("sampling"), nb::arg("sampled"), nb::arg("isa") = "");
}

}  // namespace duologue
