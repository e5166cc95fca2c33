// Integer codes to digits and digits to byte symbols (docs/format.md, section 6).
#pragma once

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

// Stand-ins in an array of codes for what has no code.
constexpr int32_t kVerbatim = INT32_MIN;   // kept bit for bit elsewhere
constexpr int32_t kZero = INT32_MIN + 1;   // exactly zero
constexpr int32_t kAfter = INT32_MIN + 2;  // after the end of the chunk

constexpr uint32_t kVerbatimException = 0xFFFFFFFFu;
constexpr uint32_t kZeroException = 0xFFFFFFFEu;
constexpr int32_t kBucketLimit = 1 << 17;
constexpr int kLanes = 8;

inline uint32_t zigzag(int32_t c) {
    return static_cast<uint32_t>(c) << 1 ^ static_cast<uint32_t>(c >> 31);
}
inline int32_t unzigzag(uint32_t z) { return static_cast<int32_t>(z >> 1 ^ (0u - (z & 1))); }

// How codes become symbols: parameter bytes 1..7 of a payload.
struct Plan {
    int digit_bits = 8;  // d
    int rows_log = 2;    // log2 of R
    int precision = 12;  // P
    int base = 0;
    int tables = 1;
    bool zero = false;  // Z is a digit

    int per_symbol() const { return 8 / digit_bits; }
    int rows() const { return 1 << rows_log; }
    uint32_t escape() const { return (1u << digit_bits) - 1; }
    uint32_t zero_digit() const { return escape() - 1; }
    // The largest c - base that is a digit (4 and 2 bits).
    uint32_t largest() const { return escape() - (zero ? 2 : 1); }

    void write_to(uint8_t* p) const {
        p[1] = static_cast<uint8_t>(digit_bits);
        p[2] = static_cast<uint8_t>(rows_log);
        p[3] = static_cast<uint8_t>(precision);
        write<int16_t>(p + 4, static_cast<int16_t>(base));
        p[6] = static_cast<uint8_t>(tables);
        p[7] = zero;
    }

    // `flags` has the other bits of byte 7 that may be set: what they mean is the caller's.
    bool read_from(const uint8_t* p, int kind, uint8_t flags = 0) {
        digit_bits = p[1];
        rows_log = p[2];
        precision = p[3];
        base = read<int16_t>(p + 4);
        tables = p[6];
        zero = p[7] & 1;
        return (digit_bits == 8 || digit_bits == 4 || digit_bits == 2) && rows_log <= 2 &&
               precision >= 8 && precision <= 12 && (p[7] & ~flags) <= 1 &&
               (tables == 1 || (tables == 8 && kind == ENCKE_DITHER));
    }
};

// The bucket of |c| = a < 2^17, its first magnitude and its number of raw bits.
inline uint32_t bucket(uint32_t a) {
    if (a < 16) return a;
    int e = 31 - __builtin_clz(a);
    return 16 + 8 * (e - 4) + (a >> (e - 3) & 7);
}
inline int bucket_bits(uint32_t index) {
    return index < 16 ? 0 : static_cast<int>(index / 8) - 1;
}
inline uint32_t bucket_first(uint32_t index) {
    return index < 16 ? index : (8 + (index & 7)) << bucket_bits(index);
}

// The digit of a code; the escape where it has none.
inline uint32_t digit_of(int32_t c, const Plan& plan) {
    if (c == kAfter) return 0;
    if (c == kZero && plan.zero) return plan.zero_digit();
    const uint32_t digit = static_cast<uint32_t>(c) - static_cast<uint32_t>(plan.base);
    if (plan.digit_bits == 8) {
        const int32_t r = static_cast<int32_t>(digit);
        if (r <= -kBucketLimit || r >= kBucketLimit) return 255;
        uint32_t index = bucket(static_cast<uint32_t>(r < 0 ? -r : r));
        return 2 * index - (r < 0);
    }
    return digit <= plan.largest() ? digit : plan.escape();
}

inline uint32_t exception_of(int32_t c) {
    return c == kVerbatim ? kVerbatimException : c == kZero ? kZeroException : zigzag(c);
}

// The code that an exception stands for; kAfter (which is none) if it is not valid.
inline int32_t code_of_exception(uint32_t word) {
    if (word == kVerbatimException) return kVerbatim;
    if (word == kZeroException) return kZero;
    int32_t c = unzigzag(word);
    return c >= -(1 << 30) && c <= 1 << 30 ? c : kAfter;
}

// The symbol of a row's lane: k digits, that of the first group lowest. `codes` points to
// the lane in the first group; groups are 8 codes apart.
inline uint32_t symbol_of(const int32_t* codes, const Plan& plan) {
    uint32_t symbol = 0;
    for (int i = 0; i < plan.per_symbol(); ++i)
        symbol |= digit_of(codes[kLanes * i], plan) << plan.digit_bits * i;
    return symbol;
}

#ifdef __AVX2__
// The symbols of a row's eight lanes. What has no digit shows as an escape, whose
// symbols the caller looks at one by one. Raw: some bucket with raw bits is in use; otherwise
// the first of those stands for all of them.
template <int D, bool Raw, bool Zero>
inline __m256i symbols8(const int32_t* codes, __m256i base) {
    constexpr int kEscape = (1 << D) - 1;
    const __m256i zero_code = _mm256_set1_epi32(kZero);
    const __m256i zero_digit = _mm256_set1_epi32(kEscape - 1);
    const __m256i escape = _mm256_set1_epi32(kEscape);
    if constexpr (D == 8) {
        __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        __m256i r = _mm256_sub_epi32(c, base), symbol;
        if constexpr (Raw) {
            __m256i a = _mm256_abs_epi32(r);
            // The exponent and the top three bits of the mantissa number the buckets.
            __m256i high = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(a)), 20);
            __m256i index = _mm256_max_epi32(_mm256_sub_epi32(high, _mm256_set1_epi32(1032)),
                                             _mm256_min_epi32(a, _mm256_set1_epi32(15)));
            symbol = _mm256_add_epi32(_mm256_add_epi32(index, index), _mm256_srai_epi32(r, 31));
            __m256i fits = _mm256_cmpeq_epi32(_mm256_srli_epi32(a, 17), _mm256_setzero_si256());
            symbol = _mm256_blendv_epi8(escape, symbol, fits);
        } else {
            symbol = _mm256_xor_si256(_mm256_add_epi32(r, r), _mm256_srai_epi32(r, 31));
            symbol = _mm256_min_epu32(symbol, _mm256_set1_epi32(31));
        }
        if constexpr (Zero)
            symbol = _mm256_blendv_epi8(symbol, zero_digit, _mm256_cmpeq_epi32(c, zero_code));
        return symbol;
    } else {
        __m256i symbol = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int i = 8 / D - 1; i >= 0; --i) {
            __m256i c =
                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + kLanes * i));
            __m256i digit = _mm256_min_epu32(_mm256_sub_epi32(c, base), escape);
            if constexpr (Zero) {
                // The digit before the escape is Z's alone.
                digit = _mm256_sub_epi32(digit, _mm256_cmpeq_epi32(digit, zero_digit));
                digit = _mm256_blendv_epi8(digit, zero_digit, _mm256_cmpeq_epi32(c, zero_code));
            }
            symbol = _mm256_or_si256(_mm256_slli_epi32(symbol, D), digit);
        }
        return symbol;
    }
}
template <int D>
inline __m256i symbols8(const int32_t* codes, const Plan& plan) {
    const __m256i base = _mm256_set1_epi32(plan.base);
    return plan.zero ? symbols8<D, true, true>(codes, base)
                     : symbols8<D, true, false>(codes, base);
}

// How many raw bits the buckets of eight 8-bit digits have. Zero and escape have none.
inline __m256i raw_bits8(__m256i symbol) {
    const __m256i one = _mm256_set1_epi32(1);
    __m256i octave = _mm256_srli_epi32(_mm256_add_epi32(symbol, one), 4);
    __m256i bits = _mm256_max_epi32(_mm256_sub_epi32(octave, one), _mm256_setzero_si256());
    return _mm256_and_si256(bits, _mm256_cmpgt_epi32(_mm256_set1_epi32(254), symbol));
}

// The inverse of `symbols8`: the codes of a row, less the base, from its symbols, the low bytes
// of `slots`, and raw bits. Sets all bits of `zeros` where a digit is Z, should that be in use,
// and returns all bits set in lanes that have an escape.
template <int D, bool Raw>
inline __m256i codes8(__m256i slots, __m256i raw, __m256i (&codes)[8 / D],
                      __m256i (&zeros)[8 / D]) {
    constexpr int kEscape = (1 << D) - 1;
    const __m256i escape = _mm256_set1_epi32(kEscape);
    const __m256i zero_digit = _mm256_set1_epi32(kEscape - 1);
    if constexpr (D == 8) {
        const __m256i one = _mm256_set1_epi32(1);
        __m256i symbol = _mm256_and_si256(slots, escape);
        __m256i sign = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_and_si256(symbol, one));
        if constexpr (Raw) {
            __m256i a = _mm256_srli_epi32(_mm256_add_epi32(symbol, one), 1);
            __m256i first = _mm256_cvttps_epi32(_mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(1032)), 20)));
            a = _mm256_blendv_epi8(a, first, _mm256_cmpgt_epi32(a, _mm256_set1_epi32(15)));
            a = _mm256_or_si256(a, raw);
            codes[0] = _mm256_sub_epi32(_mm256_xor_si256(a, sign), sign);
        } else {
            codes[0] = _mm256_xor_si256(_mm256_srli_epi32(symbol, 1), sign);
        }
        zeros[0] = _mm256_cmpeq_epi32(symbol, zero_digit);
        return _mm256_cmpeq_epi32(symbol, escape);
    } else {
        __m256i most{};
#pragma GCC unroll 4
        for (int i = 0; i < 8 / D; ++i) {
            __m256i digit =
                _mm256_and_si256(i ? _mm256_srli_epi32(slots, D * i) : slots, escape);
            most = i ? _mm256_max_epu32(most, digit) : digit;
            codes[i] = digit;
            zeros[i] = _mm256_cmpeq_epi32(digit, zero_digit);
        }
        return _mm256_cmpeq_epi32(most, escape);
    }
}
#endif

}  // namespace encke::ENCKE_ISA
