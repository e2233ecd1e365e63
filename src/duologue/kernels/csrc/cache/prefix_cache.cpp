#include "cache/prefix_cache.h"

#include <algorithm>
#include <stdexcept>

#include "cache/rolling_hash.h"

namespace duologue {

namespace {

constexpr int64_t kBranchesCompared = 256;

const PrefixCacheConfig& checked(const PrefixCacheConfig& config) {
    if (config.page_tokens < 1 || config.global_pages < 1 || config.local_pages < 0 || config.window_tokens < 0)
        throw std::invalid_argument("page_tokens and global_pages must be positive, local_pages and window_tokens not negative");
    if ((config.window_tokens > 0) != (config.local_pages > 0)) throw std::invalid_argument("local_pages and window_tokens go together");
    if (config.hash_bits < 1 || config.hash_bits > 61) throw std::invalid_argument("hash_bits must be between 1 and 61");
    return config;
}

}  // namespace

PrefixCache::PrefixCache(const PrefixCacheConfig& config) : config_(checked(config)), hash_mask_((uint64_t(1) << config.hash_bits) - 1) {
    const int32_t counts[kPoolKinds] = {config.global_pages, config.local_pages};
    for (const PoolKind kind : {kGlobalPool, kLocalPool}) {
        // A stack with the lowest page on top: recently freed pages are warm and are taken first.
        free_pages_[kind].resize(size_t(counts[kind]));
        for (int32_t i = 0; i < counts[kind]; ++i) free_pages_[kind][size_t(i)] = counts[kind] - 1 - i;
    }
    ghost_limit_ = std::max<size_t>(1024, 4 * size_t(config.global_pages));
}

Lookup PrefixCache::lookup(const std::string& space, const int32_t* tokens, int64_t count) const {
    const std::lock_guard guard(mutex_);
    const int32_t root = find_root(space);
    Match stored = match(root, tokens, count);
    if (root == kNone && count >= P()) {  // all of it may have been evicted
        stored.has_next = true;
        stored.next_hash = hash_extend(hash_of_name(space), tokens, P());
    }
    Match usable = stored;
    keep_usable(usable);
    return describe(stored, usable, count);
}

std::vector<int32_t> PrefixCache::stored_branch(const std::string& space, const int32_t* tokens, int64_t count, int64_t limit) const {
    const std::lock_guard guard(mutex_);
    std::vector<int32_t> branch;
    const int32_t root = find_root(space);
    if (root == kNone) return branch;
    const Match stored = match(root, tokens, count);
    int32_t at = stored.extension;
    int64_t skip = stored.extension_tokens;
    if (at == kNone) at = stored.chain.empty() ? root : stored.chain.back();
    if (stored.extension == kNone) skip = nodes_[at].token_count;
    while (int64_t(branch.size()) < limit) {
        for (int64_t i = skip; i < nodes_[at].token_count && int64_t(branch.size()) < limit; ++i) branch.push_back(tokens_of(at)[i]);
        if (!nodes_[at].children) break;
        // Of several branches the one used last is what the caller most likely has in mind. Under a persona there may be tens of
        // thousands, a cache miss each, and all of the engine waits for this.
        const Children& children = *nodes_[at].children;
        at = *children.begin();
        int64_t compared = 0;
        for (const int32_t child : children) {
            if (nodes_[child].score_s > nodes_[at].score_s) at = child;
            if (++compared == kBranchesCompared) break;
        }
        skip = 0;
    }
    return branch;
}

int64_t PrefixCache::available(PoolKind kind) const {
    const std::lock_guard guard(mutex_);
    const int64_t free = int64_t(free_pages_[kind].size());
    return free + stored_pages_[kind] - (kind == kGlobalPool ? locked_nodes_ : pinned_local_pages_);
}

PrefixCacheStats PrefixCache::stats() const {
    const std::lock_guard guard(mutex_);
    PrefixCacheStats stats;
    stats.total_pages[kGlobalPool] = config_.global_pages;
    stats.total_pages[kLocalPool] = config_.local_pages;
    for (const PoolKind kind : {kGlobalPool, kLocalPool}) {
        stats.free_pages[kind] = int64_t(free_pages_[kind].size());
        stats.stored_pages[kind] = stored_pages_[kind];
        stats.evictable_pages[kind] = stored_pages_[kind] - (kind == kGlobalPool ? locked_nodes_ : pinned_local_pages_);
        stats.evicted_pages[kind] = evicted_pages_[kind];
    }
    stats.checkpoints = int64_t(checkpoint_order_.size());
    stats.stored_tokens = stored_tokens_;
    stats.roots = int64_t(roots_.size());
    stats.sequences = running_;
    // What the containers ask the allocator for; a tree or hash node is its payload, its links and the allocator's header.
    constexpr int64_t kTreeNode = 64, kHashNode = 40, kBucket = 8;
    const int64_t nodes = int64_t(nodes_.size() - free_nodes_.size());
    stats.index_bytes = int64_t(nodes_.capacity() * sizeof(Node) + tokens_.capacity() * sizeof(int32_t)) + nodes * (kTreeNode + int64_t(sizeof(Children))) +
                        int64_t(table_.size()) * kHashNode + int64_t(table_.bucket_count()) * kBucket + int64_t(eviction_order_.size()) * kTreeNode +
                        int64_t(checkpoints_.capacity() * sizeof(Checkpoint)) + int64_t(checkpoint_order_.size()) * (kTreeNode + kHashNode) +
                        int64_t(ghosts_.size()) * (int64_t(sizeof(Ghost)) + kHashNode) + int64_t(tails_.size()) * (kHashNode + 48) + int64_t(owner_names_.capacity()) * 128 +
                        int64_t(leases_.size()) * (kTreeNode + int64_t(sizeof(Lease)));
    return stats;
}

}  // namespace duologue
