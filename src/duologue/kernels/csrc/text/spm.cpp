#include "text/spm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <queue>
#include <stdexcept>

namespace duologue {
namespace {

uint64_t hash_of(const char* text, int64_t size) {
    uint64_t hash = 0x9E3779B97F4A7C15ull ^ static_cast<uint64_t>(size);
    for (; size > 0; text += 8, size -= 8) {
        uint64_t word = 0;
        std::memcpy(&word, text, static_cast<size_t>(std::min<int64_t>(size, 8)));
        hash = (hash ^ word) * 0xD6E8FEB86659FD93ull;
        hash ^= hash >> 32;
    }
    return hash * 0xD6E8FEB86659FD93ull;
}

int64_t character_bytes(char first) {
    constexpr int8_t kBytes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    return kBytes[static_cast<uint8_t>(first) >> 4];
}

// A stretch of the text; of size 0 once it is joined to the one before it.
struct Symbol {
    int32_t previous, next;  // negative: none
    int32_t begin, size;
    int32_t id;  // of the token that it was joined to; negative: a single character, not looked up yet
};

// Two neighbours that make the token `id`.
struct Pair {
    float score;
    int32_t left, right;
    int32_t id;
    bool operator<(const Pair& other) const { return score < other.score || (score == other.score && left > other.left); }
};

}  // namespace

SpmVocabulary::SpmVocabulary(std::string text, const int64_t* ends, const float* scores, int64_t count, const int32_t* hidden,
                             int64_t hidden_count, const int32_t* byte_ids)
    : text_(std::move(text)), ends_(ends, ends + count), scores_(scores, scores + count) {
    if (count >= std::numeric_limits<int32_t>::max()) throw std::invalid_argument("too many tokens");
    std::vector<bool> is_hidden(size_t(count), false);
    for (int64_t i = 0; i < hidden_count; ++i) {
        if (hidden[i] < 0 || hidden[i] >= count) throw std::invalid_argument("a hidden id is no token");
        is_hidden[size_t(hidden[i])] = true;
    }
    for (int i = 0; i < 256; ++i) {
        if (byte_ids[i] >= count) throw std::invalid_argument("a byte's id is no token");
        byte_ids_[i] = byte_ids[i];
    }
    size_t capacity = 16;
    while (capacity < 2 * size_t(count)) capacity *= 2;
    slots_.resize(capacity);
    int64_t before = 0;
    for (int32_t id = 0; id < count; ++id) {
        const int64_t end = ends_[size_t(id)], size = end - before;
        if (size < 0 || end > int64_t(text_.size())) throw std::invalid_argument("token ends must ascend within the text");
        if (std::isnan(scores_[size_t(id)])) throw std::invalid_argument("a score is not a number");
        const char* begin = text_.data() + before;
        before = end;
        if (!size || is_hidden[size_t(id)]) continue;
        longest_ = std::max(longest_, size);
        const uint64_t hash = hash_of(begin, size);
        size_t at = hash & (capacity - 1);
        while (slots_[at].id >= 0) at = (at + 1) & (capacity - 1);
        slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
    }
}

int32_t SpmVocabulary::find(const char* text, int64_t size) const {
    const uint64_t hash = hash_of(text, size);
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (size_t at = hash & (slots_.size() - 1); slots_[at].id >= 0; at = (at + 1) & (slots_.size() - 1)) {
        const int32_t id = slots_[at].id;
        if (slots_[at].tag == tag && size_of(id) == size && std::memcmp(text_.data() + begin_of(id), text, size_t(size)) == 0) return id;
    }
    return -1;
}

void SpmVocabulary::encode(const char* text, int64_t size, std::vector<int32_t>& ids) const {
    if (size > std::numeric_limits<int32_t>::max()) throw std::length_error("the text is longer than 2 GiB");
    std::vector<Symbol> symbols;
    symbols.reserve(size_t(size));
    for (int64_t at = 0; at < size;) {
        const int64_t bytes = std::min(character_bytes(text[at]), size - at);
        const auto i = int32_t(symbols.size());
        symbols.push_back({i - 1, at + bytes < size ? i + 1 : -1, int32_t(at), int32_t(bytes), -1});
        at += bytes;
    }

    std::vector<Pair> storage;
    storage.reserve(symbols.size());
    std::priority_queue<Pair> pairs(std::less<Pair>(), std::move(storage));
    const auto consider = [&](int32_t left, int32_t right) {
        if (left < 0 || right < 0) return;
        const int64_t bytes = int64_t(symbols[size_t(left)].size) + symbols[size_t(right)].size;
        if (bytes > longest_) return;
        const int32_t id = find(text + symbols[size_t(left)].begin, bytes);
        if (id >= 0) pairs.push({scores_[size_t(id)], left, right, id});
    };
    for (int32_t i = 1; i < int32_t(symbols.size()); ++i) consider(i - 1, i);
    while (!pairs.empty()) {
        const Pair best = pairs.top();
        pairs.pop();
        Symbol& left = symbols[size_t(best.left)];
        Symbol& right = symbols[size_t(best.right)];
        // One of them may have been joined to another since.
        if (!left.size || !right.size || left.size + right.size != size_of(best.id)) continue;
        left.size += right.size;
        left.id = best.id;
        left.next = right.next;
        right.size = 0;
        if (left.next >= 0) symbols[size_t(left.next)].previous = best.left;
        consider(left.previous, best.left);
        consider(best.left, left.next);
    }

    for (int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[size_t(i)].next) {
        const Symbol& symbol = symbols[size_t(i)];
        const char* begin = text + symbol.begin;
        const int32_t id = symbol.id >= 0 ? symbol.id : find(begin, symbol.size);
        if (id >= 0) {
            ids.push_back(id);
            continue;
        }
        for (int32_t j = 0; j < symbol.size; ++j) {
            const int32_t byte_id = byte_ids_[static_cast<uint8_t>(begin[j])];
            if (byte_id >= 0) ids.push_back(byte_id);
        }
    }
}

}  // namespace duologue
