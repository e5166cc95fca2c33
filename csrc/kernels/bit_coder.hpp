// The adaptive coder of bits (docs/format.md, section 8): chances that are learned on the
// way, and an interval that each bit narrows.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

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

}  // namespace encke::ENCKE_ISA
