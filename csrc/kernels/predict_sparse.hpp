// The adaptive coder of docs/format.md, section 8: for runs of codes that are short or
// nearly all zero. Its time goes with the codes that are not zero, and what it learns it
// learns on the way, so a run of a few hundred codes pays for no table.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/bit_coder.hpp"

namespace encke::ENCKE_ISA::predict {

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
