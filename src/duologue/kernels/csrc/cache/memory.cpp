// What the cache remembers beside what it holds: pages that were evicted, and pages that are not to be evicted yet.
#include <algorithm>
#include <functional>

#include "cache/prefix_cache.h"

namespace duologue {

namespace {

// A page that more owners than these reach belongs to none of them: it would be remembered for each.
constexpr size_t kOwnersOfGhost = 8;
constexpr int32_t kLeasedShare = 4;

}  // namespace

// Never 0, which stands for nobody. A collision costs no more than a miss that is called new.
uint64_t PrefixCache::hash_of_owner(const std::string& owner) { return std::hash<std::string>()(owner) | 1; }

void PrefixCache::remember_evicted(int32_t id) {
    const Node& node = nodes_[id];
    if (!full(node) || root_names_.count(node.root) == 0) return;
    const uint64_t space = nodes_[node.root].hash;
    const auto remember = [&](uint64_t owner) {
        ghosts_.push_back({node.hash, space, owner});
        ghost_set_.insert(node.hash);
        if (ghosts_.size() <= ghost_limit_) return;
        ghost_set_.erase(ghost_set_.find(ghosts_.front().hash));
        ghosts_.pop_front();
    };
    if (node.has_tails && tails_[id].size() <= kOwnersOfGhost)
        for (const Tail& tail : tails_[id]) remember(hash_of_owner(owner_names_[size_t(tail.owner)]));
    else
        remember(0);
}

void PrefixCache::drop_ghosts(uint64_t Ghost::*field, uint64_t value) {
    const auto gone = [&](const Ghost& ghost) {
        if (ghost.*field != value) return false;
        ghost_set_.erase(ghost_set_.find(ghost.hash));
        return true;
    };
    ghosts_.erase(std::remove_if(ghosts_.begin(), ghosts_.end(), gone), ghosts_.end());
}

// The head start that a sequence's pages get: all of what was asked for, or none when the tenant has too many pages with one.
double PrefixCache::lease(const Sequence& sequence, const std::string& tenant, double retention_s, double now_s) {
    expire_leases(now_s);
    if (!(retention_s > 0)) return 0;
    std::vector<int32_t> pages = sequence.chain;
    if (sequence.open != kNone) pages.push_back(sequence.open);
    const auto fresh = std::count_if(pages.begin(), pages.end(), [&](int32_t id) { return leases_.count(nodes_[id].lease) == 0; });
    const auto known = leased_pages_.find(tenant);
    const int64_t held = known == leased_pages_.end() ? 0 : known->second;
    if (held + fresh > std::max(1, config_.global_pages / kLeasedShare)) return 0;
    const LeaseKey key{now_s + retention_s, ++last_lease_};
    for (const int32_t id : pages) {
        if (nodes_[id].lease > key && leases_.count(nodes_[id].lease) > 0) continue;  // a longer one
        end_lease(id);
        nodes_[id].lease = key;
        Lease& lease = leases_[key];
        lease.tenant = tenant;
        ++lease.pages;
        ++leased_pages_[tenant];
    }
    return retention_s;
}

void PrefixCache::expire_leases(double now_s) {
    while (!leases_.empty() && leases_.begin()->first.first <= now_s) {
        const Lease& lease = leases_.begin()->second;
        const auto held = leased_pages_.find(lease.tenant);
        held->second -= lease.pages;
        if (held->second == 0) leased_pages_.erase(held);
        leases_.erase(leases_.begin());
    }
}

void PrefixCache::end_lease(int32_t id) {
    const auto lease = leases_.find(nodes_[id].lease);
    nodes_[id].lease = {0, 0};
    if (lease == leases_.end()) return;
    const auto held = leased_pages_.find(lease->second.tenant);
    if (--held->second == 0) leased_pages_.erase(held);
    if (--lease->second.pages == 0) leases_.erase(lease);
}

}  // namespace duologue
