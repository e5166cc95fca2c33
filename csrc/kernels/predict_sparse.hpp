// The adaptive coder of docs/format.md, section 8: for runs of codes that are short or
// nearly all zero. Its time goes with the codes that are not zero, and what it learns it
// learns on the way, so a run of a few hundred codes pays for no table.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA::predict {

// The probability that a bit is 1, out of 65536: moves fast at first, then slower.
struct Chance {
    uint16_t one = 32768;
    uint16_t seen = 0;

    void learn(int bit) {
        int32_t target = bit ? 65535 : 0;
        int32_t moved = one + ((target - one) * (65536 / (2 * seen + 3)) >> 15);
        one = static_cast<uint16_t>(moved < 32 ? 32 : moved > 65503 ? 65503 : moved);
        if (seen < 60) ++seen;
    }
};

// Chances of a positive integer v, by its number of bits and the two bits below its top.
struct IntegerModel {
    Chance more[33];
    Chance second[33];
    Chance third[33][2];
};

struct CodeModel {
    IntegerModel gap, size;
    Chance negative[3];
};

class BitWriter {
  public:
    explicit BitWriter(std::vector<uint8_t>& to) : to_(to) {}

    void put(int bit, uint32_t one) {
        uint32_t middle =
            low_ + static_cast<uint32_t>(static_cast<uint64_t>(high_ - low_) * one >> 16);
        if (bit)
            high_ = middle;
        else
            low_ = middle + 1;
        while ((low_ ^ high_) < 1u << 24) {
            to_.push_back(static_cast<uint8_t>(high_ >> 24));
            low_ <<= 8;
            high_ = high_ << 8 | 255;
        }
    }
    void put(int bit, Chance& chance) {
        put(bit, chance.one);
        chance.learn(bit);
    }
    // The fewest bytes that name the interval; what follows them reads as zeros.
    void finish() {
        for (int kept = 1; low_ != 0 && kept <= 4; ++kept) {
            uint32_t unit = kept == 4 ? 0 : (1u << (32 - 8 * kept)) - 1;
            uint64_t point =
                (static_cast<uint64_t>(low_) + unit) & ~static_cast<uint64_t>(unit);
            if (point > high_) continue;
            for (int i = 0; i < kept; ++i)
                to_.push_back(static_cast<uint8_t>(point >> (24 - 8 * i)));
            return;
        }
    }

  private:
    std::vector<uint8_t>& to_;
    uint32_t low_ = 0, high_ = 0xFFFFFFFFu;
};

class BitReader {
  public:
    BitReader(const uint8_t* from, const uint8_t* end) : at_(from), end_(end) {
        for (int i = 0; i < 4; ++i) value_ = value_ << 8 | byte();
    }
    int get(uint32_t one) {
        uint32_t middle =
            low_ + static_cast<uint32_t>(static_cast<uint64_t>(high_ - low_) * one >> 16);
        int bit = value_ <= middle;
        if (bit)
            high_ = middle;
        else
            low_ = middle + 1;
        while ((low_ ^ high_) < 1u << 24) {
            low_ <<= 8;
            high_ = high_ << 8 | 255;
            value_ = value_ << 8 | byte();
        }
        return bit;
    }
    int get(Chance& chance) {
        int bit = get(chance.one);
        chance.learn(bit);
        return bit;
    }

  private:
    uint32_t byte() { return at_ < end_ ? *at_++ : 0; }

    const uint8_t* at_;
    const uint8_t* end_;
    uint32_t low_ = 0, high_ = 0xFFFFFFFFu, value_ = 0;
};

// v in 1 .. 2^33 - 1.
inline void put_integer(BitWriter& to, IntegerModel& model, uint64_t v) {
    int bits = 64 - __builtin_clzll(v);
    for (int i = 1; i < bits; ++i) to.put(1, model.more[i - 1]);
    if (bits < 33) to.put(0, model.more[bits - 1]);
    if (bits < 2) return;
    int second = static_cast<int>(v >> (bits - 2) & 1);
    to.put(second, model.second[bits - 1]);
    if (bits < 3) return;
    to.put(static_cast<int>(v >> (bits - 3) & 1), model.third[bits - 1][second]);
    for (int i = bits - 4; i >= 0; --i) to.put(static_cast<int>(v >> i & 1), 32768u);
}

inline uint64_t get_integer(BitReader& from, IntegerModel& model) {
    int bits = 1;
    while (bits < 33 && from.get(model.more[bits - 1])) ++bits;
    uint64_t v = 1;
    if (bits < 2) return v;
    int second = from.get(model.second[bits - 1]);
    v = v << 1 | static_cast<uint64_t>(second);
    if (bits < 3) return v;
    v = v << 1 | static_cast<uint64_t>(from.get(model.third[bits - 1][second]));
    for (int i = bits - 4; i >= 0; --i) v = v << 1 | static_cast<uint64_t>(from.get(32768u));
    return v;
}

// The first position from `at` on whose code is not zero, or `count`.
inline int64_t next_nonzero(const int32_t* codes, int64_t at, int64_t count) {
    for (; at + 16 <= count; at += 16) {
        int32_t any = 0;
        for (int i = 0; i < 16; ++i) any |= codes[at + i];
        if (any) break;
    }
    while (at < count && codes[at] == 0) ++at;
    return at;
}

// Codes of magnitude below 2^31, gaps below 2^32.
inline void sparse_encode(const int32_t* codes, int64_t count, std::vector<uint8_t>& to) {
    CodeModel model;
    BitWriter bits(to);
    int before = 0;
    for (int64_t at = 0;;) {
        int64_t next = next_nonzero(codes, at, count);
        if (next == count) break;
        put_integer(bits, model.gap, static_cast<uint64_t>(next - at + 1));
        int64_t code = codes[next];
        bits.put(code < 0, model.negative[before]);
        before = code < 0 ? 2 : 1;
        put_integer(bits, model.size, static_cast<uint64_t>(code < 0 ? -code : code));
        at = next + 1;
    }
    bits.finish();
}

// `nonzero` codes into `codes`, the others 0; false if they do not fit.
inline bool sparse_decode(const uint8_t* from, const uint8_t* end, int64_t nonzero,
                          int32_t* codes, int64_t count) {
    std::memset(codes, 0, sizeof(int32_t) * static_cast<size_t>(count));
    CodeModel model;
    BitReader bits(from, end);
    int before = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < nonzero; ++i) {
        at += static_cast<int64_t>(get_integer(bits, model.gap)) - 1;
        if (at >= count) return false;
        int negative = bits.get(model.negative[before]);
        before = negative ? 2 : 1;
        uint64_t size = get_integer(bits, model.size);
        if (size > 0x7FFFFFFFu) return false;
        codes[at++] = negative ? -static_cast<int32_t>(size) : static_cast<int32_t>(size);
    }
    return true;
}

}  // namespace encke::ENCKE_ISA::predict
