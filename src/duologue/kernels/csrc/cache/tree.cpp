// The tree of stored pages: matching by hash and tokens, pins, and eviction.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cache/prefix_cache.h"
#include "cache/rolling_hash.h"

namespace duologue {

namespace {

using Span = std::pair<const int32_t*, int64_t>;

bool less(Span a, Span b) { return std::lexicographical_compare(a.first, a.first + a.second, b.first, b.first + b.second); }

int64_t common_prefix(const int32_t* a, const int32_t* b, int64_t count) { return std::mismatch(a, a + count, b).first - a; }

}  // namespace

bool PrefixCache::TokenOrder::operator()(int32_t a, int32_t b) const {
    return less({cache->tokens_of(a), cache->nodes_[a].token_count}, {cache->tokens_of(b), cache->nodes_[b].token_count});
}
bool PrefixCache::TokenOrder::operator()(int32_t a, Span b) const { return less({cache->tokens_of(a), cache->nodes_[a].token_count}, b); }
bool PrefixCache::TokenOrder::operator()(Span a, int32_t b) const { return less(a, {cache->tokens_of(b), cache->nodes_[b].token_count}); }

int32_t PrefixCache::find_root(const std::string& space) const {
    const auto found = roots_.find(space);
    return found == roots_.end() ? kNone : found->second;
}

int32_t PrefixCache::take_root(const std::string& space) {
    const int32_t known = find_root(space);
    if (known != kNone) return known;
    const int32_t root = new_node(kNone);
    nodes_[root].root = root;
    nodes_[root].hash = hash_of_name(space);
    roots_.emplace(space, root);
    root_names_.emplace(root, space);
    return root;
}

void PrefixCache::drop_root_if_empty(int32_t root) {
    const Node& node = nodes_[root];
    if (node.locks > 0 || node.children) return;
    const auto name = root_names_.find(root);
    if (name != root_names_.end()) {
        roots_.erase(name->second);
        root_names_.erase(name);
    } else {
        for (auto& [space, roots] : condemned_)
            if (std::find(roots.begin(), roots.end(), root) != roots.end()) return;  // forget_space drops it
    }
    free_node(root);
}

// Whether the node's page and all above it hold the prompt's tokens. On success `chain` is the path; otherwise it is the part
// of it above the first page that differs, if that is longer than what `chain` held.
bool PrefixCache::verify(int32_t node, const int32_t* tokens, std::vector<int32_t>& chain) const {
    const int32_t depth = nodes_[node].depth;
    std::vector<int32_t> path(static_cast<size_t>(depth));
    int32_t good = depth;
    for (int32_t at = node; nodes_[at].depth > 0; at = nodes_[at].parent) {
        const int32_t column = nodes_[at].depth - 1;
        path[static_cast<size_t>(column)] = at;
        if (std::memcmp(tokens_of(at), tokens + int64_t(column) * P(), sizeof(int32_t) * static_cast<size_t>(P())) != 0) good = column;
    }
    if (good == depth || good > static_cast<int32_t>(chain.size())) {
        path.resize(static_cast<size_t>(good));
        chain = std::move(path);
    }
    return good == depth;
}

PrefixCache::Match PrefixCache::match(int32_t root, const int32_t* tokens, int64_t count) const {
    Match match;
    if (root == kNone) return match;
    const int64_t pages = count / P();
    std::vector<uint64_t> hashes(static_cast<size_t>(pages + 1));
    hashes[0] = nodes_[root].hash;
    for (int64_t i = 0; i < pages; ++i) hashes[size_t(i) + 1] = hash_extend(hashes[size_t(i)], tokens + i * P(), P());

    // Without holes, "a page with this hash is stored" holds up to the match and not behind it, collisions apart. A collision may
    // pretend a deeper match; then the tokens disagree and the search goes on below it.
    int64_t low = 0, high = pages;
    while (low < high) {
        int64_t found = low, bound = high;
        while (found < bound) {
            const int64_t middle = (found + bound + 1) / 2;
            if (table_.find(cut(hashes[size_t(middle)])) != table_.end())
                found = middle;
            else
                bound = middle - 1;
        }
        if (found == low) break;
        bool verified = false;
        const auto [begin, end] = table_.equal_range(cut(hashes[size_t(found)]));
        for (auto it = begin; it != end && !verified; ++it)
            if (nodes_[it->second].root == root && nodes_[it->second].depth == found) verified = verify(it->second, tokens, match.chain);
        low = int64_t(match.chain.size());
        if (verified) {
            high = bound;
            break;
        }
        high = found - 1;
    }
    const auto depth = match.chain.size();
    match.has_next = int64_t(depth) < pages;
    if (match.has_next) match.next_hash = hashes[depth + 1];
    extend_match(match, root, tokens, count);
    return match;
}

void PrefixCache::extend_match(Match& match, int32_t root, const int32_t* tokens, int64_t count) const {
    const int32_t parent = match.chain.empty() ? root : match.chain.back();
    const Children* children = nodes_[parent].children.get();
    const int64_t begin = int64_t(match.chain.size()) * P();
    const int64_t rest = std::min<int64_t>(count - begin, P());
    if (children == nullptr || children->empty() || rest < 1) return;
    // In token order the longest common prefix is with a neighbour of the place where the prompt would stand.
    const auto after = children->lower_bound(Span{tokens + begin, rest});
    const auto consider = [&](int32_t child) {
        const int64_t common = common_prefix(tokens + begin, tokens_of(child), std::min<int64_t>(rest, nodes_[child].token_count));
        // Of two as good the one whose window can be used.
        if (common > match.extension_tokens || (common > 0 && common == match.extension_tokens && nodes_[match.extension].page[kLocalPool] == kNone)) {
            match.extension = child;
            match.extension_tokens = common;
        }
    };
    if (after != children->begin()) consider(*std::prev(after));
    if (after != children->end()) consider(*after);
}

Lookup PrefixCache::describe(const Match& stored, const Match& usable, int64_t count) const {
    Lookup lookup;
    lookup.matched_tokens = int64_t(usable.chain.size()) * P() + usable.extension_tokens;
    lookup.stored_tokens = int64_t(stored.chain.size()) * P() + stored.extension_tokens;
    if (lookup.stored_tokens < count) {
        if (stored.extension != kNone)
            lookup.diverges = stored.extension_tokens < nodes_[stored.extension].token_count;
        else if (!stored.chain.empty())
            lookup.diverges = nodes_[stored.chain.back()].children && !nodes_[stored.chain.back()].children->empty();
        lookup.evicted = stored.has_next && ghost_set_.count(stored.next_hash) > 0;
    }
    return lookup;
}

int32_t PrefixCache::new_node(int32_t parent) {
    int32_t id;
    if (free_nodes_.empty()) {
        id = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        tokens_.resize(nodes_.size() * size_t(P()));
    } else {
        id = free_nodes_.back();
        free_nodes_.pop_back();
        nodes_[id] = Node{};
    }
    Node& node = nodes_[id];
    node.in_use = true;
    node.parent = parent;
    if (parent != kNone) {
        node.root = nodes_[parent].root;
        node.depth = nodes_[parent].depth + 1;
    }
    return id;
}

void PrefixCache::free_node(int32_t node) {
    nodes_[node] = Node{};
    free_nodes_.push_back(node);
}

void PrefixCache::attach(int32_t id) {
    Node& node = nodes_[id];
    Node& parent = nodes_[node.parent];
    leave_eviction_order(node.parent);
    if (full(node)) node.hash = hash_extend(parent.hash, tokens_of(id), P());
    if (node.hidden) {
        ++parent.hidden_children;
    } else {
        if (!parent.children) parent.children = std::make_unique<Children>(TokenOrder{this});
        parent.children->insert(id);
        if (full(node)) table_.emplace(cut(node.hash), id);
    }
    stored_tokens_ += node.token_count;
    enter_eviction_order(id);
}

void PrefixCache::detach(int32_t id) {
    Node& node = nodes_[id];
    leave_eviction_order(id);
    Node& parent = nodes_[node.parent];
    stored_tokens_ -= node.token_count;
    if (node.hidden) {
        --parent.hidden_children;
        enter_eviction_order(node.parent);
        return;
    }
    parent.children->erase(id);
    if (full(node)) {
        const auto [begin, end] = table_.equal_range(cut(node.hash));
        for (auto it = begin; it != end; ++it)
            if (it->second == id) {
                table_.erase(it);
                break;
            }
    }
    if (parent.children->empty()) {
        parent.children.reset();
        enter_eviction_order(node.parent);
    }
}

// Takes an unlocked leaf out of the tree; its pages become free.
void PrefixCache::remove_leaf(int32_t id, bool evicted) {
    Node& node = nodes_[id];
    const int32_t parent = node.parent;
    drop_checkpoints_of(id);
    end_lease(id);
    if (evicted) {
        remember_evicted(id);
        ++evicted_pages_[kGlobalPool];
        if (node.has_tails) move_tails(id, parent);
    }
    // Whoever used the child used its prefix too.
    raise_score(parent, node.score_s);
    detach(id);
    for (const PoolKind kind : {kGlobalPool, kLocalPool})
        if (node.page[kind] != kNone) {
            --stored_pages_[kind];
            give_page(kind, node.page[kind]);
        }
    free_node(id);
}

void PrefixCache::pin(int32_t id) {
    while (id != kNone && nodes_[id].locks++ == 0) {
        if (nodes_[id].parent != kNone) ++locked_nodes_;
        leave_eviction_order(id);
        id = nodes_[id].parent;
    }
}

void PrefixCache::unpin(int32_t id, double score_s) {
    while (id != kNone && --nodes_[id].locks == 0) {
        if (nodes_[id].parent != kNone) --locked_nodes_;
        raise_score(id, score_s);
        enter_eviction_order(id);
        id = nodes_[id].parent;
    }
}

void PrefixCache::enter_eviction_order(int32_t id) {
    const Node& node = nodes_[id];
    if (node.parent == kNone || node.locks > 0 || node.children || node.hidden_children > 0) return;
    eviction_order_.emplace(node.score_s, id);
}

void PrefixCache::leave_eviction_order(int32_t id) { eviction_order_.erase({nodes_[id].score_s, id}); }

void PrefixCache::raise_score(int32_t id, double score_s) {
    Node& node = nodes_[id];
    if (score_s <= node.score_s) return;
    const bool listed = eviction_order_.erase({node.score_s, id}) > 0;
    node.score_s = score_s;
    if (listed) eviction_order_.emplace(score_s, id);
}

int32_t PrefixCache::take_page(PoolKind kind) {
    std::vector<int32_t>& free = free_pages_[kind];
    while (free.empty())
        if (!(kind == kGlobalPool ? evict_leaf() : evict_window())) return kNone;
    const int32_t page = free.back();
    free.pop_back();
    return page;
}

void PrefixCache::give_page(PoolKind kind, int32_t page) { free_pages_[kind].push_back(page); }

bool PrefixCache::evict_leaf() {
    if (eviction_order_.empty()) return false;
    const int32_t victim = std::get<1>(*eviction_order_.begin());
    const int32_t root = nodes_[victim].root;
    remove_leaf(victim, true);
    drop_root_if_empty(root);
    return true;
}

}  // namespace duologue
