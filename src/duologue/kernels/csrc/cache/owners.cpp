// Whose branches are whose: each finished sequence leaves its end (a tail) under its owner, so that the owner can be forgotten
// without touching what others reach.
#include <algorithm>

#include "cache/prefix_cache.h"
#include "cache/rolling_hash.h"

namespace duologue {

int32_t PrefixCache::take_owner(const std::string& owner) {
    const auto found = owner_ids_.find(owner);
    if (found != owner_ids_.end()) return found->second;
    int32_t id;
    if (free_owners_.empty()) {
        id = static_cast<int32_t>(owner_names_.size());
        owner_names_.emplace_back();
        owner_tails_.emplace_back();
        owner_sequences_.push_back(0);
    } else {
        id = free_owners_.back();
        free_owners_.pop_back();
    }
    owner_names_[size_t(id)] = owner;
    owner_ids_.emplace(owner, id);
    return id;
}

void PrefixCache::drop_owner_if_unused(int32_t owner) {
    const auto at = static_cast<size_t>(owner);
    if (owner_sequences_[at] > 0 || !owner_tails_[at].empty()) return;
    const auto known = owner_ids_.find(owner_names_[at]);
    if (known == owner_ids_.end() || known->second != owner) return;
    owner_ids_.erase(known);
    owner_names_[at] = {};
    free_owners_.push_back(owner);
}

void PrefixCache::add_tail(int32_t owner, int32_t node, int32_t token_count) {
    // The ends of the owner's earlier turns on this branch are part of it now.
    for (int32_t at = nodes_[node].parent; at != kNone; at = nodes_[at].parent)
        if (nodes_[at].has_tails) drop_tail(owner, at);
    std::vector<Tail>& tails = tails_[node];
    if (owner_tails_[size_t(owner)].insert(node).second) {
        tails.push_back({owner, token_count});
        nodes_[node].has_tails = true;
        return;
    }
    const auto known = std::find_if(tails.begin(), tails.end(), [owner](const Tail& tail) { return tail.owner == owner; });
    known->token_count = std::max(known->token_count, token_count);
}

// The owner itself stays known; the caller drops it when it is not used any more.
void PrefixCache::drop_tail(int32_t owner, int32_t node) {
    if (owner_tails_[size_t(owner)].erase(node) == 0) return;
    const auto found = tails_.find(node);
    found->second.erase(std::find_if(found->second.begin(), found->second.end(), [owner](const Tail& tail) { return tail.owner == owner; }));
    if (found->second.empty()) {
        tails_.erase(found);
        nodes_[node].has_tails = false;
    }
}

void PrefixCache::move_tails(int32_t from, int32_t to) {
    if (!nodes_[from].has_tails) return;
    // To a page at the same place, or to the one above, which the owners reach whole.
    const bool upwards = nodes_[from].depth > nodes_[to].depth;
    const std::vector<Tail> tails = tails_[from];
    for (const auto& [owner, token_count] : tails) {
        drop_tail(owner, from);
        if (nodes_[to].parent != kNone) add_tail(owner, to, upwards ? P() : token_count);
        drop_owner_if_unused(owner);
    }
}

// Removes a page and those above it that nobody else stored or uses; of a page where others end, what lies behind their ends.
void PrefixCache::prune(int32_t node, Forgotten& forgotten) {
    while (nodes_[node].parent != kNone && nodes_[node].locks == 0 && !nodes_[node].has_tails && !nodes_[node].children &&
           nodes_[node].hidden_children == 0) {
        const int32_t parent = nodes_[node].parent;
        ++forgotten.pages;
        forgotten.tokens += nodes_[node].token_count;
        remove_leaf(node, false);
        node = parent;
    }
    cut_to_tails(node, forgotten);
}

// Owners may end within a page that another one went on writing. Once that one is forgotten, its tokens must go.
void PrefixCache::cut_to_tails(int32_t id, Forgotten& forgotten) {
    Node& node = nodes_[id];
    if (!node.has_tails || node.locks > 0 || node.children) return;
    int32_t count = 0;
    for (const Tail& tail : tails_[id]) count = std::max(count, tail.token_count);
    if (count >= node.token_count) return;
    forgotten.tokens += node.token_count - count;
    const Children& siblings = *nodes_[node.parent].children;
    auto at = siblings.lower_bound(std::pair<const int32_t*, int64_t>{tokens_of(id), count});
    if (*at == id) ++at;
    if (at != siblings.end() && nodes_[*at].token_count >= count && std::equal(tokens_of(id), tokens_of(id) + count, tokens_of(*at))) {
        move_tails(id, *at);
        ++forgotten.pages;
        remove_leaf(id, false);
        return;
    }
    drop_checkpoints_of(id);  // of windows that end behind the cut, or will no longer be continued from
    detach(id);
    std::fill(tokens_of(id) + count, tokens_of(id) + node.token_count, 0);
    node.token_count = count;
    attach(id);
}

Forgotten PrefixCache::forget(const std::string& owner, int64_t limit) {
    const std::lock_guard guard(mutex_);
    Forgotten forgotten;
    drop_ghosts(&Ghost::owner, hash_of_owner(owner));
    const auto found = owner_ids_.find(owner);
    if (found == owner_ids_.end()) return forgotten;
    const int32_t id = found->second;
    for (Sequence& sequence : sequences_)
        if (sequence.in_use && sequence.owner == id) sequence.forget = true;
    std::unordered_set<int32_t>& tails = owner_tails_[size_t(id)];
    while (!tails.empty() && forgotten.pages < limit) {
        const int32_t node = *tails.begin();
        const int32_t root = nodes_[node].root;
        drop_tail(id, node);
        prune(node, forgotten);
        drop_root_if_empty(root);
    }
    for (Sequence& sequence : sequences_)
        if (sequence.in_use && sequence.owner == id) hide(sequence);
    drop_owner_if_unused(id);
    return forgotten;
}

// Takes the pages that only forgotten sequences stand on out of the tree that prompts are matched with. They are pruned when these
// end; what those store from now on is hidden from the start.
void PrefixCache::hide(Sequence& sequence) {
    // A page that it writes on behind another owner's end will hold its tokens: that owner's branch ends with the page above.
    if (sequence.open != kNone) move_tails(sequence.open, nodes_[sequence.open].parent);
    for (int32_t id = pinned_node(sequence); only_forgotten_reach(id); id = nodes_[id].parent) {
        move_tails(id, nodes_[id].parent);
        if (nodes_[id].hidden) continue;
        detach(id);
        nodes_[id].hidden = true;
        attach(id);
    }
}

// Other owners may end within such a page, but not with it.
bool PrefixCache::only_forgotten_reach(int32_t id) const {
    const Node& node = nodes_[id];
    if (node.parent == kNone || node.children) return false;
    if (node.has_tails)
        for (const Tail& tail : tails_.at(id))
            if (tail.token_count >= node.token_count) return false;
    int32_t pins = node.hidden_children;
    for (const Sequence& sequence : sequences_) pins += sequence.in_use && sequence.forget && pinned_node(sequence) == id;
    return node.locks == pins;
}

Forgotten PrefixCache::forget_space(const std::string& space, int64_t limit) {
    const std::lock_guard guard(mutex_);
    Forgotten forgotten;
    const int32_t named = find_root(space);
    drop_ghosts(&Ghost::space, hash_of_name(space));
    if (named != kNone) {
        // Without its name the tree is out of reach at once; its pages go leaf by leaf, in as many calls as it takes.
        roots_.erase(space);
        root_names_.erase(named);
        for (Sequence& sequence : sequences_)
            if (sequence.in_use && sequence.root == named) sequence.forget = true;
        condemned_[space].push_back(named);
    }
    const auto condemned = condemned_.find(space);
    if (condemned == condemned_.end()) return forgotten;
    while (!condemned->second.empty()) {
        const int32_t root = condemned->second.back();
        for (int32_t leaf = unlocked_leaf(root); leaf != kNone; leaf = unlocked_leaf(root)) {
            if (forgotten.pages >= limit) return forgotten;
            for (int32_t at = leaf; at != root && nodes_[at].locks == 0 && !nodes_[at].children && forgotten.pages < limit;) {
                const int32_t parent = nodes_[at].parent;
                while (nodes_[at].has_tails) {
                    const int32_t owner = tails_[at].back().owner;
                    drop_tail(owner, at);
                    drop_owner_if_unused(owner);
                }
                ++forgotten.pages;
                forgotten.tokens += nodes_[at].token_count;
                remove_leaf(at, false);
                at = parent;
            }
        }
        condemned->second.pop_back();  // what is locked goes with the sequence that holds it
        drop_root_if_empty(root);
    }
    condemned_.erase(condemned);
    return forgotten;
}

// A leaf below `node` that nobody needs. Below an unlocked page all are; few are locked.
int32_t PrefixCache::unlocked_leaf(int32_t node) const {
    const Children* children = nodes_[node].children.get();
    if (children == nullptr) return kNone;
    for (const int32_t child : *children) {
        if (nodes_[child].locks > 0) {
            const int32_t leaf = unlocked_leaf(child);
            if (leaf != kNone) return leaf;
            continue;
        }
        int32_t at = child;
        while (nodes_[at].children) at = *nodes_[at].children->begin();
        return at;
    }
    return kNone;
}

}  // namespace duologue
