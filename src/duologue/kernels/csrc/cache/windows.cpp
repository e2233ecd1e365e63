// Local pages: a window layer needs only the KV of its window, so most local pages are freed as soon as their window has
// passed. Checkpoints keep the windows from which a dialogue is likely to go on.
#include <algorithm>

#include "cache/prefix_cache.h"

namespace duologue {

// A window of W positions that ends behind position m needs [m - W + 1, m). A match is usable when the local pages of that range
// are there; otherwise it steps back. Multiples of the page suffice: what is usable inside a page is usable at its end.
void PrefixCache::keep_usable(Match& match) const {
    if (!hybrid()) return;
    std::vector<int64_t> run(match.chain.size() + 1, 0);  // consecutive pages with local KV that end here
    for (size_t j = 1; j <= match.chain.size(); ++j) run[j] = nodes_[match.chain[j - 1]].page[kLocalPool] == kNone ? 0 : run[j - 1] + 1;
    const auto covered = [&](int64_t pages, int64_t tokens) {
        return pages - std::max<int64_t>(0, tokens - config_.window_tokens + 1) / P() <= run[size_t(pages)];
    };
    auto pages = int64_t(match.chain.size());
    if (match.extension != kNone) {
        if (nodes_[match.extension].page[kLocalPool] != kNone && covered(pages, pages * P() + match.extension_tokens)) return;
        match.extension = kNone;
        match.extension_tokens = 0;
    }
    while (pages > 0 && !covered(pages, pages * P())) --pages;
    match.chain.resize(size_t(pages));
}

void PrefixCache::pin_local(int32_t node) {
    if (nodes_[node].local_pins++ == 0) ++pinned_local_pages_;
}

void PrefixCache::unpin_local(int32_t node) {
    if (--nodes_[node].local_pins == 0) --pinned_local_pages_;
    free_local_if_unused(node);
}

void PrefixCache::free_local_if_unused(int32_t id) {
    Node& node = nodes_[id];
    if (node.page[kLocalPool] == kNone || node.local_pins > 0 || node.local_keeps > 0) return;
    give_page(kLocalPool, node.page[kLocalPool]);
    node.page[kLocalPool] = kNone;
    --stored_pages_[kLocalPool];
}

// One position more than the next token needs stays, so that a window that ends here can still be kept (and the last token
// of a prompt be computed again, for its logits). Boundaries inside the page that is being written are noted when it is full or
// sealed, so windows are kept from its begin on.
void PrefixCache::trim_window(Sequence& sequence, int64_t computed) {
    if (!hybrid()) return;
    const auto pages = int64_t(sequence.chain.size());
    const int64_t begin = std::min(std::max<int64_t>(0, std::min(computed, pages * P()) - config_.window_tokens) / P(), pages);
    for (; sequence.local_begin < begin; ++sequence.local_begin) {
        unpin_local(sequence.chain[size_t(sequence.local_begin)]);
        sequence.table[kLocalPool][size_t(sequence.local_begin)] = kNone;
    }
}

// Keeps the windows of the boundaries that lie in (what was noted before, end]; `node` is the page that holds them.
void PrefixCache::note_boundaries(Sequence& sequence, int32_t node, int64_t end, double now_s) {
    if (!hybrid() || sequence.forget) return;
    const int64_t begin = std::max<int64_t>(sequence.noted, int64_t(nodes_[node].depth - 1) * P());
    for (const int64_t at : sequence.turns)
        if (at > begin && at <= end) add_checkpoint(node, at, kTurn, now_s);
    for (const int64_t at : sequence.shared)
        if (at > begin && at <= end) add_checkpoint(node, at, kShared, now_s);
    // Sparse ones stand at 4, 8, 16, ... windows: any place of the branch is within half its length of one, and a branch has few.
    for (int64_t at = 4 * int64_t(config_.window_tokens); at <= end; at *= 2)
        if (at > begin) add_checkpoint(node, at, kSparse, now_s);
    sequence.noted = std::max(sequence.noted, end);
}

void PrefixCache::reorder_checkpoint(int32_t id, uint8_t kinds, double score_s) {
    Checkpoint& checkpoint = checkpoints_[size_t(id)];
    checkpoint_order_.erase({checkpoint.order(), id});
    checkpoint.kinds = kinds;
    checkpoint.score_s = score_s;
    checkpoint_order_.emplace(checkpoint.order(), id);
}

void PrefixCache::add_checkpoint(int32_t node, int64_t position, uint8_t kinds, double score_s) {
    const auto [begin, end] = checkpoints_of_node_.equal_range(node);
    for (auto it = begin; it != end; ++it) {
        const Checkpoint& known = checkpoints_[size_t(it->second)];
        if (known.position != position) continue;
        reorder_checkpoint(it->second, known.kinds | kinds, std::max(known.score_s, score_s));
        return;
    }
    const int64_t first = std::max<int64_t>(0, position - config_.window_tokens) / P();
    const auto pages = static_cast<int32_t>(nodes_[node].depth - first);
    int32_t at = node;
    for (int32_t i = 0; i < pages; ++i, at = nodes_[at].parent)
        if (nodes_[at].page[kLocalPool] == kNone) return;
    at = node;
    for (int32_t i = 0; i < pages; ++i, at = nodes_[at].parent) ++nodes_[at].local_keeps;
    if (free_checkpoints_.empty()) {
        free_checkpoints_.push_back(static_cast<int32_t>(checkpoints_.size()));
        checkpoints_.emplace_back();
    }
    const int32_t id = free_checkpoints_.back();
    free_checkpoints_.pop_back();
    checkpoints_[size_t(id)] = {node, pages, position, kinds, score_s, true};
    checkpoints_of_node_.emplace(node, id);
    checkpoint_order_.emplace(checkpoints_[size_t(id)].order(), id);
    nodes_[node].has_checkpoints = true;
}

void PrefixCache::drop_checkpoint(int32_t id) {
    Checkpoint& checkpoint = checkpoints_[size_t(id)];
    int32_t at = checkpoint.node;
    for (int32_t i = 0; i < checkpoint.pages; ++i, at = nodes_[at].parent) {
        --nodes_[at].local_keeps;
        free_local_if_unused(at);
    }
    const auto [begin, end] = checkpoints_of_node_.equal_range(checkpoint.node);
    for (auto it = begin; it != end; ++it)
        if (it->second == id) {
            checkpoints_of_node_.erase(it);
            break;
        }
    nodes_[checkpoint.node].has_checkpoints = checkpoints_of_node_.count(checkpoint.node) > 0;
    checkpoint_order_.erase({checkpoint.order(), id});
    checkpoint = Checkpoint{};
    free_checkpoints_.push_back(id);
}

void PrefixCache::drop_checkpoints_of(int32_t node) {
    while (nodes_[node].has_checkpoints) drop_checkpoint(checkpoints_of_node_.find(node)->second);
}

// To a page at the same place that begins with the same tokens.
void PrefixCache::move_checkpoints(int32_t from, int32_t to) {
    while (nodes_[from].has_checkpoints) {
        const int32_t id = checkpoints_of_node_.find(from)->second;
        const Checkpoint moved = checkpoints_[size_t(id)];
        // Added before the old one is dropped, so that the pages they share stay.
        add_checkpoint(to, moved.position, moved.kinds, moved.score_s);
        drop_checkpoint(id);
    }
}

// Only the windows that a match stands on have been used; those further up, and dead ones, keep their age.
void PrefixCache::touch_checkpoints(const Match& match, double now_s) {
    if (!hybrid()) return;
    const auto touch = [&](int32_t node) {
        if (!nodes_[node].has_checkpoints) return;
        const auto [begin, end] = checkpoints_of_node_.equal_range(node);
        for (auto it = begin; it != end; ++it) {
            const Checkpoint& checkpoint = checkpoints_[size_t(it->second)];
            reorder_checkpoint(it->second, checkpoint.kinds, std::max(checkpoint.score_s, now_s));
        }
    };
    if (match.extension != kNone) touch(match.extension);
    const auto pages = int64_t(match.chain.size());
    for (int64_t c = std::max<int64_t>(0, pages - 1 - config_.window_tokens / P()); c < pages; ++c) touch(match.chain[size_t(c)]);
}

// The windows of earlier turns, as far up as the branch is the only one.
void PrefixCache::drop_older_turns(const Sequence& sequence) {
    if (!hybrid() || sequence.forget) return;
    const int64_t first = sequence.turns.front();
    const auto drop = [&](int32_t node) {
        if (!nodes_[node].has_checkpoints) return;
        std::vector<int32_t> old;
        const auto [begin, end] = checkpoints_of_node_.equal_range(node);
        for (auto it = begin; it != end; ++it) {
            const Checkpoint& checkpoint = checkpoints_[size_t(it->second)];
            if ((checkpoint.kinds & kTurn) != 0 && checkpoint.position < first) old.push_back(it->second);
        }
        for (const int32_t id : old) {
            const Checkpoint& checkpoint = checkpoints_[size_t(id)];
            if (checkpoint.kinds == kTurn)
                drop_checkpoint(id);
            else
                reorder_checkpoint(id, checkpoint.kinds & uint8_t(~kTurn), checkpoint.score_s);
        }
    };
    if (sequence.open != kNone) drop(sequence.open);
    for (size_t c = sequence.chain.size(); c-- > 0;) {
        const Node& node = nodes_[sequence.chain[c]];
        if (node.children && node.children->size() > 1) return;
        drop(sequence.chain[c]);
    }
}

// Drops a checkpoint that holds a page which no running sequence needs: sparse ones first, then the least recently used.
bool PrefixCache::evict_window() {
    for (const auto& [order, id] : checkpoint_order_) {
        const Checkpoint& checkpoint = checkpoints_[size_t(id)];
        bool frees = false;
        int32_t at = checkpoint.node;
        for (int32_t i = 0; i < checkpoint.pages && !frees; ++i, at = nodes_[at].parent) frees = nodes_[at].local_pins == 0;
        if (!frees) continue;
        const int32_t node = checkpoint.node;
        drop_checkpoint(id);
        ++evicted_pages_[kLocalPool];
        // Without its last window the branch's end cannot be continued from: its global pages are the next to go.
        if (!nodes_[node].has_checkpoints && !nodes_[node].children && nodes_[node].locks == 0) {
            leave_eviction_order(node);
            nodes_[node].score_s = 0;
            enter_eviction_order(node);
        }
        return true;
    }
    return false;
}

}  // namespace duologue
