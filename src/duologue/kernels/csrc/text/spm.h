// SentencePiece-style tokenization: of all neighbours that make a token, those of the best score are joined first, the leftmost
// of equals; what is left is a token or falls back to its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace duologue {

class SpmVocabulary {
public:
    // Token i is text[ends[i - 1], ends[i]) with `scores[i]`, of equal ones the first counts; `hidden` ids are never found in text.
    // `byte_ids` [256] has the token of each byte, negative: none. Throws std::invalid_argument when the ends do not ascend within the text or a score is NaN.
    SpmVocabulary(std::string text, const int64_t* ends, const float* scores, int64_t count, const int32_t* hidden, int64_t hidden_count,
                  const int32_t* byte_ids);

    // Appends the tokens of UTF-8 text, white space already escaped. Safe from several threads. Throws std::length_error past 2 GiB.
    void encode(const char* text, int64_t size, std::vector<int32_t>& ids) const;

private:
    struct Slot {
        uint32_t tag = 0;
        int32_t id = -1;
    };

    int32_t find(const char* text, int64_t size) const;  // negative: none
    int64_t begin_of(int32_t id) const { return id ? ends_[size_t(id) - 1] : 0; }
    int64_t size_of(int32_t id) const { return ends_[size_t(id)] - begin_of(id); }

    std::string text_;
    std::vector<int64_t> ends_;
    std::vector<float> scores_;
    std::vector<Slot> slots_;  // a power of two of them, at most half in use
    int64_t longest_ = 0;
    int32_t byte_ids_[256];
};

}  // namespace duologue
