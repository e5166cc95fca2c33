// The common blocks of `fixed` with AVX2: 32 values that compute in float, codes of at most
// 16 bits. Whatever else a block is, the general path in fixed.cpp takes it. Few branches
// depend on a block's width: neighbouring blocks differ by a bit all the time.
#pragma once

#include "kernels/float8.hpp"
#include "kernels/planes.hpp"
#include "kernels/quantise.hpp"

namespace encke::ENCKE_ISA {

template <class T, int Kind>
class FastBlock {
  public:
    static constexpr bool kPossible = sizeof(typename T::Real) == 4 && Kind != ENCKE_POINTWISE;
    using Value = typename T::Value;

    // Writes the block at `to` and returns where it ends, or null if the block needs the
    // general path. May write up to 80 bytes.
    [[gnu::always_inline]] static uint8_t* encode(const Value* x, int64_t position,
                                                  const Dither& dither, const Scale<T>& scale,
                                                  uint8_t& head, uint8_t* to) {
        __m256 v[4], u[4];
        for (int g = 0; g < 4; ++g) v[g] = load8<T>(x + 8 * g);
        offsets(position, dither, u);
        const __m256 inverse = _mm256_set1_ps(scale.inverse[0]);
        __m256i c[4];
        for (int g = 0; g < 4; ++g) {
            __m256 t = _mm256_mul_ps(v[g], inverse);
            if constexpr (Kind != ENCKE_PLAIN) t = _mm256_add_ps(t, u[g]);
            c[g] = _mm256_cvtps_epi32(t);
        }
        uint8_t* end = scale.narrow ? encode_narrow(v, c, head, to) : nullptr;
        return end ? end : encode_wide(v, c, scale.limit[0], head, to);
    }

    // Reads the block at `from` and returns where it ends, or null if it needs the general
    // path, which then also finds what is wrong. Nothing at or behind `readable` is read.
    [[gnu::always_inline]] static const uint8_t* decode(uint8_t head, const uint8_t* from,
                                                        const uint8_t* readable,
                                                        int64_t position, const Dither& dither,
                                                        const Scale<T>& scale, Value* out,
                                                        bool streaming) {
        const int width = head & 31;
        const bool sparse = head & 64, is_unsigned = head & 128;
        if (width > 16 || (width == 0 && !is_unsigned) || readable - from < 96) return nullptr;
        const __m256 step = _mm256_set1_ps(scale.step[head >> 5 & 1]);
        __m256 u[4];
        offsets(position, dither, u);
        if (sparse || width > 7) return decode_rest(head, from, u, step, out, streaming);
        __m256i bytes = planes_to_bytes(load_planes(from, width));
        const __m256i sign =
            _mm256_set1_epi8(static_cast<char>(is_unsigned ? 0 : 1 << (width - 1)));
        bytes = _mm256_sub_epi8(_mm256_xor_si256(bytes, sign), sign);
        __m128i eighths[4];
        split(bytes, eighths);
        for (int g = 0; g < 4; ++g) {
            __m256 y = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eighths[g]));
            if constexpr (Kind != ENCKE_PLAIN) y = _mm256_sub_ps(y, u[g]);
            store8<T, Kind>(out + 8 * g, _mm256_mul_ps(y, step), _mm256_set1_epi32(-1),
                            streaming);
        }
        return from + 4 * width;
    }

  private:
    [[gnu::always_inline]] static void offsets(int64_t position, const Dither& dither,
                                               __m256* u) {
        if constexpr (Kind == ENCKE_DITHER) {
            uint32_t j = static_cast<uint32_t>(position) & ((1u << kPageBits) - 1);
            __m256i rotation;
            for (int g = 0; g < 4; g += 2) {
                __m256i h = dither.hash16(j + 8 * g);
                u[g] = Dither::offsets8<0>(h, rotation);
                u[g + 1] = Dither::offsets8<1>(h, rotation);
            }
        } else {
            (void)position, (void)dither;
            for (int g = 0; g < 4; ++g) u[g] = _mm256_set1_ps(0.5f);
        }
    }

    // Four vectors of ints to one of bytes, saturating, in the order of the values.
    static __m256i to_bytes(const __m256i* c) {
        __m256i v =
            _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
        return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }

    // 32 bytes as four times eight, each in the low half of a vector.
    static void split(__m256i bytes, __m128i* eighths) {
        __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
        eighths[0] = low;
        eighths[1] = _mm_unpackhi_epi64(low, low);
        eighths[2] = high;
        eighths[3] = _mm_unpackhi_epi64(high, high);
    }

    // The low 16 bits of sixteen ints, in order.
    static __m256i halves(__m256i a, __m256i b) {
        const __m256i low = _mm256_set1_epi32(0xFFFF);
        return _mm256_permute4x64_epi64(
            _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), 0xD8);
    }

    static uint8_t header(int width, bool sparse, bool negative) {
        return static_cast<uint8_t>(width | sparse << 6 | !negative << 7);
    }

    static bool is_sparse(int width, uint32_t mask) {
        if constexpr (Kind != ENCKE_PLAIN) return mask != ~0u;
        return 4 + (width * __builtin_popcount(mask) + 7) / 8 < 4 * width;
    }

    // Codes below 127. Packing saturates, so anything larger, and what is not finite, shows
    // as 127 or -128 and is left to the next path; no magnitude needs to be looked at.
    [[gnu::always_inline]] static uint8_t* encode_narrow(const __m256* v, const __m256i* c,
                                                         uint8_t& head, uint8_t* to) {
        __m256i bytes = to_bytes(c);
        [[maybe_unused]] __m256i keep{};
        uint32_t mask;
        if constexpr (Kind == ENCKE_PLAIN) {
            mask = ~static_cast<uint32_t>(
                _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256())));
        } else {
            const __m256 zero = _mm256_setzero_ps();
            __m256i z[4];
            for (int g = 0; g < 4; ++g)
                z[g] = _mm256_castps_si256(_mm256_cmp_ps(v[g], zero, _CMP_NEQ_UQ));
            keep = to_bytes(z);
            bytes = _mm256_and_si256(bytes, keep);
            mask = static_cast<uint32_t>(_mm256_movemask_epi8(keep));
        }
        if (!mask) {
            head = 0;
            return to;
        }
        const __m256i sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes);
        const __m256i folded = _mm256_xor_si256(bytes, sign);
        const bool negative = _mm256_movemask_epi8(sign) != 0;
        __m128i half =
            _mm_or_si128(_mm256_castsi256_si128(folded), _mm256_extracti128_si256(folded, 1));
        uint64_t any = static_cast<uint64_t>(_mm_cvtsi128_si64(half)) |
                       static_cast<uint64_t>(_mm_extract_epi64(half, 1));
        any |= any >> 32;
        any |= any >> 16;
        any = (any | any >> 8) & 127;
        if (any >= 64) {  // only then can a byte be 127
            const __m256i full = _mm256_set1_epi8(127);
            if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(folded, full))) return nullptr;
        }
        const int width = 64 - static_cast<int>(_lzcnt_u64(any)) + negative;
        const bool sparse = is_sparse(width, mask);
        head = header(width, sparse, negative);
        if (sparse) {
            if (width > 7) return nullptr;
            __m256i used = _mm256_set1_epi8(static_cast<char>((1 << width) - 1));
            if constexpr (Kind == ENCKE_PLAIN)
                used =
                    _mm256_andnot_si256(_mm256_cmpeq_epi8(bytes, _mm256_setzero_si256()), used);
            else
                used = _mm256_and_si256(keep, used);
            alignas(32) uint64_t words[4], masks[4];
            _mm256_store_si256(reinterpret_cast<__m256i*>(words), bytes);
            _mm256_store_si256(reinterpret_cast<__m256i*>(masks), used);
            return write_sparse(words, masks, 4, mask, to);
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes_to_planes(bytes));
        return to + 4 * width;
    }

    // Codes of at most 16 bits, in tier 0.
    [[gnu::noinline]] static uint8_t* encode_wide(const __m256* v, const __m256i* codes,
                                                  float limit, uint8_t& head, uint8_t* to) {
        const __m256i unsign = _mm256_set1_epi32(0x7FFFFFFF);
        __m256i most = _mm256_setzero_si256();
        for (int g = 0; g < 4; ++g)
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[g]), unsign));
        const __m256i above =
            _mm256_cmpgt_epi32(most, _mm256_set1_epi32(bit_cast<int32_t>(limit)));
        if (!_mm256_testz_si256(above, above)) return nullptr;
        __m256i c[4], z[4];
        for (int g = 0; g < 4; ++g) {
            if constexpr (Kind == ENCKE_PLAIN) {
                z[g] = _mm256_xor_si256(_mm256_cmpeq_epi32(codes[g], _mm256_setzero_si256()),
                                        _mm256_set1_epi32(-1));
                c[g] = codes[g];
            } else {
                z[g] =
                    _mm256_castps_si256(_mm256_cmp_ps(v[g], _mm256_setzero_ps(), _CMP_NEQ_OQ));
                c[g] = _mm256_and_si256(codes[g], z[g]);
            }
        }
        const uint32_t mask = static_cast<uint32_t>(_mm256_movemask_epi8(to_bytes(z)));
        if (!mask) {
            head = 0;
            return to;
        }
        // Width: the highest bit of any code, folded so that negative ones count too.
        __m256i any = _mm256_setzero_si256(), sign = _mm256_setzero_si256();
        for (int g = 0; g < 4; ++g) {
            __m256i s = _mm256_srai_epi32(c[g], 31);
            sign = _mm256_or_si256(sign, s);
            any = _mm256_or_si256(any, _mm256_xor_si256(c[g], s));
        }
        const bool negative = !_mm256_testz_si256(sign, sign);
        __m128i half =
            _mm_or_si128(_mm256_castsi256_si128(any), _mm256_extracti128_si256(any, 1));
        uint64_t folded = static_cast<uint64_t>(_mm_cvtsi128_si64(half)) |
                          static_cast<uint64_t>(_mm_extract_epi64(half, 1));
        const int width = bit_length(static_cast<uint32_t>(folded | folded >> 32)) + negative;
        const bool sparse = is_sparse(width, mask);
        if (width > (sparse ? 14 : 16)) return nullptr;
        head = header(width, sparse, negative);
        // 16-bit codes in the order of the values, then their low and their high bytes.
        __m256i a = halves(c[0], c[1]), b = halves(c[2], c[3]);
        if (sparse) {
            const __m256i used = _mm256_set1_epi16(static_cast<short>((1 << width) - 1));
            alignas(32) uint64_t words[8], masks[8];
            _mm256_store_si256(reinterpret_cast<__m256i*>(words), a);
            _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4), b);
            for (int g = 0; g < 2; ++g)
                _mm256_store_si256(reinterpret_cast<__m256i*>(masks + 4 * g),
                                   _mm256_and_si256(halves(z[2 * g], z[2 * g + 1]), used));
            return write_sparse(words, masks, 8, mask, to);
        }
        const __m256i low = _mm256_set1_epi16(255);
        __m256i bytes = _mm256_permute4x64_epi64(
            _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), 0xD8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes_to_planes(bytes));
        if (width > 8) {
            bytes = _mm256_permute4x64_epi64(
                _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)), 0xD8);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), bytes_to_planes(bytes));
        }
        return to + 4 * width;
    }

    // The bits of `words` that are set in `masks`, one after the other, behind the bitmap: one
    // pext drops the zeros and the unused bits of the other codes. At most 56 bits a word.
    static uint8_t* write_sparse(const uint64_t* words, const uint64_t* masks, int count,
                                 uint32_t bitmap, uint8_t* to) {
        write<uint32_t>(to, bitmap);
        to += 4;
        uint64_t pending = 0;
        int filled = 0;
        for (int g = 0; g < count; ++g) {
            pending |= _pext_u64(words[g], masks[g]) << filled;
            write<uint64_t>(to, pending);
            filled += __builtin_popcountll(masks[g]);
            to += filled >> 3;
            pending >>= filled & 56;
            filled &= 7;
        }
        return to + (filled > 0);
    }

    // Sparse blocks, and dense ones of 8 to 16 bits.
    [[gnu::noinline]] static const uint8_t* decode_rest(uint8_t head, const uint8_t* from,
                                                        const __m256* u, __m256 step,
                                                        Value* out, bool streaming) {
        const int width = head & 31;
        const bool sparse = head & 64, is_unsigned = head & 128;
        __m256i c[4], keep[4];
        if (!sparse) {
            __m128i low[4], high[4];
            split(planes_to_bytes(load_planes(from, width)), low);
            split(planes_to_bytes(load_planes(from + 32, width - 8)), high);
            for (int g = 0; g < 4; ++g) {
                c[g] = _mm256_or_si256(_mm256_cvtepu8_epi32(low[g]),
                                       _mm256_slli_epi32(_mm256_cvtepu8_epi32(high[g]), 8));
                keep[g] = _mm256_set1_epi32(-1);
            }
            from += 4 * width;
        } else if (width <= 7) {
            from = read_bytes(from, width, c, keep);
        } else if (width <= 14) {
            from = read_words(from, width, c, keep);
        } else {
            return nullptr;
        }
        const __m256i sign = _mm256_set1_epi32(is_unsigned ? 0 : 1 << (width - 1));
        for (int g = 0; g < 4; ++g) {
            __m256i code = _mm256_sub_epi32(_mm256_xor_si256(c[g], sign), sign);
            __m256 y = _mm256_cvtepi32_ps(code);
            if constexpr (Kind != ENCKE_PLAIN) y = _mm256_sub_ps(y, u[g]);
            y = _mm256_mul_ps(y, step);
            if constexpr (Kind == ENCKE_PLAIN)
                y = _mm256_and_ps(y, _mm256_castsi256_ps(keep[g]));
            store8<T, Kind>(out + 8 * g, y, keep[g], streaming);
        }
        return from;
    }

    // The inverse of write_sparse for codes of at most 7 bits, as ints, with all bits set in
    // `keep` where a code is.
    static const uint8_t* read_bytes(const uint8_t* from, int width, __m256i* c,
                                     __m256i* keep) {
        const __m256i whole = spread_bits(read<uint32_t>(from));
        const __m256i used = _mm256_set1_epi8(static_cast<char>((1 << width) - 1));
        alignas(32) uint64_t masks[4];
        _mm256_store_si256(reinterpret_cast<__m256i*>(masks), _mm256_and_si256(whole, used));
        __m128i eighths[4];
        split(whole, eighths);
        from += 4;
        int bit = 0;
        for (int g = 0; g < 4; ++g) {
            const uint64_t bits = read<uint64_t>(from + (bit >> 3)) >> (bit & 7);
            bit += __builtin_popcountll(masks[g]);
            c[g] = _mm256_cvtepu8_epi32(
                _mm_cvtsi64_si128(static_cast<int64_t>(_pdep_u64(bits, masks[g]))));
            keep[g] = _mm256_cvtepi8_epi32(eighths[g]);
        }
        return from + ((bit + 7) >> 3);
    }

    // The same for codes of at most 14 bits.
    static const uint8_t* read_words(const uint8_t* from, int width, __m256i* c,
                                     __m256i* keep) {
        constexpr uint64_t kOnes = 0x0001000100010001u;
        const uint64_t used = kOnes * ((1u << width) - 1);
        const uint32_t mask = read<uint32_t>(from);
        from += 4;
        int bit = 0;
        for (int g = 0; g < 4; ++g) {
            int64_t code[2], whole[2];
            for (int h = 0; h < 2; ++h) {
                const uint64_t here = mask >> (8 * g + 4 * h) & 15;
                const uint64_t present = _pdep_u64(here, kOnes) * 65535;
                const uint64_t bits = read<uint64_t>(from + (bit >> 3)) >> (bit & 7);
                bit += width * __builtin_popcountll(here);
                code[h] = static_cast<int64_t>(_pdep_u64(bits, present & used));
                whole[h] = static_cast<int64_t>(present);
            }
            c[g] = _mm256_cvtepu16_epi32(_mm_set_epi64x(code[1], code[0]));
            keep[g] = _mm256_cvtepi16_epi32(_mm_set_epi64x(whole[1], whole[0]));
        }
        return from + ((bit + 7) >> 3);
    }

    // Bytes that are 255 where the corresponding bit of `bits` is set.
    static __m256i spread_bits(uint32_t bits) {
        const __m256i byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                                              2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
        const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
        __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte);
        return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
    }
};

}  // namespace encke::ENCKE_ISA
