// Rows of the coder with AVX2: eight lanes are one vector, and the R rows in flight stay in
// registers. Included at the end of rans.hpp.
#pragma once

#include "kernels/rans.hpp"

namespace encke::ENCKE_ISA {

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
template <int D>
struct RowsAvx2 {
    static constexpr int kStride = kLanes * (8 / D);

    static void encode(RowEncoder& e, const int32_t* codes, int64_t rows) {
        const bool raw = D == 8 && e.raw_;
        switch (e.plan_.rows_log) {
            case 0:
                return raw ? encode_rows<0, true>(e, codes, rows)
                           : encode_rows<0, false>(e, codes, rows);
            case 1:
                return raw ? encode_rows<1, true>(e, codes, rows)
                           : encode_rows<1, false>(e, codes, rows);
            default:
                return raw ? encode_rows<2, true>(e, codes, rows)
                           : encode_rows<2, false>(e, codes, rows);
        }
    }

    // How many rows were decoded, fewer than asked for near the end of the bytes; -1 if they
    // cannot be what was written.
    static int64_t decode(RowDecoder& d, int64_t first, int64_t last, int64_t groups,
                          uint32_t after, int32_t* codes) {
        alignas(32) uint32_t slots[128 * kLanes], raws[D == 8 ? 128 * kLanes : 1];
        const bool raw = D == 8 && d.raw_;
        int64_t rows;
        switch (d.plan_.rows_log) {
            case 0:
                rows = raw ? decode_rows<0, true>(d, first, last, slots, raws)
                           : decode_rows<0, false>(d, first, last, slots, raws);
                break;
            case 1:
                rows = raw ? decode_rows<1, true>(d, first, last, slots, raws)
                           : decode_rows<1, false>(d, first, last, slots, raws);
                break;
            default:
                rows = raw ? decode_rows<2, true>(d, first, last, slots, raws)
                           : decode_rows<2, false>(d, first, last, slots, raws);
        }
        for (int64_t t = 0; t < rows; ++t) {
            bool good = raw ? to_codes<true>(d, first + t, groups, after, slots + kLanes * t,
                                             raws + kLanes * t, codes + kStride * t)
                            : to_codes<false>(d, first + t, groups, after, slots + kLanes * t,
                                              nullptr, codes + kStride * t);
            if (!good) return -1;
        }
        return rows;
    }

  private:
    template <int RowsLog, bool Raw>
    static void encode_rows(RowEncoder& e, const int32_t* codes, int64_t rows) {
        constexpr int R = 1 << RowsLog;
        const EncoderTable::Entry* entries = e.tables_[0].entry;
        const __m256i offsets =
            e.plan_.tables == 8 ? _mm256_setr_epi32(0, 256, 512, 768, 1024, 1280, 1536, 1792)
                                : _mm256_setzero_si256();
        const __m128i shift_top = _mm_cvtsi32_si128(31 - e.plan_.precision);
        const __m256i whole = _mm256_set1_epi32(1 << e.plan_.precision);
        const __m256i low13 = _mm256_set1_epi32(0x1FFF), low4 = _mm256_set1_epi32(15);
        const Plan plan = e.plan_;
        uint16_t* words = e.words;
        auto encode_row = [&](__m256i x, const int32_t* row) {
            __m256i symbol = symbols8<D>(row, plan);
            __m256i reciprocal, packed;
            look_up(entries, _mm256_add_epi32(symbol, offsets), reciprocal, packed);
            if (__builtin_expect(_mm256_movemask_ps(_mm256_castsi256_ps(packed)), 0)) {
                alignas(32) uint32_t fixed[kLanes];
                for (int l = kLanes - 1; l >= 0; --l) fixed[l] = e.escaped_symbol(row + l, l);
                symbol = _mm256_load_si256(reinterpret_cast<const __m256i*>(fixed));
                look_up(entries, _mm256_add_epi32(symbol, offsets), reciprocal, packed);
            }
            if constexpr (Raw) x = push_raw(x, row, symbol, plan.base, words);
            __m256i complement = _mm256_and_si256(packed, low13);
            __m256i f = _mm256_sub_epi32(whole, complement);
            x = emit(x, _mm256_cmpgt_epi32(f, _mm256_srl_epi32(x, shift_top)), words);
            __m256i bias = _mm256_and_si256(_mm256_srli_epi32(packed, 13), low13);
            __m256i shift = _mm256_and_si256(_mm256_srli_epi32(packed, 26), low4);
            __m256i quotient = _mm256_srlv_epi32(multiply_high(x, reciprocal), shift);
            return _mm256_add_epi32(_mm256_add_epi32(x, bias),
                                    _mm256_mullo_epi32(quotient, complement));
        };
        __m256i* states = reinterpret_cast<__m256i*>(e.states);
        int64_t t = rows;
        for (; t & (R - 1); --t) {
            __m256i* state = states + ((t - 1) & (R - 1));
            _mm256_store_si256(state,
                               encode_row(_mm256_load_si256(state), codes + (t - 1) * kStride));
        }
        __m256i x[R];
        for (int r = 0; r < R; ++r) x[r] = _mm256_load_si256(states + r);
        for (; t > 0; t -= R)
            for (int r = R - 1; r >= 0; --r)
                x[r] = encode_row(x[r], codes + (t - R + r) * kStride);
        for (int r = 0; r < R; ++r) _mm256_store_si256(states + r, x[r]);
        e.words = words;
    }

    // Eight entries of two words each, loaded both at once and merged by hand: less work than
    // two gather instructions, which are microcoded on many processors.
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

    // Eight words; again by hand.
    static __m256i look_up(const uint32_t* table, __m256i at) {
        __m128i low = _mm256_castsi256_si128(at), high = _mm256_extracti128_si256(at, 1);
        auto two = [&](uint64_t both) {
            __m128i first =
                _mm_cvtsi32_si128(static_cast<int>(table[static_cast<uint32_t>(both)]));
            return _mm_insert_epi32(first, static_cast<int>(table[both >> 32]), 1);
        };
        auto four = [&](__m128i indices) {
            return _mm_unpacklo_epi64(
                two(static_cast<uint64_t>(_mm_cvtsi128_si64(indices))),
                two(static_cast<uint64_t>(_mm_extract_epi64(indices, 1))));
        };
        return _mm256_set_m128i(four(high), four(low));
    }

    // Every lane whose bits in `stay` are 0 puts its low word out, in order of lanes.
    static __m256i emit(__m256i x, __m256i stay, uint16_t*& words) {
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
    static __m256i push_raw(__m256i x, const int32_t* row, __m256i symbol, int base,
                            uint16_t*& words) {
        // Zero and escape have none, nor has what is after the end.
        __m256i bits = raw_bits(symbol);
        if (_mm256_testz_si256(bits, bits)) return x;
        __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
        __m256i a = _mm256_abs_epi32(_mm256_sub_epi32(c, _mm256_set1_epi32(base)));
        __m256i high = _mm256_srlv_epi32(x, _mm256_sub_epi32(_mm256_set1_epi32(31), bits));
        x = emit(x, _mm256_cmpeq_epi32(high, _mm256_setzero_si256()), words);
        __m256i raw = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), bits), a);
        return _mm256_or_si256(_mm256_sllv_epi32(x, bits), raw);
    }

    static __m256i raw_bits(__m256i symbol) {
        const __m256i one = _mm256_set1_epi32(1);
        __m256i octave = _mm256_srli_epi32(_mm256_add_epi32(symbol, one), 4);
        __m256i bits = _mm256_max_epi32(_mm256_sub_epi32(octave, one), _mm256_setzero_si256());
        return _mm256_and_si256(bits, _mm256_cmpgt_epi32(_mm256_set1_epi32(254), symbol));
    }

    // The coder alone: slots (whose low bytes are the symbols) and raw bits of whole rounds of
    // R rows, as long as no read can pass the end.
    template <int RowsLog, bool Raw>
    static int64_t decode_rows(RowDecoder& d, int64_t first, int64_t last, uint32_t* slots_out,
                               uint32_t* raws_out) {
        constexpr int R = 1 << RowsLog;
        const __m256i offsets =
            d.plan_.tables == 8 ? _mm256_sllv_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                                    _mm256_set1_epi32(d.plan_.precision))
                                : _mm256_setzero_si256();
        const __m256i slot_mask = _mm256_set1_epi32((1 << d.plan_.precision) - 1);
        const __m128i shift = _mm_cvtsi32_si128(d.plan_.precision);
        const __m256i frequency_mask = _mm256_set1_epi32(0xFFF);
        const __m256i lowest = _mm256_set1_epi32(static_cast<int>(kLowest));
        const uint32_t* slots = d.slots_;
        const uint8_t* at = d.at_;
        const uint8_t* const end = d.end_;
        __m256i* states = reinterpret_cast<__m256i*>(d.states);
        __m256i x[R];
        for (int r = 0; r < R; ++r) x[r] = _mm256_load_si256(states + r);
        // The next words, dealt out to the lanes in `take`.
        auto deal = [&](unsigned take) {
            __m256i words =
                _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
            at += 2 * __builtin_popcount(take);
            return _mm256_permutevar8x32_epi32(words, lane_order(kLaneOrders.deal[take]));
        };
        auto lanes_in = [](__m256i mask) {
            return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
        };
        int64_t rows = 0;
        const int64_t wanted = (last - first) & ~int64_t{R - 1};
        for (; rows < wanted && end - at >= 32 * R; rows += R) {
            for (int r = 0; r < R; ++r) {
                __m256i v = x[r];
                __m256i slot =
                    look_up(slots, _mm256_add_epi32(_mm256_and_si256(v, slot_mask), offsets));
                v = _mm256_srl_epi32(v, shift);
                __m256i f = _mm256_and_si256(_mm256_srli_epi32(slot, 8), frequency_mask);
                // The table holds f - 1.
                v = _mm256_add_epi32(_mm256_add_epi32(_mm256_mullo_epi32(f, v), v),
                                     _mm256_srli_epi32(slot, 20));
                _mm256_store_si256(reinterpret_cast<__m256i*>(slots_out + kLanes * (rows + r)),
                                   slot);
                // Every state below the lowest makes room for a word and takes it.
                __m256i low = _mm256_cmpgt_epi32(lowest, v);
                v = _mm256_blendv_epi8(v, _mm256_slli_epi32(v, 16), low);
                v = _mm256_or_si256(v, _mm256_and_si256(deal(lanes_in(low)), low));
                if constexpr (Raw) {
                    __m256i* raws = reinterpret_cast<__m256i*>(raws_out + kLanes * (rows + r));
                    __m256i bits = raw_bits(_mm256_and_si256(slot, _mm256_set1_epi32(255)));
                    if (_mm256_testz_si256(bits, bits)) {
                        _mm256_store_si256(raws, bits);
                    } else {
                        __m256i high = _mm256_sllv_epi32(_mm256_set1_epi32(-1), bits);
                        _mm256_store_si256(raws, _mm256_andnot_si256(high, v));
                        v = _mm256_srlv_epi32(v, bits);
                        low = _mm256_cmpgt_epi32(lowest, v);
                        __m256i full =
                            _mm256_or_si256(_mm256_slli_epi32(v, 16), deal(lanes_in(low)));
                        v = _mm256_blendv_epi8(v, full, low);
                    }
                }
                x[r] = v;
            }
        }
        for (int r = 0; r < R; ++r) _mm256_store_si256(states + r, x[r]);
        d.at_ = at;
        return rows;
    }

    // A row's symbols (the low bytes of `slots`) and raw bits to codes.
    template <bool Raw>
    static bool to_codes(RowDecoder& d, int64_t row, int64_t groups, uint32_t after,
                         const uint32_t* slots, const uint32_t* raws, int32_t* codes) {
        const Plan& plan = d.plan_;
        const __m256i escape = _mm256_set1_epi32(static_cast<int>(plan.escape()));
        const __m256i zero_digit = _mm256_set1_epi32(static_cast<int>(plan.zero_digit()));
        const __m256i zero_code = _mm256_set1_epi32(kZero), base = _mm256_set1_epi32(plan.base);
        __m256i symbol = _mm256_and_si256(
            _mm256_load_si256(reinterpret_cast<const __m256i*>(slots)), _mm256_set1_epi32(255));
        __m256i any;
        if constexpr (D == 8) {
            const __m256i one = _mm256_set1_epi32(1);
            __m256i a = _mm256_srli_epi32(_mm256_add_epi32(symbol, one), 1);
            if constexpr (Raw) {
                __m256i first = _mm256_cvttps_epi32(_mm256_castsi256_ps(
                    _mm256_slli_epi32(_mm256_add_epi32(a, _mm256_set1_epi32(1032)), 20)));
                a = _mm256_blendv_epi8(a, first, _mm256_cmpgt_epi32(a, _mm256_set1_epi32(15)));
                a = _mm256_or_si256(a,
                                    _mm256_load_si256(reinterpret_cast<const __m256i*>(raws)));
            }
            __m256i sign =
                _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_and_si256(symbol, one));
            __m256i c =
                _mm256_add_epi32(_mm256_sub_epi32(_mm256_xor_si256(a, sign), sign), base);
            if (plan.zero)
                c = _mm256_blendv_epi8(c, zero_code, _mm256_cmpeq_epi32(symbol, zero_digit));
            any = _mm256_cmpeq_epi32(symbol, escape);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), c);
        } else {
            __m256i rest = symbol;
            any = _mm256_setzero_si256();
            for (int i = 0; i < 8 / D; ++i) {
                __m256i digit = _mm256_and_si256(rest, escape);
                any = _mm256_or_si256(any, _mm256_cmpeq_epi32(digit, escape));
                __m256i c = _mm256_add_epi32(digit, base);
                if (plan.zero)
                    c = _mm256_blendv_epi8(c, zero_code, _mm256_cmpeq_epi32(digit, zero_digit));
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + kLanes * i), c);
                rest = _mm256_srli_epi32(rest, D);
            }
        }
        if (__builtin_expect(_mm256_testz_si256(any, any), 1)) return true;
        alignas(32) uint32_t symbols[kLanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(symbols), symbol);
        return d.template resolve<D>(symbols, row, groups, after, codes);
    }
};

}  // namespace encke::ENCKE_ISA
