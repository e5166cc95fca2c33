// One bit for each page of a mapping: whether the page may be in memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace encke::memory {

// Pages are numbered from the start of the mapping. The words lie in memory that the owner
// supplies, zero at first.
class PageBits {
  public:
    void use(uint64_t* words) { words_ = words; }

    size_t count(size_t first, size_t pages) const {
        size_t found = 0;
        each_word(first, pages, [&](uint64_t& word, uint64_t mask) {
            found += static_cast<size_t>(std::popcount(word & mask));
        });
        return found;
    }

    void set(size_t first, size_t pages) {
        each_word(first, pages, [](uint64_t& word, uint64_t mask) { word |= mask; });
    }

    void clear(size_t first, size_t pages) {
        each_word(first, pages, [](uint64_t& word, uint64_t mask) { word &= ~mask; });
    }

    // The end of the last run of set bits in [first, end), and its beginning, which is at
    // most `longest` pages before. Equal where no bit is set.
    struct Run {
        size_t first, end;
    };
    Run last_run(size_t first, size_t end, size_t longest) const {
        const size_t stop = last(first, end, 0);
        const size_t least = stop - std::min(stop - first, longest);
        return {last(least, stop, ~uint64_t{0}), stop};
    }

  private:
    // One past the last page in [first, end) whose bit differs from `same`; `first` if none.
    size_t last(size_t first, size_t end, uint64_t same) const {
        while (end > first) {
            const size_t in_word = (end - 1) % 64 + 1;
            uint64_t word = words_[(end - 1) / 64] ^ same;
            if (in_word < 64) word &= (uint64_t{1} << in_word) - 1;
            const size_t start = end - in_word;
            if (word != 0) return std::max(first, start + std::bit_width(word));
            end = start;
        }
        return first;
    }

    template <class Do>
    void each_word(size_t first, size_t pages, Do&& act) const {
        for (const size_t end = first + pages; first < end;) {
            const size_t bit = first % 64, bits = std::min(64 - bit, end - first);
            const uint64_t ones = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
            act(words_[first / 64], ones << bit);
            first += bits;
        }
    }

    uint64_t* words_ = nullptr;
};

}  // namespace encke::memory
