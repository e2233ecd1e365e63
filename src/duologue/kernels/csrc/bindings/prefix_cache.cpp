#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "cache/prefix_cache.h"
#include "cache/rolling_hash.h"

namespace duologue {
namespace {

using Tokens = Array<const int32_t, 1>;

std::string text(nb::bytes bytes) { return {bytes.c_str(), bytes.size()}; }

nb::typed<nb::dict, nb::str, nb::any> stats_of(const PrefixCache& cache) {
    const PrefixCacheStats stats = cache.stats();
    nb::dict out;
    const auto both = [&](const char* name, const int64_t* values) { out[name] = nb::make_tuple(values[kGlobalPool], values[kLocalPool]); };
    both("total_pages", stats.total_pages);
    both("free_pages", stats.free_pages);
    both("stored_pages", stats.stored_pages);
    both("evictable_pages", stats.evictable_pages);
    both("evicted_pages", stats.evicted_pages);
    out["checkpoints"] = stats.checkpoints;
    out["stored_tokens"] = stats.stored_tokens;
    out["roots"] = stats.roots;
    out["sequences"] = stats.sequences;
    out["index_bytes"] = stats.index_bytes;
    return out;
}

}  // namespace

void register_prefix_cache(nb::module_& m) {
    nb::class_<Lookup>(m, "CacheLookup")
        .def_ro("matched_tokens", &Lookup::matched_tokens)
        .def_ro("stored_tokens", &Lookup::stored_tokens)
        .def_ro("diverges", &Lookup::diverges)
        .def_ro("evicted", &Lookup::evicted);
    nb::class_<Opened>(m, "CacheOpened")
        .def_ro("sequence", &Opened::sequence)
        .def_ro("cached_tokens", &Opened::cached_tokens)
        .def_ro("lookup", &Opened::lookup)
        .def_prop_ro("copies", [](const Opened& opened) {
            std::vector<std::tuple<int, int32_t, int32_t>> copies;
            for (const PageCopy& copy : opened.copies) copies.emplace_back(int(copy.kind), copy.source, copy.destination);
            return copies;
        });

    nb::class_<PrefixCache>(m, "PrefixCache")
        .def("__init__",
             [](PrefixCache* cache, int page_tokens, int global_pages, int local_pages, int window_tokens, int hash_bits) {
                 new (cache) PrefixCache({page_tokens, global_pages, local_pages, window_tokens, hash_bits});
             },
             nb::arg("page_tokens"), nb::arg("global_pages"), nb::arg("local_pages") = 0, nb::arg("window_tokens") = 0, nb::arg("hash_bits") = 61)
        .def("lookup", [](const PrefixCache& cache, nb::bytes space, Tokens tokens) { return cache.lookup(text(space), tokens.data(), int64_t(tokens.size())); },
             nb::arg("space"), nb::arg("tokens"))
        .def("stored_branch",
             [](const PrefixCache& cache, nb::bytes space, Tokens tokens, int64_t limit) {
                 return cache.stored_branch(text(space), tokens.data(), int64_t(tokens.size()), limit);
             },
             nb::arg("space"), nb::arg("tokens"), nb::arg("limit"))
        .def("open",
             [](PrefixCache& cache, nb::bytes space, nb::bytes owner, Tokens tokens, int64_t limit, std::vector<int64_t> turns, std::vector<int64_t> shared,
                double now_s, bool keep) {
                 return cache.open(text(space), text(owner), tokens.data(), int64_t(tokens.size()), limit, std::move(turns), std::move(shared), keep, now_s);
             },
             nb::arg("space"), nb::arg("owner"), nb::arg("tokens"), nb::arg("limit"), nb::arg("turns"), nb::arg("shared"), nb::arg("now_s"),
             nb::arg("keep") = true)
        .def("reserve", &PrefixCache::reserve, nb::arg("sequence"), nb::arg("tokens"))
        .def("commit",
             [](PrefixCache& cache, int32_t sequence, Tokens tokens, int64_t computed, bool seal, double now_s) {
                 require(computed >= 0 && computed <= int64_t(tokens.size()), "commit: computed is outside the tokens");
                 cache.commit(sequence, tokens.data(), computed, seal, now_s);
             },
             nb::arg("sequence"), nb::arg("tokens"), nb::arg("computed"), nb::arg("seal"), nb::arg("now_s"))
        .def("close",
             [](PrefixCache& cache, int32_t sequence, Tokens tokens, int64_t computed, bool keep, double retention_s, double now_s, nb::bytes tenant) {
                 require(computed >= 0 && computed <= int64_t(tokens.size()), "close: computed is outside the tokens");
                 return cache.close(sequence, tokens.data(), computed, keep, text(tenant), retention_s, now_s);
             },
             nb::arg("sequence"), nb::arg("tokens"), nb::arg("computed"), nb::arg("keep"), nb::arg("retention_s"), nb::arg("now_s"),
             nb::arg("tenant") = nb::bytes(""))
        .def("copy_table",
             [](const PrefixCache& cache, int32_t sequence, int kind, Array<int32_t, 1> out) {
                 require(kind == kGlobalPool || kind == kLocalPool, "copy_table: no such kind of page");
                 cache.copy_table(sequence, static_cast<PoolKind>(kind), out.data(), int64_t(out.size()));
             },
             nb::arg("sequence"), nb::arg("kind"), nb::arg("out"))
        .def("page_count", &PrefixCache::page_count, nb::arg("sequence"))
        .def("available", [](const PrefixCache& cache, int kind) { return cache.available(kind == 0 ? kGlobalPool : kLocalPool); }, nb::arg("kind"))
        .def("forget",
             [](PrefixCache& cache, nb::bytes owner, int64_t limit) {
                 const std::string name = text(owner);
                 nb::gil_scoped_release release;
                 const Forgotten forgotten = cache.forget(name, limit);
                 return std::make_pair(forgotten.pages, forgotten.tokens);
             },
             nb::arg("owner"), nb::arg("limit"))
        .def("forget_space",
             [](PrefixCache& cache, nb::bytes space, int64_t limit) {
                 const std::string name = text(space);
                 nb::gil_scoped_release release;
                 const Forgotten forgotten = cache.forget_space(name, limit);
                 return std::make_pair(forgotten.pages, forgotten.tokens);
             },
             nb::arg("space"), nb::arg("limit"))
        .def("stats", &stats_of)
        .def("check_integrity", &PrefixCache::check_integrity);

    m.def("prefix_hash", [](uint64_t prefix, Tokens tokens) { return hash_extend(prefix, tokens.data(), int64_t(tokens.size())); }, nb::arg("prefix"),
          nb::arg("tokens"));
}

}  // namespace duologue
