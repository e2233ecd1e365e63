// Recomputes everything that the cache keeps in step, and compares.
#include <cstring>
#include <map>
#include <stdexcept>

#include "cache/prefix_cache.h"
#include "cache/rolling_hash.h"

namespace duologue {

namespace {

void check(bool condition, const char* what) {
    if (!condition) throw std::logic_error(what);
}

}  // namespace

void PrefixCache::check_integrity() const {
    const std::lock_guard guard(mutex_);
    std::vector<int32_t> locks(nodes_.size(), 0), local_pins(nodes_.size(), 0), local_keeps(nodes_.size(), 0), hidden_children(nodes_.size(), 0);
    std::map<LeaseKey, int64_t> leased;
    std::vector<int32_t> holders[kPoolKinds] = {std::vector<int32_t>(size_t(config_.global_pages), 0), std::vector<int32_t>(size_t(config_.local_pages), 0)};
    const auto hold = [&](PoolKind kind, int32_t page) {
        check(page >= 0 && size_t(page) < holders[kind].size(), "a page id is outside the pool");
        check(++holders[kind][size_t(page)] == 1, "a page has two owners");
    };
    for (const PoolKind kind : {kGlobalPool, kLocalPool})
        for (const int32_t page : free_pages_[kind]) hold(kind, page);

    int64_t stored[kPoolKinds] = {0, 0}, stored_tokens = 0, full_nodes = 0, roots = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
        const Node& node = nodes_[i];
        if (!node.in_use) continue;
        const auto id = static_cast<int32_t>(i);
        if (node.parent == kNone) {
            const auto name = root_names_.find(id);
            if (name == root_names_.end()) continue;  // forgotten, but not empty yet
            ++roots;
            check(roots_.at(name->second) == id, "a root is not under its name");
            check(node.children || node.locks > 0, "an empty root is kept");
            continue;
        }
        const Node& parent = nodes_[size_t(node.parent)];
        check(parent.in_use && (parent.parent == kNone || full(parent)), "a page hangs under one that is missing or not full");
        check(node.depth == parent.depth + 1 && node.root == parent.root, "depth or root disagrees with the parent");
        check(node.token_count >= 1 && node.token_count <= P(), "a page has no tokens");
        // Children are told apart by their tokens, and a hidden page may have those of a visible one.
        const bool among = parent.children && parent.children->count(id) == 1 && *parent.children->find(id) == id;
        check(among == !node.hidden, "a page is not among its parent's children, or is hidden and is");
        check(!node.hidden || (node.locks > 0 && !node.children && !node.has_tails), "a hidden page is reached by others");
        hidden_children[size_t(node.parent)] += node.hidden;
        check(full(node) || !node.children, "a partial page has children");
        hold(kGlobalPool, node.page[kGlobalPool]);
        ++stored[kGlobalPool];
        if (node.page[kLocalPool] != kNone) {
            hold(kLocalPool, node.page[kLocalPool]);
            ++stored[kLocalPool];
            check(node.local_pins > 0 || node.local_keeps > 0, "a local page is kept for nothing");
        } else {
            check(node.local_pins == 0 && node.local_keeps == 0, "a missing local page is held");
        }
        stored_tokens += node.token_count;
        if (full(node)) {
            check(node.hash == hash_extend(parent.hash, tokens_of(id), P()), "a hash is wrong");
            const auto [begin, end] = table_.equal_range(cut(node.hash));
            bool listed = false;
            for (auto it = begin; it != end; ++it) listed |= it->second == id;
            check(listed == !node.hidden, "a full page is not in the hash table, or is hidden and is");
            full_nodes += !node.hidden;
        }
        check((eviction_order_.count({node.score_s, id}) == 1) == (node.locks == 0 && !node.children && node.hidden_children == 0), "the eviction order is wrong");
        check(node.has_tails == (tails_.count(id) == 1), "has_tails is wrong");
        check(node.has_checkpoints == (checkpoints_of_node_.count(id) > 0), "has_checkpoints is wrong");
        if (node.locks > 0) ++locks[size_t(node.parent)];
        if (leases_.count(node.lease) > 0) ++leased[node.lease];
    }
    check(leased.size() == leases_.size(), "a head start is kept for nothing");
    std::map<std::string, int64_t> leased_pages;
    for (const auto& [key, lease] : leases_) {
        check(leased[key] == lease.pages, "the count of pages with a head start is wrong");
        leased_pages[lease.tenant] += lease.pages;
    }
    check(leased_pages == std::map<std::string, int64_t>(leased_pages_.begin(), leased_pages_.end()), "the count of a tenant's pages with a head start is wrong");
    for (const PoolKind kind : {kGlobalPool, kLocalPool}) check(stored[kind] == stored_pages_[kind], "the count of stored pages is wrong");
    check(stored_tokens == stored_tokens_, "the count of stored tokens is wrong");
    check(int64_t(table_.size()) == full_nodes, "the hash table holds pages that are gone");
    check(roots == int64_t(roots_.size()) && roots_.size() == root_names_.size(), "the roots' names are wrong");
    for (const auto& [score_s, id] : eviction_order_) check(nodes_[size_t(id)].in_use && nodes_[size_t(id)].score_s == score_s, "the eviction order names a page that is gone");

    int64_t running = 0;
    for (const Sequence& sequence : sequences_) {
        if (!sequence.in_use) continue;
        ++running;
        ++locks[size_t(pinned_node(sequence))];
        const size_t shared = sequence.chain.size() + (sequence.open != kNone ? 1 : 0);
        for (size_t c = 0; c < sequence.table[kGlobalPool].size(); ++c) {
            const int32_t node = c < sequence.chain.size() ? sequence.chain[c] : c < shared ? sequence.open : kNone;
            if (node == kNone) {
                hold(kGlobalPool, sequence.table[kGlobalPool][c]);
                if (hybrid() && c < sequence.table[kLocalPool].size()) hold(kLocalPool, sequence.table[kLocalPool][c]);
                continue;
            }
            check(nodes_[size_t(node)].in_use && nodes_[size_t(node)].depth == int32_t(c) + 1, "a sequence stands on a page that is gone");
            check(nodes_[size_t(node)].page[kGlobalPool] == sequence.table[kGlobalPool][c], "a page table disagrees with the tree");
            if (!hybrid()) continue;
            const bool within = int64_t(c) >= sequence.local_begin;
            check(sequence.table[kLocalPool][c] == (within ? nodes_[size_t(node)].page[kLocalPool] : kNone), "a local page table disagrees with the tree");
            if (within) ++local_pins[size_t(node)];
        }
    }
    check(running == running_, "the count of running sequences is wrong");
    for (const PoolKind kind : {kGlobalPool, kLocalPool})
        for (const int32_t count : holders[kind]) check(count == 1, "a page is lost");

    for (size_t i = 0; i < checkpoints_.size(); ++i) {
        const Checkpoint& checkpoint = checkpoints_[i];
        if (!checkpoint.in_use) continue;
        check(checkpoint_order_.count({checkpoint.order(), static_cast<int32_t>(i)}) == 1, "a checkpoint is not in the order");
        int32_t at = checkpoint.node;
        for (int32_t j = 0; j < checkpoint.pages; ++j, at = nodes_[size_t(at)].parent) ++local_keeps[size_t(at)];
    }
    int64_t locked = 0, pinned = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (!nodes_[i].in_use) continue;
        check(nodes_[i].locks == locks[i], "a lock count is wrong");
        check(nodes_[i].hidden_children == hidden_children[i], "a count of hidden pages is wrong");
        check(nodes_[i].local_pins == local_pins[i], "a count of window pins is wrong");
        check(nodes_[i].local_keeps == local_keeps[i], "a count of checkpoints over a page is wrong");
        if (nodes_[i].parent != kNone) {
            locked += nodes_[i].locks > 0;
            pinned += nodes_[i].local_pins > 0;
        }
    }
    check(locked == locked_nodes_ && pinned == pinned_local_pages_, "the counts of locked pages are wrong");
    for (const auto& [node, tails] : tails_)
        for (const Tail& tail : tails) {
            check(nodes_[size_t(node)].in_use && owner_tails_[size_t(tail.owner)].count(node) == 1, "an owner does not know its tail");
            check(tail.token_count >= 1 && tail.token_count <= nodes_[size_t(node)].token_count, "a tail ends outside its page");
        }
    check(ghosts_.size() == ghost_set_.size() && ghosts_.size() <= ghost_limit_, "the memory of evicted pages is wrong");
}

}  // namespace duologue
