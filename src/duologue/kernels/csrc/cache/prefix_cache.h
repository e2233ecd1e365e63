// The inter-turn cache: a tree of KV pages indexed by a rolling hash of prefix tokens, and the running sequences that use them.
//
// Pages are ids only; the KV lies elsewhere (or nowhere, in simulations). The design is in docs/cache.md.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace duologue {

enum PoolKind { kGlobalPool = 0, kLocalPool = 1, kPoolKinds = 2 };

// Why a window of local KV is kept; one may be kept for several reasons. Windows kept for a turn alone give way to those of the
// branch's next turn, the others do not.
enum CheckpointKind : uint8_t { kTurn = 1, kShared = 2, kSparse = 4 };

struct PrefixCacheConfig {
    int32_t page_tokens = 64;
    int32_t global_pages = 0;
    int32_t local_pages = 0;    // 0: the model has no window layers
    int32_t window_tokens = 0;  // the widest window, 0 without window layers
    int32_t hash_bits = 61;     // fewer only in tests, to force collisions
};

struct PageCopy {
    PoolKind kind;
    int32_t source;
    int32_t destination;
};

// How far a prompt is stored, and what is there where it is not.
struct Lookup {
    int64_t matched_tokens = 0;   // usable: KV of every layer kind is there
    int64_t stored_tokens = 0;    // the longest stored common prefix; more than `matched_tokens` where windows are gone
    bool diverges = false;        // a stored branch goes on differently behind `stored_tokens`
    bool evicted = false;         // the page behind `stored_tokens` was stored once
};

struct Opened {
    int32_t sequence = -1;
    int64_t cached_tokens = 0;
    Lookup lookup;
    std::vector<PageCopy> copies;  // to be done before the sequence's first step
};

struct Forgotten {
    int64_t pages = 0;
    int64_t tokens = 0;
};

struct PrefixCacheStats {
    int64_t total_pages[kPoolKinds] = {0, 0};
    int64_t free_pages[kPoolKinds] = {0, 0};
    int64_t stored_pages[kPoolKinds] = {0, 0};     // owned by the tree
    int64_t evictable_pages[kPoolKinds] = {0, 0};  // of these, those that no running sequence needs
    int64_t evicted_pages[kPoolKinds] = {0, 0};    // since the start
    int64_t checkpoints = 0;
    int64_t stored_tokens = 0;
    int64_t roots = 0;
    int64_t sequences = 0;
    int64_t index_bytes = 0;
};

// Every public function takes the lock: lookups and forgetting may come from any thread.
class PrefixCache {
public:
    explicit PrefixCache(const PrefixCacheConfig& config);
    PrefixCache(const PrefixCache&) = delete;
    PrefixCache& operator=(const PrefixCache&) = delete;

    // How much of tokens[0..count) is stored in the namespace. Changes nothing.
    Lookup lookup(const std::string& space, const int32_t* tokens, int64_t count) const;
    // Up to `limit` tokens of the stored branch that shares the longest prefix with tokens[0..count), from where they part.
    std::vector<int32_t> stored_branch(const std::string& space, const int32_t* tokens, int64_t count, int64_t limit) const;

    // Starts a sequence on the longest usable match of tokens[0..count), of which at most `limit` are taken from the cache.
    // `turns` are positions in the prompt behind which windows are worth keeping; `shared` are those that other dialogues
    // have in common (the end of a persona). `owner` names whose the sequence is: forgetting an owner reaches it. With `keep` false
    // it is forgotten from the start: nothing that it computes can be matched.
    Opened open(const std::string& space, const std::string& owner, const int32_t* tokens, int64_t count, int64_t limit, std::vector<int64_t> turns,
                std::vector<int64_t> shared, bool keep, double now_s);
    // Takes pages for positions up to `tokens`, evicting what is used least; false when there are not enough.
    bool reserve(int32_t sequence, int64_t tokens);
    // tokens[0..computed) have their KV in the sequence's pages: full pages enter the tree. With `seal` the partial page does too.
    void commit(int32_t sequence, const int32_t* tokens, int64_t computed, bool seal, double now_s);
    // Ends a sequence and keeps what it computed. `retention_s` is a head start against eviction, as far as `tenant` has one left:
    // no tenant's branches with a head start hold more than a quarter of the global pages. With `keep` false only what others stored
    // stays. False when the sequence had been forgotten: then nothing of it is kept either.
    bool close(int32_t sequence, const int32_t* tokens, int64_t computed, bool keep, const std::string& tenant, double retention_s, double now_s);
    // Page ids of a sequence by position / page_tokens; -1 where a local page is gone.
    void copy_table(int32_t sequence, PoolKind kind, int32_t* out, int64_t columns) const;
    int64_t page_count(int32_t sequence) const;

    // Pages that can be had: free ones and those that eviction would give.
    int64_t available(PoolKind kind) const;

    // Removes what was stored for `owner` and is not part of anything that another owner stored.
    // Stops after about `limit` pages: less came back when there is nothing left.
    Forgotten forget(const std::string& owner, int64_t limit);
    // Removes a whole namespace.
    Forgotten forget_space(const std::string& space, int64_t limit);

    PrefixCacheStats stats() const;
    // Throws std::logic_error naming the first contradiction. Costs a walk over everything.
    void check_integrity() const;

private:
    static constexpr int32_t kNone = -1;

    // Children in the order of their tokens.
    struct TokenOrder {
        using is_transparent = void;
        const PrefixCache* cache;
        bool operator()(int32_t a, int32_t b) const;
        bool operator()(int32_t a, std::pair<const int32_t*, int64_t> b) const;
        bool operator()(std::pair<const int32_t*, int64_t> a, int32_t b) const;
    };
    using Children = std::set<int32_t, TokenOrder>;

    using LeaseKey = std::pair<double, int64_t>;  // until when, and a number

    struct Node {
        uint64_t hash = 0;  // of the prefix that ends with this page; meaningful for full pages and roots
        int32_t parent = kNone;
        int32_t root = kNone;
        int32_t page[kPoolKinds] = {kNone, kNone};
        int32_t depth = 0;         // pages from the root, this one included; 0 for a root
        int32_t token_count = 0;   // page_tokens for a full page
        int32_t locks = 0;         // own pins, and children that are locked
        int32_t local_pins = 0;    // running sequences whose window holds the local page
        int32_t local_keeps = 0;   // checkpoints that hold it
        bool in_use = false;       // the node exists
        bool has_tails = false;
        bool has_checkpoints = false;
        bool hidden = false;       // only forgotten sequences stand on it: not to be matched, and not among its parent's children
        int32_t hidden_children = 0;
        LeaseKey lease{0, 0};      // its head start, if that has not run out
        double score_s = 0;        // the time of its last use, head start included
        std::unique_ptr<Children> children;
    };

    // An owner's branch ends in a page, behind so many of its tokens: what follows there is not the owner's.
    struct Tail {
        int32_t owner;
        int32_t token_count;
    };

    // Pages of a tenant with a head start that ends at the same time.
    struct Lease {
        std::string tenant;
        int64_t pages = 0;
    };

    // An evicted page. The owners are those that ended in it or below it; one that nobody owns or many do has owner 0.
    struct Ghost {
        uint64_t hash, space, owner;
    };

    struct Checkpoint {
        int32_t node = kNone;   // the page that holds the last position of the window
        int32_t pages = 0;      // of the window, upwards from `node`
        int64_t position = 0;   // the window ends behind it
        uint8_t kinds = 0;      // CheckpointKind
        double score_s = 0;
        bool in_use = false;

        // Sparse windows save the recomputing of a branch that may never come; they go before any that a turn needs.
        std::tuple<bool, double> order() const { return {kinds != kSparse, score_s}; }
    };

    struct Sequence {
        bool in_use = false;
        bool forget = false;        // its owner was forgotten while it ran
        int32_t open = kNone;       // partial page of the tree that it writes behind
        int32_t owner = kNone;
        int32_t root = kNone;
        int64_t local_begin = 0;    // first page whose local part it still holds
        int64_t noted = 0;          // boundaries up to here have their checkpoints
        std::vector<int32_t> chain; // full pages of the tree from the root down, by position / page_tokens
        std::vector<int32_t> table[kPoolKinds];
        std::vector<int64_t> turns;   // ascending; behind which a window is kept once they are computed
        std::vector<int64_t> shared;
    };

    struct Match {
        std::vector<int32_t> chain;      // full pages, from the root down (root excluded)
        int32_t extension = kNone;       // child of the last one that goes on in common
        int64_t extension_tokens = 0;
        uint64_t next_hash = 0;          // of the prefix that ends with the page behind the chain, if the prompt fills it
        bool has_next = false;
    };

    int32_t P() const { return config_.page_tokens; }
    bool hybrid() const { return config_.window_tokens > 0; }
    bool full(const Node& node) const { return node.token_count == config_.page_tokens; }
    const int32_t* tokens_of(int32_t node) const { return tokens_.data() + int64_t(node) * config_.page_tokens; }
    int32_t* tokens_of(int32_t node) { return tokens_.data() + int64_t(node) * config_.page_tokens; }
    uint64_t cut(uint64_t hash) const { return hash & hash_mask_; }

    // tree.cpp: nodes, matching, pins, pages, eviction
    int32_t find_root(const std::string& space) const;
    int32_t take_root(const std::string& space);
    void drop_root_if_empty(int32_t root);
    Match match(int32_t root, const int32_t* tokens, int64_t count) const;
    bool verify(int32_t node, const int32_t* tokens, std::vector<int32_t>& chain) const;
    void extend_match(Match& match, int32_t root, const int32_t* tokens, int64_t count) const;
    Lookup describe(const Match& stored, const Match& usable, int64_t count) const;
    int32_t new_node(int32_t parent);
    void free_node(int32_t node);
    void attach(int32_t node);
    void detach(int32_t node);
    void remove_leaf(int32_t node, bool evicted);
    void pin(int32_t node);
    void unpin(int32_t node, double score_s);
    void enter_eviction_order(int32_t node);
    void leave_eviction_order(int32_t node);
    void raise_score(int32_t node, double score_s);
    int32_t take_page(PoolKind kind);
    void give_page(PoolKind kind, int32_t page);
    bool evict_leaf();

    // sequences.cpp: what running sequences hold and what they leave behind
    Sequence& sequence_at(int32_t sequence);
    const Sequence& sequence_at(int32_t sequence) const;
    int32_t pinned_node(const Sequence& sequence) const;
    void hold_match(Sequence& sequence, Match& match, Opened& opened, double now_s);
    void store_page(Sequence& sequence, const int32_t* tokens, int32_t count, double now_s);
    int32_t node_beginning_with(int32_t parent, const int32_t* tokens, int64_t count) const;
    void merge_into(Sequence& sequence, int32_t target, int64_t column);
    void absorb_shorter_sibling(int32_t node);
    void commit_locked(Sequence& sequence, const int32_t* tokens, int64_t computed, bool seal, double now_s);

    // windows.cpp: local pages and the checkpoints that keep them
    void keep_usable(Match& match) const;
    void pin_local(int32_t node);
    void unpin_local(int32_t node);
    void free_local_if_unused(int32_t node);
    void trim_window(Sequence& sequence, int64_t computed);
    void note_boundaries(Sequence& sequence, int32_t node, int64_t end, double now_s);
    void add_checkpoint(int32_t node, int64_t position, uint8_t kinds, double score_s);
    void reorder_checkpoint(int32_t id, uint8_t kinds, double score_s);
    void drop_checkpoint(int32_t id);
    void drop_checkpoints_of(int32_t node);
    void move_checkpoints(int32_t from, int32_t to);
    void touch_checkpoints(const Match& match, double now_s);
    void drop_older_turns(const Sequence& sequence);
    bool evict_window();

    // owners.cpp: whose branches are whose
    int32_t take_owner(const std::string& owner);
    void drop_owner_if_unused(int32_t owner);
    void add_tail(int32_t owner, int32_t node, int32_t token_count);
    void drop_tail(int32_t owner, int32_t node);
    void move_tails(int32_t from, int32_t to);
    void prune(int32_t node, Forgotten& forgotten);
    int32_t unlocked_leaf(int32_t node) const;
    void cut_to_tails(int32_t node, Forgotten& forgotten);
    void hide(Sequence& sequence);
    bool only_forgotten_reach(int32_t node) const;

    // memory.cpp: what was evicted, and what is not to be evicted yet
    void remember_evicted(int32_t node);
    void drop_ghosts(uint64_t Ghost::*field, uint64_t value);
    double lease(const Sequence& sequence, const std::string& tenant, double retention_s, double now_s);
    void expire_leases(double now_s);
    void end_lease(int32_t node);
    static uint64_t hash_of_owner(const std::string& owner);

    const PrefixCacheConfig config_;
    const uint64_t hash_mask_;
    mutable std::mutex mutex_;

    std::vector<Node> nodes_;
    std::vector<int32_t> tokens_;  // [nodes, page_tokens]
    std::vector<int32_t> free_nodes_;
    std::unordered_map<std::string, int32_t> roots_;
    std::unordered_map<int32_t, std::string> root_names_;
    std::unordered_map<std::string, std::vector<int32_t>> condemned_;  // roots without a name whose pages are still to go
    std::unordered_multimap<uint64_t, int32_t> table_;         // full pages by hash
    std::set<std::tuple<double, int32_t>> eviction_order_;     // unlocked leaves

    std::vector<int32_t> free_pages_[kPoolKinds];
    int64_t stored_pages_[kPoolKinds] = {0, 0};
    int64_t evicted_pages_[kPoolKinds] = {0, 0};
    int64_t locked_nodes_ = 0;        // roots not counted
    int64_t pinned_local_pages_ = 0;  // of stored ones
    int64_t stored_tokens_ = 0;

    std::vector<Sequence> sequences_;
    std::vector<int32_t> free_sequences_;
    int64_t running_ = 0;

    std::vector<Checkpoint> checkpoints_;
    std::vector<int32_t> free_checkpoints_;
    std::unordered_multimap<int32_t, int32_t> checkpoints_of_node_;
    std::set<std::pair<std::tuple<bool, double>, int32_t>> checkpoint_order_;

    std::unordered_map<std::string, int32_t> owner_ids_;
    std::vector<std::string> owner_names_;
    std::vector<std::unordered_set<int32_t>> owner_tails_;   // nodes by owner
    std::vector<int32_t> owner_sequences_;                   // running sequences by owner
    std::vector<int32_t> free_owners_;
    std::unordered_map<int32_t, std::vector<Tail>> tails_;     // by node

    // Hashes of evicted pages, oldest first: a miss there was an eviction, not something new.
    std::deque<Ghost> ghosts_;
    std::unordered_multiset<uint64_t> ghost_set_;
    size_t ghost_limit_ = 0;

    std::map<LeaseKey, Lease> leases_;
    std::unordered_map<std::string, int64_t> leased_pages_;  // by tenant
    int64_t last_lease_ = 0;
};

}  // namespace duologue
