// Frequency tables of the entropy stage: counted, normalised, written, read back, and
// laid out for the coder.
#pragma once

#include "kernels/digits.hpp"

namespace encke::ENCKE_ISA {

struct Frequencies {
    uint16_t f[256];

    // Scales counts so that they add up to 2^precision, every counted symbol keeping at
    // least 1. Symbol 255 is always there: it stands for whatever is not in the table.
    void normalise(const uint32_t* counts, int precision) {
        const uint32_t whole = 1u << precision;
        uint64_t total = 0;
        for (int s = 0; s < 256; ++s) total += counts[s];
        int64_t left = whole;
        int largest = 0;
        for (int s = 0; s < 256; ++s) {
            uint64_t share =
                total ? (2 * counts[s] * uint64_t{whole} + total) / (2 * total) : 0;
            if (share == 0 && (counts[s] || s == 255)) share = 1;
            f[s] = static_cast<uint16_t>(share);
            left -= static_cast<int64_t>(share);
            if (f[s] > f[largest]) largest = s;
        }
        // The most frequent symbols give or take what rounding left over.
        if (left > 0) f[largest] = static_cast<uint16_t>(f[largest] + left);
        while (left < 0) {
            largest = 0;
            for (int s = 1; s < 256; ++s)
                if (f[s] > f[largest]) largest = s;
            int64_t give = f[largest] / 8 + 1;
            if (give > -left) give = -left;
            if (give > f[largest] - 1) give = f[largest] - 1;
            f[largest] = static_cast<uint16_t>(f[largest] - give);
            left += give;
        }
    }

    // Whether a bucket of 8-bit digits that has raw bits is in the table.
    bool raw_bits() const {
        for (int s = 31; s < 254; ++s)
            if (f[s]) return true;
        return false;
    }

    // At most 2 + 3 * 256 bytes.
    uint8_t* write_to(uint8_t* to) const {
        uint8_t* entries = to;
        to += 2;
        int number = 0, previous = -1;
        for (int s = 0; s < 256; ++s) {
            if (!f[s]) continue;
            *to++ = static_cast<uint8_t>(s - previous - 1);
            uint32_t rest = f[s] - 1u;
            if (rest > 127) *to++ = static_cast<uint8_t>(rest & 127) | 128;
            *to++ = static_cast<uint8_t>(rest > 127 ? rest >> 7 : rest);
            previous = s;
            ++number;
        }
        write<uint16_t>(entries, static_cast<uint16_t>(number));
        return to;
    }

    bool read_from(const uint8_t*& from, const uint8_t* end, int precision) {
        if (end - from < 2) return false;
        int number = read<uint16_t>(from);
        from += 2;
        std::memset(f, 0, sizeof f);
        uint32_t total = 0;
        for (int s = -1; number > 0; --number) {
            if (end - from < 2) return false;
            s += *from++ + 1;
            uint32_t rest = *from++;
            if (rest & 128) {
                if (from == end || *from & 128) return false;
                rest = (rest & 127) | static_cast<uint32_t>(*from++) << 7;
            }
            if (s > 255 || rest >= 1u << precision) return false;
            f[s] = static_cast<uint16_t>(rest + 1);
            total += rest + 1;
        }
        return total == 1u << precision;
    }
};

// What the encoder needs of one symbol: x -> x + bias + (x / f) * (2^P - f), the division
// as a multiplication with a reciprocal (exact for x < 2^31).
struct EncoderTable {
    static constexpr uint32_t kLook = 1u << 31;  // absent, or with an escape in it
    struct Entry {
        uint32_t reciprocal;
        uint32_t packed;  // bits 0-12: 2^P - f, 13-25: bias, 26-29: shift, 31: kLook
    };
    Entry entry[256];

    void build(const Frequencies& table, const Plan& plan) {
        uint32_t cumulative = 0, whole = 1u << plan.precision;
        for (uint32_t s = 0; s < 256; ++s) {
            uint32_t f = table.f[s], shift = 0, bias = cumulative;
            if (f == 0) {
                entry[s] = {0, kLook};
                continue;
            }
            if (f == 1) {
                entry[s].reciprocal = ~0u;
                bias = cumulative + whole - 1;
            } else {
                while (f > 1u << shift) ++shift;
                entry[s].reciprocal =
                    static_cast<uint32_t>(((uint64_t{1} << (shift + 31)) + f - 1) / f);
                --shift;
            }
            entry[s].packed =
                (whole - f) | bias << 13 | shift << 26 | (escapes(s, plan) ? kLook : 0);
            cumulative += f;
        }
    }

    static bool escapes(uint32_t symbol, const Plan& plan) {
        for (int i = 0; i < plan.per_symbol(); ++i)
            if ((symbol >> plan.digit_bits * i & plan.escape()) == plan.escape()) return true;
        return false;
    }
};

// For every slot of 2^P: bits 0-7 the symbol, 8-19 its frequency - 1, 20-31 the slot's
// distance from the symbol's first.
inline void build_slots(const Frequencies& table, uint32_t* slots) {
    for (uint32_t s = 0; s < 256; ++s)
        for (uint32_t i = 0; i < table.f[s]; ++i)
            *slots++ = s | static_cast<uint32_t>(table.f[s] - 1) << 8 | i << 20;
}

}  // namespace encke::ENCKE_ISA
