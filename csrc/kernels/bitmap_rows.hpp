// Truth values of planes and rows as bits, and what lies around a bit (docs/format.md, section
// 14). Every row has a word of zeros on either side, so that no neighbour needs a test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

class BitImage {
  public:
    BitImage(int64_t planes, int64_t rows, int64_t columns)
        : rows_(rows),
          columns_(columns),
          words_((columns + 63) / 64),
          bits_(static_cast<size_t>((planes * rows) * pitch() + 2)),
          nothing_(static_cast<size_t>(pitch() + 1)) {}

    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int64_t words() const { return words_; }
    // The words of a row; a row outside its plane is empty.
    uint64_t* row(int64_t plane, int64_t row) {
        if (row < 0 || row >= rows_) return nothing_.data() + 1;
        return bits_.data() + 1 + (plane * rows_ + row) * pitch();
    }
    bool same(int64_t plane, int64_t other) {
        const uint64_t *a = row(plane, 0), *b = row(other, 0);
        return std::equal(a, a + rows_ * pitch(), b);
    }
    int64_t difference(int64_t plane, int64_t other) {
        const uint64_t *a = row(plane, 0), *b = row(other, 0);
        int64_t sum = 0;
        for (int64_t k = 0; k < rows_ * pitch(); ++k) sum += __builtin_popcountll(a[k] ^ b[k]);
        return sum;
    }

  private:
    int64_t pitch() const { return words_ + 1; }

    int64_t rows_, columns_, words_;
    std::vector<uint64_t> bits_, nothing_;
};

inline int bit_at(const uint64_t* row, int64_t x) {
    return static_cast<int>(row[x >> 6] >> (x & 63) & 1);
}

// The five bits x - 2 .. x + 2, the first lowest.
inline unsigned five_around(const uint64_t* row, int64_t x) {
    int64_t first = x - 2, k = first >> 6;
    int shift = static_cast<int>(first & 63);
    uint64_t low = row[k] >> shift;
    uint64_t high = shift > 59 ? row[k + 1] << (64 - shift) : 0;
    return static_cast<unsigned>((low | high) & 31);
}

// Word k of a row whose bits are moved so that bit x is the row's bit x + by.
template <int by>
inline uint64_t moved(const uint64_t* row, int64_t k) {
    if constexpr (by > 0)
        return row[k] >> by | row[k + 1] << (64 - by);
    else if constexpr (by < 0)
        return row[k] << -by | row[k - 1] >> (64 + by);
    else
        return row[k];
}

inline void set_bits(uint64_t* row, int64_t first, int64_t last) {
    for (int64_t x = first; x < last;) {
        int64_t stop = std::min(last, (x | 63) + 1);
        uint64_t ones = stop - x == 64 ? ~uint64_t{0} : (uint64_t{1} << (stop - x)) - 1;
        row[x >> 6] |= ones << (x & 63);
        x = stop;
    }
}

// The first x in first .. last - 1 whose bit is `wanted`, or last.
inline int64_t next_bit(const uint64_t* row, int64_t first, int64_t last, int wanted) {
    const uint64_t flip = wanted ? 0 : ~uint64_t{0};
    while (first < last) {
        uint64_t here = (row[first >> 6] ^ flip) >> (first & 63);
        if (here) return std::min(last, first + __builtin_ctzll(here));
        first = (first | 63) + 1;
    }
    return last;
}

inline void pack_row(const uint8_t* from, int64_t columns, uint64_t* row) {
    int64_t x = 0;
    for (; x + 8 <= columns; x += 8) {
        uint64_t eight = read<uint64_t>(from + x) & 0x0101010101010101u;
        row[x >> 6] |= (eight * 0x0102040810204080u >> 56) << (x & 63);
    }
    for (; x < columns; ++x) row[x >> 6] |= uint64_t{from[x] & 1u} << (x & 63);
}

inline void unpack_row(const uint64_t* row, int64_t columns, uint8_t* to) {
    int64_t x = 0;
    for (; x + 8 <= columns; x += 8) {
        uint64_t byte = row[x >> 6] >> (x & 63) & 255;
        uint64_t own = (byte * 0x0101010101010101u) & 0x8040201008040201u;
        write<uint64_t>(to + x, (own + 0x7F7F7F7F7F7F7F7Fu) >> 7 & 0x0101010101010101u);
    }
    for (; x < columns; ++x) to[x] = static_cast<uint8_t>(bit_at(row, x));
}

}  // namespace encke::ENCKE_ISA
