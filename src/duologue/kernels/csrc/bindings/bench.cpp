// Timed loops for `duologue bench kernels`: what this machine can do, and what the GEMM makes of it.
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/weights.h"
#include "runtime/memory.h"
#include "runtime/thread_team.h"

namespace duologue {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of each of `repeats` calls of work(thread) on a team, after one that is not counted.
std::vector<double> timed(int threads, int repeats, const std::function<void(int)>& work) {
    ThreadTeam team(threads);
    std::vector<double> seconds;
    for (int i = 0; i <= repeats; ++i) {
        const double started = now();
        team.run(work);
        if (i > 0) seconds.push_back(now() - started);
    }
    return seconds;
}

// Operations per second of all threads together, once per repeat.
std::vector<double> rates(int threads, int repeats, const std::function<int64_t()>& loop) {
    std::vector<int64_t> done(static_cast<size_t>(threads));
    std::vector<double> result = timed(threads, repeats, [&](int thread) { done[static_cast<size_t>(thread)] = loop(); });
    int64_t total = 0;
    for (const int64_t count : done) total += count;
    for (double& seconds : result) seconds = static_cast<double>(total) / seconds;
    return result;
}

std::vector<double> int8_peak(int sequence, int threads, int64_t rounds, int repeats, const std::string& isa) {
    const KernelTable& table = kernels_named(isa);
    const nb::gil_scoped_release release;
    return rates(threads, repeats, [&] { return table.int8_peak(sequence, rounds); });
}

std::vector<double> fp32_peak(int threads, int64_t rounds, int repeats, const std::string& isa) {
    const KernelTable& table = kernels_named(isa);
    const nb::gil_scoped_release release;
    return rates(threads, repeats, [&] { return table.fp32_peak(rounds); });
}

// Bytes per second read from a buffer of `bytes`, which should be far over the last cache, each thread its own part.
std::vector<double> read_bandwidth(int64_t bytes, int threads, int repeats, const std::string& isa) {
    require(bytes >= 1 << 20 && threads >= 1 && threads <= 1024, "read_bandwidth: needs at least 1 MiB and a thread");
    const KernelTable& table = kernels_named(isa);
    const nb::gil_scoped_release release;
    HugeBuffer buffer(static_cast<size_t>(bytes));
    std::memset(buffer.data(), 1, buffer.bytes());
    const int64_t part = bytes / threads / 256 * 256;
    std::vector<int64_t> sums(static_cast<size_t>(threads));
    std::vector<double> result = timed(threads, repeats, [&](int thread) {
        sums[static_cast<size_t>(thread)] = table.read_all(buffer.data() + part * thread, part);
    });
    if (sums[0] == 0) throw std::runtime_error("read_bandwidth: the buffer was not read");
    for (double& seconds : result) seconds = static_cast<double>(part * threads) / seconds;
    return result;
}

// Seconds of one GEMM, once per repeat: `copies` of the weight stand side by side and each is used once per repeat, so that weights
// come from memory as they do in a model. Columns are cut over the threads.
std::vector<double> time_gemm(Array<const int8_t, 2> a, Array<const float, 1> a_scale, nb::handle packed, int epilogue, Array<float, 2> out,
                              int copies, int threads, int repeats, const std::string& isa) {
    const PackedWeight source = weight_of(packed);
    const auto kind = static_cast<Epilogue>(epilogue);
    const int64_t rows = a.shape(0), n_out = is_gated(kind) ? source.n / 2 : source.n;
    require(0 <= epilogue && epilogue < kEpilogues && copies >= 1 && threads >= 1 && int64_t(a.shape(1)) >= source.k_padded() &&
                int64_t(a_scale.shape(0)) == rows && int64_t(out.shape(0)) == rows && int64_t(out.shape(1)) == n_out,
            "time_gemm: shapes, copies or threads do not fit");
    const KernelTable& table = kernels_named(isa);
    const nb::gil_scoped_release release;
    const int64_t bytes = source.n_padded() * source.k_padded();
    HugeBuffer codes(static_cast<size_t>(bytes * copies));
    for (int64_t i = 0; i < copies; ++i) std::memcpy(codes.data() + i * bytes, source.codes, static_cast<size_t>(bytes));
    const auto scratch_bytes = static_cast<size_t>(table.gemm_scratch_bytes(rows, source.k));
    std::vector<std::vector<char>> scratch(static_cast<size_t>(threads), std::vector<char>(scratch_bytes));

    ThreadTeam team(threads);
    const int64_t units = (source.n_padded() + 31) / 32;
    std::vector<double> seconds;
    for (int repeat = 0; repeat <= repeats; ++repeat) {
        const double started = now();
        team.run([&](int thread) {
            const int64_t begin = units * thread / threads * 32, end = units * (thread + 1) / threads * 32;
            for (int64_t i = 0; i < copies; ++i) {
                PackedWeight weight = source;
                weight.codes = reinterpret_cast<const int8_t*>(codes.data() + i * bytes);
                const GemmArgs args{a.data(), int64_t(a.shape(1)), a_scale.data(), &weight, kind, out.data(), n_out, nullptr};
                if (begin < end) table.gemm(args, 0, rows, begin, end, scratch[static_cast<size_t>(thread)].data());
                team.barrier();
            }
        });
        if (repeat > 0) seconds.push_back((now() - started) / copies);
    }
    return seconds;
}

}  // namespace

void register_bench(nb::module_& m) {
    m.def("int8_peak", &int8_peak, nb::arg("sequence"), nb::arg("threads"), nb::arg("rounds"), nb::arg("repeats"), nb::arg("isa") = "");
    m.def("fp32_peak", &fp32_peak, nb::arg("threads"), nb::arg("rounds"), nb::arg("repeats"), nb::arg("isa") = "");
    m.def("read_bandwidth", &read_bandwidth, nb::arg("bytes"), nb::arg("threads"), nb::arg("repeats"), nb::arg("isa") = "");
    m.def("time_gemm", &time_gemm, nb::arg("a"), nb::arg("a_scale"), nb::arg("packed"), nb::arg("epilogue"), nb::arg("out"), nb::arg("copies"),
          nb::arg("threads"), nb::arg("repeats"), nb::arg("isa") = "");
}

}  // namespace duologue
