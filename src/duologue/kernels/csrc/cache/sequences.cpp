// Running sequences: what they hold of the tree, and what they leave in it.
#include <algorithm>
#include <stdexcept>

#include "cache/prefix_cache.h"
#include "cache/rolling_hash.h"

namespace duologue {

PrefixCache::Sequence& PrefixCache::sequence_at(int32_t id) {
    if (id < 0 || size_t(id) >= sequences_.size() || !sequences_[size_t(id)].in_use) throw std::invalid_argument("no running sequence has this number");
    return sequences_[size_t(id)];
}

const PrefixCache::Sequence& PrefixCache::sequence_at(int32_t id) const { return const_cast<PrefixCache*>(this)->sequence_at(id); }

int32_t PrefixCache::pinned_node(const Sequence& sequence) const {
    if (sequence.open != kNone) return sequence.open;
    return sequence.chain.empty() ? sequence.root : sequence.chain.back();
}

// Pins the match and turns it into the sequence's page tables.
void PrefixCache::hold_match(Sequence& sequence, Match& match, Opened& opened, double now_s) {
    const auto pin_all = [&] {
        const int64_t matched = int64_t(match.chain.size()) * P() + match.extension_tokens;
        sequence.local_begin = hybrid() ? std::max<int64_t>(0, matched - config_.window_tokens + 1) / P() : 0;
        pin(match.chain.empty() ? sequence.root : match.chain.back());
        if (match.extension != kNone) pin(match.extension);
        if (!hybrid()) return;
        for (size_t c = size_t(sequence.local_begin); c < match.chain.size(); ++c) pin_local(match.chain[c]);
        if (match.extension != kNone) pin_local(match.extension);
    };
    const auto unpin_extension = [&] {
        if (hybrid()) unpin_local(match.extension);
        unpin(match.extension, now_s);
    };
    pin_all();
    int32_t fresh[kPoolKinds] = {kNone, kNone};
    // A partial page that the prompt takes up whole is written on where it lies; of any other the common part is copied.
    const bool takes_over = match.extension != kNone && !sequence.forget && match.extension_tokens == nodes_[match.extension].token_count && nodes_[match.extension].locks == 1;
    if (match.extension != kNone && !takes_over) {
        fresh[kGlobalPool] = take_page(kGlobalPool);
        if (hybrid() && fresh[kGlobalPool] != kNone) fresh[kLocalPool] = take_page(kLocalPool);
        if (fresh[kGlobalPool] == kNone || (hybrid() && fresh[kLocalPool] == kNone)) {
            // No page to copy into: begin at the page's start, which may need an earlier window.
            if (fresh[kGlobalPool] != kNone) give_page(kGlobalPool, fresh[kGlobalPool]);
            unpin_extension();
            if (hybrid())
                for (size_t c = size_t(sequence.local_begin); c < match.chain.size(); ++c) unpin_local(match.chain[c]);
            unpin(match.chain.empty() ? sequence.root : match.chain.back(), now_s);
            match.extension = kNone;
            match.extension_tokens = 0;
            keep_usable(match);
            pin_all();
        }
    }
    for (size_t c = 0; c < match.chain.size(); ++c) {
        sequence.table[kGlobalPool].push_back(nodes_[match.chain[c]].page[kGlobalPool]);
        if (hybrid()) sequence.table[kLocalPool].push_back(int64_t(c) < sequence.local_begin ? kNone : nodes_[match.chain[c]].page[kLocalPool]);
    }
    sequence.chain = match.chain;
    if (match.extension != kNone) {
        for (const PoolKind kind : {kGlobalPool, kLocalPool}) {
            if (kind == kLocalPool && !hybrid()) continue;
            const int32_t source = nodes_[match.extension].page[kind];
            sequence.table[kind].push_back(takes_over ? source : fresh[kind]);
            if (!takes_over) opened.copies.push_back({kind, source, fresh[kind]});
        }
        if (takes_over) {
            sequence.open = match.extension;
            unpin(match.chain.empty() ? sequence.root : match.chain.back(), now_s);
        } else {
            unpin_extension();
        }
    }
    opened.cached_tokens = int64_t(match.chain.size()) * P() + match.extension_tokens;
    // A boundary where the match ends (a persona's end) is kept again on the sequence's own copy of the page: dialogues part there,
    // and the next one meets the copy of its neighbour in token order.
    sequence.noted = opened.cached_tokens - (opened.copies.empty() ? 0 : 1);
    touch_checkpoints(match, now_s);
}

Opened PrefixCache::open(const std::string& space, const std::string& owner, const int32_t* tokens, int64_t count, int64_t limit, std::vector<int64_t> turns,
                         std::vector<int64_t> shared, bool keep, double now_s) {
    const std::lock_guard guard(mutex_);
    for (int64_t i = 0; i < count; ++i)
        if (tokens[i] < 0) throw std::invalid_argument("a token id is negative");
    limit = std::clamp<int64_t>(limit, 0, count);
    Opened opened;
    if (free_sequences_.empty()) {
        free_sequences_.push_back(static_cast<int32_t>(sequences_.size()));
        sequences_.emplace_back();
    }
    opened.sequence = free_sequences_.back();
    free_sequences_.pop_back();
    ++running_;
    Sequence& sequence = sequences_[size_t(opened.sequence)];
    sequence = Sequence{};
    sequence.in_use = true;
    sequence.forget = !keep;
    sequence.owner = take_owner(owner);
    ++owner_sequences_[size_t(sequence.owner)];
    sequence.root = take_root(space);
    turns.push_back(count);
    std::sort(turns.begin(), turns.end());
    std::sort(shared.begin(), shared.end());
    sequence.turns = std::move(turns);
    sequence.shared = std::move(shared);
    const Match stored = match(sequence.root, tokens, limit);
    Match usable = stored;
    keep_usable(usable);
    opened.lookup = describe(stored, usable, limit);
    hold_match(sequence, usable, opened, now_s);
    return opened;
}

bool PrefixCache::reserve(int32_t id, int64_t tokens) {
    const std::lock_guard guard(mutex_);
    Sequence& sequence = sequence_at(id);
    const int64_t pages = (tokens + P() - 1) / P();
    for (const PoolKind kind : {kGlobalPool, kLocalPool}) {
        if (kind == kLocalPool && !hybrid()) continue;
        while (int64_t(sequence.table[kind].size()) < pages) {
            const int32_t page = take_page(kind);
            if (page == kNone) return false;
            sequence.table[kind].push_back(page);
        }
    }
    return true;
}

// A child whose tokens begin with these.
int32_t PrefixCache::node_beginning_with(int32_t parent, const int32_t* tokens, int64_t count) const {
    const Children* children = nodes_[parent].children.get();
    if (children == nullptr) return kNone;
    const auto at = children->lower_bound(std::pair<const int32_t*, int64_t>{tokens, count});
    if (at == children->end() || nodes_[*at].token_count < count || !std::equal(tokens, tokens + count, tokens_of(*at))) return kNone;
    return *at;
}

// The target holds the same tokens as the sequence's page at `column`, and by exactness the same KV: the sequence's own page
// goes. What the target lacks (local KV) it is given.
void PrefixCache::merge_into(Sequence& sequence, int32_t target, int64_t column) {
    const auto at = static_cast<size_t>(column);
    const int32_t own = sequence.open;
    if (hybrid() && nodes_[target].page[kLocalPool] == kNone) {
        nodes_[target].page[kLocalPool] = sequence.table[kLocalPool][at];
        if (own != kNone) {
            nodes_[own].page[kLocalPool] = kNone;
            if (nodes_[own].local_pins > 0) --pinned_local_pages_;
        } else {
            ++stored_pages_[kLocalPool];
        }
        sequence.table[kLocalPool][at] = kNone;
    }
    pin(target);
    if (hybrid()) pin_local(target);
    if (own != kNone) {
        move_tails(own, target);
        move_checkpoints(own, target);
        if (hybrid() && nodes_[own].page[kLocalPool] != kNone) unpin_local(own);
        sequence.open = kNone;
        unpin(own, 0);
        remove_leaf(own, false);
    } else {
        unpin(pinned_node(sequence), 0);
        give_page(kGlobalPool, sequence.table[kGlobalPool][at]);
        if (hybrid() && sequence.table[kLocalPool][at] != kNone) give_page(kLocalPool, sequence.table[kLocalPool][at]);
    }
    sequence.table[kGlobalPool][at] = nodes_[target].page[kGlobalPool];
    if (hybrid()) sequence.table[kLocalPool][at] = nodes_[target].page[kLocalPool];
}

// Enters the sequence's page behind its chain into the tree, as far as it is computed: `count` tokens, full or not.
void PrefixCache::store_page(Sequence& sequence, const int32_t* tokens, int32_t count, double now_s) {
    const auto column = static_cast<int64_t>(sequence.chain.size());
    const int32_t parent = sequence.chain.empty() ? sequence.root : sequence.chain.back();
    if (sequence.open != kNone && nodes_[sequence.open].token_count == count) return;
    const int32_t target = node_beginning_with(parent, tokens, count);
    if (target != kNone) {
        merge_into(sequence, target, column);
        sequence.open = target;
    } else if (sequence.open != kNone) {
        detach(sequence.open);
        std::copy(tokens, tokens + count, tokens_of(sequence.open));
        nodes_[sequence.open].token_count = count;
        attach(sequence.open);
    } else {
        const int32_t node = new_node(parent);
        std::copy(tokens, tokens + count, tokens_of(node));
        nodes_[node].token_count = count;
        nodes_[node].hidden = sequence.forget;
        for (const PoolKind kind : {kGlobalPool, kLocalPool}) {
            if (kind == kLocalPool && !hybrid()) continue;
            nodes_[node].page[kind] = sequence.table[kind][size_t(column)];
            ++stored_pages_[kind];
        }
        nodes_[node].score_s = now_s;
        attach(node);
        pin(node);
        if (hybrid()) pin_local(node);
        unpin(parent, now_s);
        sequence.open = node;
    }
    absorb_shorter_sibling(sequence.open);
    if (count == P()) {
        sequence.chain.push_back(sequence.open);
        sequence.open = kNone;
    }
}

// A partial page whose tokens begin another page is of no more use than that one.
void PrefixCache::absorb_shorter_sibling(int32_t node) {
    if (nodes_[node].hidden) return;
    const Children& siblings = *nodes_[nodes_[node].parent].children;
    const auto at = siblings.find(node);
    if (at == siblings.begin()) return;
    const int32_t shorter = *std::prev(at);
    const int32_t count = nodes_[shorter].token_count;
    if (nodes_[shorter].locks > 0 || count >= nodes_[node].token_count || !std::equal(tokens_of(shorter), tokens_of(shorter) + count, tokens_of(node))) return;
    move_tails(shorter, node);
    move_checkpoints(shorter, node);
    raise_score(node, nodes_[shorter].score_s);
    remove_leaf(shorter, false);
}

void PrefixCache::commit(int32_t id, const int32_t* tokens, int64_t computed, bool seal, double now_s) {
    const std::lock_guard guard(mutex_);
    commit_locked(sequence_at(id), tokens, computed, seal, now_s);
}

void PrefixCache::commit_locked(Sequence& sequence, const int32_t* tokens, int64_t computed, bool seal, double now_s) {
    if (computed > int64_t(sequence.table[kGlobalPool].size()) * P()) throw std::invalid_argument("commit: more tokens than the sequence has pages for");
    while (computed >= int64_t(sequence.chain.size() + 1) * P()) {
        store_page(sequence, tokens + int64_t(sequence.chain.size()) * P(), P(), now_s);
        note_boundaries(sequence, sequence.chain.back(), int64_t(sequence.chain.size()) * P(), now_s);
    }
    if (seal) {
        const int64_t begin = int64_t(sequence.chain.size()) * P();
        const auto rest = static_cast<int32_t>(computed - begin);
        // The sequence goes on writing into its page, so it does not merge with an equal one here.
        const int32_t parent = sequence.chain.empty() ? sequence.root : sequence.chain.back();
        const int32_t known = rest > 0 ? node_beginning_with(parent, tokens + begin, rest) : kNone;
        if (rest > 0 && known == kNone) store_page(sequence, tokens + begin, rest, now_s);
        if (rest == 0 || known == kNone || known == sequence.open) note_boundaries(sequence, pinned_node(sequence), computed, now_s);
        drop_older_turns(sequence);
    }
    trim_window(sequence, computed);
}

bool PrefixCache::close(int32_t id, const int32_t* tokens, int64_t computed, bool keep, const std::string& tenant, double retention_s,
                        double now_s) {
    const std::lock_guard guard(mutex_);
    Sequence& sequence = sequence_at(id);
    double score_s = now_s;
    const bool forgotten_before = sequence.forget;
    keep = keep && !forgotten_before;
    if (keep) {
        commit_locked(sequence, tokens, computed, false, now_s);
        const int64_t begin = int64_t(sequence.chain.size()) * P();
        if (computed > begin) store_page(sequence, tokens + begin, static_cast<int32_t>(computed - begin), now_s);
        const int32_t last = pinned_node(sequence);
        score_s += lease(sequence, tenant, retention_s, now_s);
        if (last != sequence.root) {
            note_boundaries(sequence, last, computed, now_s);
            if (hybrid()) add_checkpoint(last, computed, kTurn, score_s);
            add_tail(sequence.owner, last, static_cast<int32_t>(computed - int64_t(nodes_[last].depth - 1) * P()));
        }
    }
    const int32_t last = pinned_node(sequence);
    if (hybrid()) {
        for (size_t c = size_t(sequence.local_begin); c < sequence.chain.size(); ++c) unpin_local(sequence.chain[c]);
        if (sequence.open != kNone) unpin_local(sequence.open);
    }
    const size_t stored = sequence.chain.size() + (sequence.open != kNone ? 1 : 0);
    for (const PoolKind kind : {kGlobalPool, kLocalPool})
        for (size_t c = stored; c < sequence.table[kind].size(); ++c) give_page(kind, sequence.table[kind][c]);
    unpin(last, score_s);
    Forgotten forgotten;
    if (!keep) prune(last, forgotten);
    drop_root_if_empty(sequence.root);
    const int32_t owner = sequence.owner;
    --owner_sequences_[size_t(owner)];
    drop_owner_if_unused(owner);
    sequence = Sequence{};
    free_sequences_.push_back(id);
    --running_;
    return !forgotten_before;
}

void PrefixCache::copy_table(int32_t id, PoolKind kind, int32_t* out, int64_t columns) const {
    const std::lock_guard guard(mutex_);
    const std::vector<int32_t>& table = sequence_at(id).table[kind];
    const int64_t known = std::min<int64_t>(columns, int64_t(table.size()));
    std::copy(table.begin(), table.begin() + known, out);
    // Columns that other sequences of the batch need: never read for this one, but a valid page all the same.
    std::fill(out + known, out + columns, kind == kLocalPool ? kNone : 0);
}

int64_t PrefixCache::page_count(int32_t id) const {
    const std::lock_guard guard(mutex_);
    const Sequence& sequence = sequence_at(id);
    const size_t count = sequence.table[kGlobalPool].size();
    return int64_t(hybrid() ? std::min(count, sequence.table[kLocalPool].size()) : count);
}

}  // namespace duologue
