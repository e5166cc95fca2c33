// The range asymmetric numeral coder of the entropy stage: eight lanes a row, R rows in
// flight (docs/format.md, section 6).
#pragma once

#include "kernels/frequencies.hpp"

namespace encke::ENCKE_ISA {

constexpr uint32_t kLowest = 1u << 15;
constexpr int kMostStates = 32;

#ifdef __AVX2__
// For each subset of eight lanes: the permutation that brings its members to the end
// (encoder) and the one that deals consecutive words out to them (decoder).
struct LaneOrders {
    alignas(32) uint8_t to_end[256][8];
    alignas(32) uint8_t deal[256][8];
    constexpr LaneOrders() : to_end{}, deal{} {
        for (int m = 0; m < 256; ++m) {
            int at = 8 - __builtin_popcount(m), next = 0;
            for (int l = 0; l < 8; ++l) {
                deal[m][l] = static_cast<uint8_t>(next);
                if (m >> l & 1) {
                    to_end[m][at++] = static_cast<uint8_t>(l);
                    ++next;
                }
            }
        }
    }
};
inline constexpr LaneOrders kLaneOrders{};

inline __m256i lane_order(const uint8_t (&order)[8]) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(order)));
}

inline __m256i multiply_high(__m256i a, __m256i b) {
    __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return _mm256_blend_epi32(even, odd, 0xAA);
}
#endif

// Codes in lane order to states, words and exceptions, from the last row to the first.
class RowEncoder {
  public:
    // `words_end` and `exceptions_end` are behind rooms for two words and one exception per
    // code, and 16 bytes more; both are filled downwards.
    RowEncoder(const Plan& plan, const EncoderTable* tables, uint16_t* words_end,
               uint32_t* exceptions_end)
        : plan_(plan), tables_(tables), words(words_end), exceptions(exceptions_end) {
        for (uint32_t& x : states) x = kLowest;
    }

    void encode(const int32_t* codes, int64_t rows) {
        switch (plan_.digit_bits) {
            case 8:
                return encode_rows<8>(codes, rows);
            case 4:
                return encode_rows<4>(codes, rows);
            default:
                return encode_rows<2>(codes, rows);
        }
    }

  private:
    const Plan plan_;
    const EncoderTable* tables_;

  public:
    uint16_t* words;
    uint32_t* exceptions;
    alignas(32) uint32_t states[kMostStates];

  private:
    const EncoderTable& table(int lane) const { return tables_[plan_.tables == 8 ? lane : 0]; }

    // A lane's symbol with everything that has no digit or no table entry escaped.
    uint32_t escaped_symbol(const int32_t* codes, int lane) {
        uint32_t symbol = symbol_of(codes, plan_);
        if (table(lane).entry[symbol].packed == EncoderTable::kLook) symbol = 255;
        for (int i = plan_.per_symbol() - 1; i >= 0; --i) {
            int32_t c = codes[kLanes * i];
            if ((symbol >> plan_.digit_bits * i & plan_.escape()) == plan_.escape() &&
                c != kAfter)
                *--exceptions = exception_of(c);
        }
        return symbol;
    }

    template <int D>
    void encode_rows(const int32_t* codes, int64_t rows) {
        constexpr int kStride = kLanes * (8 / D);
        const int mask = plan_.rows() - 1;
#ifdef __AVX2__
        const EncoderTable::Entry* entries = tables_[0].entry;
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i offsets = plan_.tables == 8
                                    ? _mm256_mullo_epi32(lane, _mm256_set1_epi32(256))
                                    : _mm256_setzero_si256();
        const __m128i shift_top = _mm_cvtsi32_si128(31 - plan_.precision);
        const __m256i whole = _mm256_set1_epi32(1 << plan_.precision);
        const __m256i low13 = _mm256_set1_epi32(0x1FFF), low4 = _mm256_set1_epi32(15);
        for (int64_t t = rows - 1; t >= 0; --t) {
            const int32_t* row = codes + t * kStride;
            __m256i* state = reinterpret_cast<__m256i*>(states + kLanes * (t & mask));
            __m256i x = _mm256_load_si256(state);
            __m256i symbol = symbols8<D>(row, plan_);
            __m256i reciprocal, packed;
            look_up(entries, _mm256_add_epi32(symbol, offsets), reciprocal, packed);
            if (_mm256_movemask_ps(_mm256_castsi256_ps(packed))) {
                alignas(32) uint32_t fixed[kLanes];
                for (int l = kLanes - 1; l >= 0; --l) fixed[l] = escaped_symbol(row + l, l);
                symbol = _mm256_load_si256(reinterpret_cast<const __m256i*>(fixed));
                look_up(entries, _mm256_add_epi32(symbol, offsets), reciprocal, packed);
            }
            if constexpr (D == 8) x = push_raw(x, row, symbol);
            __m256i complement = _mm256_and_si256(packed, low13);
            __m256i f = _mm256_sub_epi32(whole, complement);
            x = emit(x, _mm256_cmpgt_epi32(f, _mm256_srl_epi32(x, shift_top)));
            __m256i bias = _mm256_and_si256(_mm256_srli_epi32(packed, 13), low13);
            __m256i shift = _mm256_and_si256(_mm256_srli_epi32(packed, 26), low4);
            __m256i quotient = _mm256_srlv_epi32(multiply_high(x, reciprocal), shift);
            x = _mm256_add_epi32(_mm256_add_epi32(x, bias),
                                 _mm256_mullo_epi32(quotient, complement));
            _mm256_store_si256(state, x);
        }
#else
        for (int64_t t = rows - 1; t >= 0; --t) {
            const int32_t* row = codes + t * kStride;
            uint32_t* state = states + kLanes * (t & mask);
            uint32_t symbols[kLanes];
            for (int l = kLanes - 1; l >= 0; --l) {
                symbols[l] = symbol_of(row + l, plan_);
                if (table(l).entry[symbols[l]].packed & EncoderTable::kLook)
                    symbols[l] = escaped_symbol(row + l, l);
            }
            if constexpr (D == 8) {
                for (int l = kLanes - 1; l >= 0; --l) {
                    int bits = symbols[l] < 254 ? bucket_bits((symbols[l] + 1) / 2) : 0;
                    if (!bits) continue;
                    int32_t r = row[l] - plan_.base;
                    uint32_t a = static_cast<uint32_t>(r < 0 ? -r : r);
                    if (state[l] >> (31 - bits)) emit(state[l]);
                    state[l] = state[l] << bits | (a & ((1u << bits) - 1));
                }
            }
            for (int l = kLanes - 1; l >= 0; --l) {
                const auto [reciprocal, packed] = table(l).entry[symbols[l]];
                const uint32_t complement = packed & 0x1FFF;
                uint32_t& x = state[l];
                if (x >> (31 - plan_.precision) >= (1u << plan_.precision) - complement)
                    emit(x);
                uint32_t quotient = static_cast<uint32_t>(uint64_t{x} * reciprocal >> 32 >>
                                                          (packed >> 26 & 15));
                x += (packed >> 13 & 0x1FFF) + quotient * complement;
            }
        }
#endif
    }

#ifdef __AVX2__
    // Eight entries of two words each. Loads of both words at once, merged by hand, take a
    // third of the work of two gather instructions.
    static void look_up(const EncoderTable::Entry* entries, __m256i at, __m256i& reciprocal,
                        __m256i& packed) {
        alignas(32) uint32_t index[kLanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(index), at);
        auto two = [&](int a, int b) {
            __m128d low = _mm_load_sd(reinterpret_cast<const double*>(entries + index[a]));
            return _mm_loadh_pd(low, reinterpret_cast<const double*>(entries + index[b]));
        };
        __m256 x = _mm256_castpd_ps(_mm256_set_m128d(two(4, 5), two(0, 1)));
        __m256 y = _mm256_castpd_ps(_mm256_set_m128d(two(6, 7), two(2, 3)));
        reciprocal = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88));
        packed = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xDD));
    }

    // Every lane whose bits in `stay` are 0 puts its low word out, in order of lanes.
    __m256i emit(__m256i x, __m256i stay) {
        unsigned out =
            ~static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(stay))) & 255;
        __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xFFFF));
        low = _mm256_permutevar8x32_epi32(low, lane_order(kLaneOrders.to_end[out]));
        __m128i eight =
            _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(words - 8), eight);
        words -= __builtin_popcount(out);
        return _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, stay);
    }

    // The raw bits of a row of buckets.
    __m256i push_raw(__m256i x, const int32_t* row, __m256i symbol) {
        __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
        __m256i a = _mm256_abs_epi32(_mm256_sub_epi32(c, _mm256_set1_epi32(plan_.base)));
        // Markers and escaped codes have no raw bits.
        __m256i fits = _mm256_cmpeq_epi32(_mm256_srli_epi32(a, 17), _mm256_setzero_si256());
        fits = _mm256_and_si256(fits, _mm256_cmpgt_epi32(_mm256_set1_epi32(254), symbol));
        a = _mm256_and_si256(a, fits);
        if (_mm256_testz_si256(a, _mm256_set1_epi32(~15))) return x;
        __m256i exponent = _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(a)), 23);
        __m256i bits = _mm256_max_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(130)),
                                        _mm256_setzero_si256());
        __m256i high = _mm256_srlv_epi32(x, _mm256_sub_epi32(_mm256_set1_epi32(31), bits));
        x = emit(x, _mm256_cmpeq_epi32(high, _mm256_setzero_si256()));
        __m256i raw = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), bits), a);
        return _mm256_or_si256(_mm256_sllv_epi32(x, bits), raw);
    }
#else
    void emit(uint32_t& x) {
        *--words = static_cast<uint16_t>(x);
        x >>= 16;
    }
#endif
};

// The inverse, from the first row on. `decode` may be called for one stretch of rows
// after the other. Nothing is read beyond `end`.
class RowDecoder {
  public:
    RowDecoder(const Plan& plan, const uint32_t* slots, const uint8_t* words_begin,
               const uint8_t* exceptions_begin, const uint8_t* exceptions_end,
               const uint8_t* end)
        : plan_(plan),
          slots_(slots),
          at_(words_begin),
          words_end_(exceptions_begin),
          exception_(exceptions_begin),
          exceptions_end_(exceptions_end),
          end_(end) {}

    alignas(32) uint32_t states[kMostStates];

    // `after` has the lanes of the last of `groups` groups that are behind the end.
    bool decode(int64_t first, int64_t last, int64_t groups, uint32_t after, int32_t* codes) {
        switch (plan_.digit_bits) {
            case 8:
                return decode_rows<8>(first, last, groups, after, codes);
            case 4:
                return decode_rows<4>(first, last, groups, after, codes);
            default:
                return decode_rows<2>(first, last, groups, after, codes);
        }
    }

    // True if everything was used up, as it must be.
    bool finished() const {
        for (int i = 0; i < kLanes * plan_.rows(); ++i)
            if (states[i] != kLowest) return false;
        return at_ == words_end_ && exception_ == exceptions_end_;
    }

  private:
    const Plan plan_;
    const uint32_t* slots_;
    const uint8_t* at_;
    const uint8_t* words_end_;
    const uint8_t* exception_;
    const uint8_t* exceptions_end_;
    const uint8_t* end_;

    bool take_word(uint32_t& x) {
        if (words_end_ - at_ < 2) return false;
        x = x << 16 | read<uint16_t>(at_);
        at_ += 2;
        return true;
    }

    // Replaces the escaped digits of a row whose symbols are given. `codes` has room for
    // all k groups, their digits decoded already.
    template <int D>
    bool resolve(const uint32_t* symbols, int64_t row, int64_t groups, uint32_t after,
                 int32_t* codes) {
        constexpr int kCount = 8 / D;
        for (int l = 0; l < kLanes; ++l) {
            for (int i = 0; i < kCount; ++i) {
                if ((symbols[l] >> D * i & plan_.escape()) != plan_.escape()) continue;
                int64_t group = row * kCount + i;
                if (group >= groups || (group == groups - 1 && after >> l & 1)) continue;
                if (exceptions_end_ - exception_ < 4) return false;
                int32_t c = code_of_exception(read<uint32_t>(exception_));
                exception_ += 4;
                if (c == kAfter) return false;
                codes[kLanes * i + l] = c;
            }
        }
        return true;
    }

    template <int D>
    bool decode_row(int64_t t, int64_t groups, uint32_t after, int32_t* codes) {
        uint32_t* state = states + kLanes * (t & (plan_.rows() - 1));
        uint32_t symbols[kLanes];
        bool escaped = false;
        for (int l = 0; l < kLanes; ++l) {
            const uint32_t* slots = slots_ + (plan_.tables == 8 ? l << plan_.precision : 0);
            uint32_t& x = state[l];
            uint32_t slot = slots[x & ((1u << plan_.precision) - 1)];
            symbols[l] = slot & 255;
            x = ((slot >> 8 & 0xFFF) + 1) * (x >> plan_.precision) + (slot >> 20);
            if (x < kLowest && !take_word(x)) return false;
        }
        for (int l = 0; l < kLanes; ++l) {
            if constexpr (D == 8) {
                uint32_t symbol = symbols[l], index = (symbol + 1) / 2;
                if (symbol >= 254) {
                    codes[l] = plan_.zero ? kZero : 0;
                    escaped |= symbol == 255;
                    if (symbol == 254 && !plan_.zero) return false;
                    continue;
                }
                if (symbol > 238) return false;
                uint32_t a = bucket_first(index);
                if (int bits = bucket_bits(index)) {
                    uint32_t& x = state[l];
                    a |= x & ((1u << bits) - 1);
                    x >>= bits;
                    if (x < kLowest && !take_word(x)) return false;
                }
                codes[l] = plan_.base + static_cast<int32_t>(symbol & 1 ? 0u - a : a);
            } else {
                for (int i = 0; i < 8 / D; ++i) {
                    uint32_t digit = symbols[l] >> D * i & plan_.escape();
                    escaped |= digit == plan_.escape();
                    codes[kLanes * i + l] = plan_.zero && digit == plan_.zero_digit()
                                                ? kZero
                                                : plan_.base + static_cast<int32_t>(digit);
                }
            }
        }
        return !escaped || resolve<D>(symbols, t, groups, after, codes);
    }

    template <int D>
    bool decode_rows(int64_t first, int64_t last, int64_t groups, uint32_t after,
                     int32_t* codes) {
        constexpr int kStride = kLanes * (8 / D);
#ifdef __AVX2__
        const int rows_mask = plan_.rows() - 1;
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i offsets =
            plan_.tables == 8 ? _mm256_sllv_epi32(lane, _mm256_set1_epi32(plan_.precision))
                              : _mm256_setzero_si256();
        const __m256i slot_mask = _mm256_set1_epi32((1 << plan_.precision) - 1);
        const __m128i shift = _mm_cvtsi32_si128(plan_.precision);
        const __m256i escape = _mm256_set1_epi32(static_cast<int>(plan_.escape()));
        const __m256i zero_digit = _mm256_set1_epi32(static_cast<int>(plan_.zero_digit()));
        const __m256i zero_code = _mm256_set1_epi32(kZero),
                      base = _mm256_set1_epi32(plan_.base);
        const int* slots = reinterpret_cast<const int*>(slots_);
        // A row reads two times eight words at most.
        for (; first < last && end_ - at_ >= 32; ++first, codes += kStride) {
            __m256i* state = reinterpret_cast<__m256i*>(states + kLanes * (first & rows_mask));
            __m256i x = _mm256_load_si256(state);
            __m256i slot = _mm256_i32gather_epi32(
                slots, _mm256_add_epi32(_mm256_and_si256(x, slot_mask), offsets), 4);
            __m256i f = _mm256_add_epi32(
                _mm256_and_si256(_mm256_srli_epi32(slot, 8), _mm256_set1_epi32(0xFFF)),
                _mm256_set1_epi32(1));
            x = _mm256_add_epi32(_mm256_mullo_epi32(f, _mm256_srl_epi32(x, shift)),
                                 _mm256_srli_epi32(slot, 20));
            x = refill(x);
            __m256i symbol = _mm256_and_si256(slot, _mm256_set1_epi32(255));
            bool escaped = false;
            if constexpr (D == 8) {
                __m256i index =
                    _mm256_srli_epi32(_mm256_add_epi32(symbol, _mm256_set1_epi32(1)), 1);
                __m256i a = index;
                __m256i special = _mm256_cmpgt_epi32(symbol, _mm256_set1_epi32(238));
                if (!_mm256_testz_si256(index, _mm256_set1_epi32(~15))) {
                    index = _mm256_andnot_si256(special, index);
                    __m256i big = _mm256_cmpgt_epi32(index, _mm256_set1_epi32(15));
                    __m256i bits = _mm256_and_si256(
                        _mm256_sub_epi32(_mm256_srli_epi32(index, 3), _mm256_set1_epi32(1)),
                        big);
                    __m256i first_of =
                        _mm256_cvttps_epi32(_mm256_castsi256_ps(_mm256_slli_epi32(
                            _mm256_add_epi32(index, _mm256_set1_epi32(1032)), 20)));
                    a = _mm256_blendv_epi8(index, first_of, big);
                    __m256i keep = _mm256_sllv_epi32(_mm256_set1_epi32(-1), bits);
                    a = _mm256_or_si256(a, _mm256_andnot_si256(keep, x));
                    x = refill(_mm256_srlv_epi32(x, bits));
                }
                __m256i sign = _mm256_sub_epi32(_mm256_setzero_si256(),
                                                _mm256_and_si256(symbol, _mm256_set1_epi32(1)));
                __m256i c = _mm256_sub_epi32(_mm256_xor_si256(a, sign), sign);
                c = _mm256_add_epi32(c, base);
                if (!_mm256_testz_si256(special, special)) {
                    unsigned all =
                        static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(special)));
                    __m256i z = _mm256_cmpeq_epi32(symbol, zero_digit);
                    unsigned zeros =
                        static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(z)));
                    unsigned escapes = static_cast<unsigned>(_mm256_movemask_ps(
                        _mm256_castsi256_ps(_mm256_cmpeq_epi32(symbol, escape))));
                    if (all != (escapes | (plan_.zero ? zeros : 0))) return false;
                    escaped = escapes;
                    c = _mm256_blendv_epi8(c, zero_code, z);
                }
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), c);
            } else {
                __m256i rest = symbol, any = _mm256_setzero_si256();
                for (int i = 0; i < 8 / D; ++i) {
                    __m256i digit = _mm256_and_si256(rest, escape);
                    any = _mm256_or_si256(any, _mm256_cmpeq_epi32(digit, escape));
                    __m256i c = _mm256_add_epi32(digit, base);
                    if (plan_.zero)
                        c = _mm256_blendv_epi8(c, zero_code,
                                               _mm256_cmpeq_epi32(digit, zero_digit));
                    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + kLanes * i), c);
                    rest = _mm256_srli_epi32(rest, D);
                }
                escaped = !_mm256_testz_si256(any, any);
            }
            _mm256_store_si256(state, x);
            if (escaped) {
                alignas(32) uint32_t symbols[kLanes];
                _mm256_store_si256(reinterpret_cast<__m256i*>(symbols), symbol);
                if (!resolve<D>(symbols, first, groups, after, codes)) return false;
            }
        }
        if (at_ > words_end_) return false;
#endif
        for (; first < last; ++first, codes += kStride)
            if (!decode_row<D>(first, groups, after, codes)) return false;
        return true;
    }

#ifdef __AVX2__
    // Every state below the lowest takes a word, in order of lanes.
    __m256i refill(__m256i x) {
        __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kLowest)), x);
        unsigned take = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(low)));
        __m256i words =
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at_)));
        words = _mm256_permutevar8x32_epi32(words, lane_order(kLaneOrders.deal[take]));
        at_ += 2 * __builtin_popcount(take);
        return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), words), low);
    }
#endif
};

}  // namespace encke::ENCKE_ISA
