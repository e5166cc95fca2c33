// The range asymmetric numeral coder of the entropy stage: eight lanes a row, R rows in
// flight (docs/format.md, section 6).
#pragma once

#include "kernels/frequencies.hpp"

namespace encke::ENCKE_ISA {

// The same rows with AVX2, in rans_avx2.hpp.
template <int D>
struct RowsAvx2;

constexpr uint32_t kLowest = 1u << 15;
constexpr int kMostStates = 32;

// Codes in lane order to states, words and exceptions, from the last row to the first.
class RowEncoder {
  public:
    // `words_end` and `exceptions_end` are behind rooms for two words and one exception per
    // code, and 16 bytes more; both are filled downwards.
    RowEncoder(const Plan& plan, const EncoderTable* tables, bool raw, uint16_t* words_end,
               uint32_t* exceptions_end)
        : plan_(plan),
          tables_(tables),
          raw_(raw),
          words(words_end),
          exceptions(exceptions_end) {
        for (uint32_t& x : states) x = kLowest;
    }

    // Rows before those of the last call. All but the first call take kStretch rows.
    static constexpr int64_t kStretch = 64;
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
    const bool raw_;  // some bucket in the tables has raw bits

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

#ifdef __AVX2__
    // The symbols of a row in which something has to be escaped.
    template <int D>
    [[gnu::noinline]] __m256i escaped_row(const int32_t* codes) {
        alignas(32) uint32_t symbols[kLanes];
        for (int l = kLanes - 1; l >= 0; --l) symbols[l] = escaped_symbol(codes + l, l);
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(symbols));
    }
#endif

    template <int D>
    void encode_rows(const int32_t* codes, int64_t rows) {
#ifdef __AVX2__
        RowsAvx2<D>::encode(*this, codes, rows);
#else
        constexpr int kStride = kLanes * (8 / D);
        const int mask = plan_.rows() - 1;
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

    void emit(uint32_t& x) {
        *--words = static_cast<uint16_t>(x);
        x >>= 16;
    }

    template <int D>
    friend struct RowsAvx2;
};

// The inverse, from the first row on. Nothing is read beyond `end`.
class RowDecoder {
  public:
    RowDecoder(const Plan& plan, const uint32_t* slots, bool raw, const uint8_t* words_begin,
               const uint8_t* exceptions_begin, const uint8_t* exceptions_end,
               const uint8_t* end)
        : plan_(plan),
          slots_(slots),
          raw_(raw),
          at_(words_begin),
          words_end_(exceptions_begin),
          exception_(exceptions_begin),
          exceptions_end_(exceptions_end),
          end_(end) {}

    alignas(32) uint32_t states[kMostStates];

    // All rows of `groups` groups, each handed on to sink.codes(group, groups, codes), codes in
    // lane order; false if that ever returns false. With AVX2, stretches of whole rows go to
    // sink.rows<D, Raw>(row, rows, slots, raw bits) first, which returns how many of them it
    // took, and the row at which that stops, for it has an escape, to `codes`. `after` has the
    // lanes of the last group that are behind the end.
    template <class Sink>
    bool decode(int64_t groups, uint32_t after, Sink& sink) {
        switch (plan_.digit_bits) {
            case 8:
                return decode_rows<8>(groups, after, sink);
            case 4:
                return decode_rows<4>(groups, after, sink);
            default:
                return decode_rows<2>(groups, after, sink);
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
    const bool raw_;
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

    // A row's codes, as many of its groups as there are.
    template <int D, class Sink>
    static bool hand_on(int64_t row, int64_t groups, const int32_t* codes, Sink& sink) {
        constexpr int64_t kCount = 8 / D;
        const int64_t left = groups - row * kCount;
        return sink.codes(row * kCount, left < kCount ? left : kCount, codes);
    }

    template <int D, class Sink>
    bool decode_rows(int64_t groups, uint32_t after, Sink& sink) {
        constexpr int64_t kCount = 8 / D;
        int64_t row = 0;
#ifdef __AVX2__
        row = RowsAvx2<D>::decode(*this, (after ? groups - 1 : groups) / kCount, sink);
        if (row < 0 || at_ > words_end_) return false;
#endif
        for (; row * kCount < groups; ++row) {
            int32_t codes[kLanes * kCount];
            if (!decode_row<D>(row, groups, after, codes) ||
                !hand_on<D>(row, groups, codes, sink))
                return false;
        }
        return true;
    }

    template <int D>
    friend struct RowsAvx2;
};

}  // namespace encke::ENCKE_ISA

#ifdef __AVX2__
#include "kernels/rans_avx2.hpp"
#endif
