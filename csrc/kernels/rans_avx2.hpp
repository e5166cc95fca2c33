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
        switch (e.plan_.rows_log) {
            case 0:
                return encode<0>(e, codes, rows);
            case 1:
                return encode<1>(e, codes, rows);
            default:
                return encode<2>(e, codes, rows);
        }
    }

    // How many of the first `rows` rows, whole ones, were decoded and handed on: not those near
    // the end of the bytes. -1 if they cannot be what was written.
    template <class Sink>
    static int64_t decode(RowDecoder& d, int64_t rows, Sink& sink) {
        const bool raw = D == 8 && d.raw_;
        switch (d.plan_.rows_log) {
            case 0:
                return raw ? decode_rows<0, D == 8>(d, rows, sink)
                           : decode_rows<0, false>(d, rows, sink);
            case 1:
                return raw ? decode_rows<1, D == 8>(d, rows, sink)
                           : decode_rows<1, false>(d, rows, sink);
            default:
                return raw ? decode_rows<2, D == 8>(d, rows, sink)
                           : decode_rows<2, false>(d, rows, sink);
        }
    }

  private:
    template <int RowsLog>
    static void encode(RowEncoder& e, const int32_t* codes, int64_t rows) {
        const bool raw = D == 8 && e.raw_;
        if (e.plan_.zero)
            return raw ? encode_rows<RowsLog, D == 8, true>(e, codes, rows)
                       : encode_rows<RowsLog, false, true>(e, codes, rows);
        return raw ? encode_rows<RowsLog, D == 8, false>(e, codes, rows)
                   : encode_rows<RowsLog, false, false>(e, codes, rows);
    }

    template <int RowsLog, bool Raw, bool Zero>
    static void encode_rows(RowEncoder& e, const int32_t* codes, int64_t rows) {
        constexpr int R = 1 << RowsLog;
        const EncoderTable::Entry* const entries = e.tables_[0].entry;
        const __m256i offsets =
            e.plan_.tables == 8 ? _mm256_setr_epi32(0, 256, 512, 768, 1024, 1280, 1536, 1792)
                                : _mm256_setzero_si256();
        const __m128i shift_top = _mm_cvtsi32_si128(31 - e.plan_.precision);
        const __m256i whole = _mm256_set1_epi32(1 << e.plan_.precision);
        const __m256i low13 = _mm256_set1_epi32(0x1FFF), low4 = _mm256_set1_epi32(15);
        const __m256i base = _mm256_set1_epi32(e.plan_.base);
        uint16_t* words = e.words;
        auto encode_row = [&](__m256i x, const int32_t* row) __attribute__((always_inline)) {
            __m256i symbol = symbols8<D, Raw, Zero>(row, base);
            __m256i reciprocal, packed;
            look_up(entries, _mm256_add_epi32(symbol, offsets), reciprocal, packed);
            if (__builtin_expect(_mm256_movemask_ps(_mm256_castsi256_ps(packed)), 0)) {
                symbol = e.template escaped_row<D>(row);
                look_up(entries, _mm256_add_epi32(symbol, offsets), reciprocal, packed);
            }
            if constexpr (Raw) x = push_raw(x, row, symbol, base, words);
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
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) x[r] = _mm256_load_si256(states + r);
        for (; t > 0; t -= R) {
#pragma GCC unroll 4
            for (int r = R - 1; r >= 0; --r)
                x[r] = encode_row(x[r], codes + (t - R + r) * kStride);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) _mm256_store_si256(states + r, x[r]);
        e.words = words;
    }

    // Eight entries of two words each, loaded both at once and merged by hand: less work than
    // two gather instructions, which are microcoded on many processors.
    [[gnu::always_inline]] static void look_up(const EncoderTable::Entry* entries, __m256i at,
                                               __m256i& reciprocal, __m256i& packed) {
        alignas(32) uint32_t index[kLanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(index), at);
        asm("" : "+m"(index));  // loads are cheaper here than taking the vector apart
        auto two = [&](int a, int b) __attribute__((always_inline)) {
            __m128d low = _mm_load_sd(reinterpret_cast<const double*>(entries + index[a]));
            return _mm_loadh_pd(low, reinterpret_cast<const double*>(entries + index[b]));
        };
        __m256 x = _mm256_castpd_ps(_mm256_set_m128d(two(4, 5), two(0, 1)));
        __m256 y = _mm256_castpd_ps(_mm256_set_m128d(two(6, 7), two(2, 3)));
        reciprocal = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88));
        packed = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xDD));
    }

    // Eight words; again by hand.
    [[gnu::always_inline]] static __m256i look_up(const uint32_t* table, __m256i at) {
        __m128i low = _mm256_castsi256_si128(at), high = _mm256_extracti128_si256(at, 1);
        auto two = [&](uint64_t both) __attribute__((always_inline)) {
            __m128i first =
                _mm_cvtsi32_si128(static_cast<int>(table[static_cast<uint32_t>(both)]));
            return _mm_insert_epi32(first, static_cast<int>(table[both >> 32]), 1);
        };
        auto four = [&](__m128i indices) __attribute__((always_inline)) {
            return _mm_unpacklo_epi64(
                two(static_cast<uint64_t>(_mm_cvtsi128_si64(indices))),
                two(static_cast<uint64_t>(_mm_extract_epi64(indices, 1))));
        };
        return _mm256_set_m128i(four(high), four(low));
    }

    // Every lane whose bits in `stay` are 0 puts its low word out, in order of lanes.
    [[gnu::always_inline]] static __m256i emit(__m256i x, __m256i stay, uint16_t*& words) {
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
    [[gnu::always_inline]] static __m256i push_raw(__m256i x, const int32_t* row,
                                                   __m256i symbol, __m256i base,
                                                   uint16_t*& words) {
        // Zero and escape have none, nor has what is after the end.
        __m256i bits = raw_bits8(symbol);
        if (_mm256_testz_si256(bits, bits)) return x;
        __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
        __m256i a = _mm256_abs_epi32(_mm256_sub_epi32(c, base));
        __m256i high = _mm256_srlv_epi32(x, _mm256_sub_epi32(_mm256_set1_epi32(31), bits));
        x = emit(x, _mm256_cmpeq_epi32(high, _mm256_setzero_si256()), words);
        __m256i raw = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), bits), a);
        return _mm256_or_si256(_mm256_sllv_epi32(x, bits), raw);
    }

    // In stretches that stay in the nearest cache: first the coder's steps, then what the sink
    // makes of their symbols. Each has its constants in registers.
    template <int RowsLog, bool Raw, class Sink>
    static int64_t decode_rows(RowDecoder& d, int64_t wanted, Sink& sink) {
        constexpr int64_t R = 1 << RowsLog, kStretch = 64;
        alignas(32) uint32_t slots[kStretch * kLanes], raws[Raw ? kStretch * kLanes : 1];
        int64_t t = 0;
        while (t + R <= wanted) {
            const int64_t most = wanted - t < kStretch ? wanted - t : kStretch;
            const int64_t found = decode_stretch<RowsLog, Raw>(d, most, slots, raws);
            if (found == 0) break;
            for (int64_t i = 0; i < found; ++i) {
                const int64_t at = kLanes * i;
                i += sink.template rows<D, Raw>(t + i, found - i, slots + at,
                                                Raw ? raws + at : nullptr);
                if (i < found && !escaped_row<Raw>(d, t + i, slots + kLanes * i,
                                                   Raw ? raws + kLanes * i : nullptr, sink))
                    return -1;
            }
            t += found;
        }
        return t;
    }

    // The coder alone: slots, whose low bytes are the symbols, and raw bits of whole rounds of
    // R rows, as long as no read can pass the end.
    template <int RowsLog, bool Raw>
    [[gnu::noinline]] static int64_t decode_stretch(RowDecoder& d, int64_t wanted,
                                                    uint32_t* slots_out, uint32_t* raws_out) {
        constexpr int R = 1 << RowsLog;
        const __m256i offsets =
            d.plan_.tables == 8 ? _mm256_sllv_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                                    _mm256_set1_epi32(d.plan_.precision))
                                : _mm256_setzero_si256();
        const __m256i slot_mask = _mm256_set1_epi32((1 << d.plan_.precision) - 1);
        const __m128i shift = _mm_cvtsi32_si128(d.plan_.precision);
        const uint32_t* const slots = d.slots_;
        const uint8_t* at = d.at_;
        const uint8_t* const end = d.end_;
        __m256i* states = reinterpret_cast<__m256i*>(d.states);
        __m256i x[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) x[r] = _mm256_load_si256(states + r);
        int64_t t = 0;
        for (; t + R <= wanted && end - at >= 32 * R; t += R) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
                __m256i slot = look_up(
                    slots, _mm256_add_epi32(_mm256_and_si256(x[r], slot_mask), offsets));
                _mm256_store_si256(reinterpret_cast<__m256i*>(slots_out + kLanes * (t + r)),
                                   slot);
                x[r] = step(x[r], slot, shift, at);
                if constexpr (Raw) {
                    __m256i raw = _mm256_setzero_si256();
                    x[r] = take_raw(x[r], slot, raw, at);
                    _mm256_store_si256(reinterpret_cast<__m256i*>(raws_out + kLanes * (t + r)),
                                       raw);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) _mm256_store_si256(states + r, x[r]);
        d.at_ = at;
        return t;
    }

    // The next words, dealt out to the lanes in `take`.
    [[gnu::always_inline]] static __m256i deal(__m256i take, const uint8_t*& at) {
        unsigned lanes = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(take)));
        __m256i words =
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        at += 2 * __builtin_popcount(lanes);
        return _mm256_permutevar8x32_epi32(words, lane_order(kLaneOrders.deal[lanes]));
    }

    // States after the symbols of their slots.
    [[gnu::always_inline]] static __m256i step(__m256i x, __m256i slot, __m128i shift,
                                               const uint8_t*& at) {
        __m256i f = _mm256_and_si256(_mm256_srli_epi32(slot, 8), _mm256_set1_epi32(0xFFF));
        x = _mm256_srl_epi32(x, shift);
        // The table holds f - 1.
        x = _mm256_add_epi32(_mm256_add_epi32(_mm256_mullo_epi32(f, x), x),
                             _mm256_srli_epi32(slot, 20));
        // Every state below the lowest makes room for a word and takes it.
        __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kLowest)), x);
        x = _mm256_blendv_epi8(x, _mm256_slli_epi32(x, 16), low);
        return _mm256_or_si256(x, _mm256_and_si256(deal(low, at), low));
    }

    // States after the raw bits of their buckets.
    [[gnu::always_inline]] static __m256i take_raw(__m256i x, __m256i slot, __m256i& raw,
                                                   const uint8_t*& at) {
        __m256i bits = raw_bits8(_mm256_and_si256(slot, _mm256_set1_epi32(255)));
        if (_mm256_testz_si256(bits, bits)) return x;
        raw = _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), bits), x);
        x = _mm256_srlv_epi32(x, bits);
        __m256i low = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(kLowest)), x);
        __m256i full = _mm256_or_si256(_mm256_slli_epi32(x, 16), deal(low, at));
        return _mm256_blendv_epi8(x, full, low);
    }

    // A whole row by way of its codes, with the exceptions that it has.
    template <bool Raw, class Sink>
    [[gnu::noinline]] static bool escaped_row(RowDecoder& d, int64_t row, const uint32_t* slots,
                                              const uint32_t* raws, Sink& sink) {
        constexpr int kCount = 8 / D;
        __m256i codes[kCount], zeros[kCount], raw{};
        __m256i slot = _mm256_load_si256(reinterpret_cast<const __m256i*>(slots));
        if constexpr (Raw) raw = _mm256_load_si256(reinterpret_cast<const __m256i*>(raws));
        codes8<D, Raw>(slot, raw, codes, zeros);
        const __m256i base = _mm256_set1_epi32(d.plan_.base), none = _mm256_set1_epi32(kZero);
        alignas(32) int32_t lanes[kStride];
        alignas(32) uint32_t symbols[kLanes];
        for (int i = 0; i < kCount; ++i) {
            __m256i c = _mm256_add_epi32(codes[i], base);
            if (d.plan_.zero) c = _mm256_blendv_epi8(c, none, zeros[i]);
            _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + kLanes * i), c);
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(symbols),
                           _mm256_and_si256(slot, _mm256_set1_epi32(255)));
        constexpr int64_t kGroups = int64_t{1} << 32;  // all of the row's are there
        return d.template resolve<D>(symbols, row, kGroups, 0, lanes) &&
               d.template hand_on<D>(row, kGroups, lanes, sink);
    }
};

}  // namespace encke::ENCKE_ISA
