// The common blocks of `fixed` with AVX2: 32 values that compute in float, codes of at most
// 16 bits. Whatever else a block is, the general path in fixed.cpp takes it. No branch
// depends on a block's width: neighbouring blocks differ by a bit all the time.
#pragma once

#include "kernels/float8.hpp"
#include "kernels/planes.hpp"
#include "kernels/quantise.hpp"

namespace encke::ENCKE_ISA {

template <class T, int Kind>
struct FastBlock {
    static constexpr bool kPossible = sizeof(typename T::Real) == 4 && Kind != ENCKE_POINTWISE;
    using Value = typename T::Value;

    // False if the block needs the general path; then nothing is written. May write up to
    // 80 bytes at `to`.
    static bool encode(const Value* x, int64_t position, const Dither& dither,
                       const Scale<T>& scale, uint8_t& head, uint8_t*& to) {
        const __m256i unsign = _mm256_set1_epi32(0x7FFFFFFF);
        __m256 v[4];
        for (int g = 0; g < 4; ++g) v[g] = load8<T>(x + 8 * g);
        __m256i m[4];
        for (int g = 0; g < 4; ++g) m[g] = _mm256_and_si256(_mm256_castps_si256(v[g]), unsign);
        __m256i most =
            _mm256_max_epi32(_mm256_max_epi32(m[0], m[1]), _mm256_max_epi32(m[2], m[3]));
        const __m256i above =
            _mm256_cmpgt_epi32(most, _mm256_set1_epi32(bit_cast<int32_t>(scale.limit[0])));
        if (!_mm256_testz_si256(above, above)) return false;
        __m256 u[4];
        offsets(position, dither, u);
        const __m256 inverse = _mm256_set1_ps(scale.inverse[0]);
        __m256i c[4];
        for (int g = 0; g < 4; ++g) {
            __m256 t = _mm256_mul_ps(v[g], inverse);
            if constexpr (Kind != ENCKE_PLAIN) t = _mm256_add_ps(t, u[g]);
            c[g] = _mm256_cvtps_epi32(t);
        }
        uint32_t mask;
        if constexpr (Kind == ENCKE_PLAIN) {
            const __m256i zero = _mm256_setzero_si256();
            __m256i some =
                _mm256_or_si256(_mm256_or_si256(c[0], c[1]), _mm256_or_si256(c[2], c[3]));
            if (_mm256_testz_si256(some, some)) {
                head = 0;
                return true;
            }
            __m256i z[4];
            for (int g = 0; g < 4; ++g) z[g] = _mm256_cmpeq_epi32(c[g], zero);
            mask = ~static_cast<uint32_t>(_mm256_movemask_epi8(to_bytes(z)));
        } else {
            const __m256 zero = _mm256_setzero_ps();
            __m256i z[4];
            for (int g = 0; g < 4; ++g) {
                z[g] = _mm256_castps_si256(_mm256_cmp_ps(v[g], zero, _CMP_NEQ_OQ));
                c[g] = _mm256_and_si256(c[g], z[g]);
            }
            mask = static_cast<uint32_t>(_mm256_movemask_epi8(to_bytes(z)));
            if (!mask) {
                head = 0;
                return true;
            }
        }
        // Width: the highest bit of any code, folded so that negative ones count too.
        __m256i any = _mm256_setzero_si256(), sign = _mm256_setzero_si256();
        for (int g = 0; g < 4; ++g) {
            __m256i s = _mm256_srai_epi32(c[g], 31);
            sign = _mm256_or_si256(sign, s);
            any = _mm256_or_si256(any, _mm256_xor_si256(c[g], s));
        }
        const int negative = !_mm256_testz_si256(sign, sign);
        __m128i half =
            _mm_or_si128(_mm256_castsi256_si128(any), _mm256_extracti128_si256(any, 1));
        uint64_t folded = static_cast<uint64_t>(_mm_cvtsi128_si64(half)) |
                          static_cast<uint64_t>(_mm_extract_epi64(half, 1));
        const int width = bit_length(static_cast<uint32_t>(folded | folded >> 32)) + negative;
        const int kept = __builtin_popcount(mask);
        const bool sparse =
            Kind == ENCKE_PLAIN ? 4 + (width * kept + 7) / 8 < 4 * width : mask != ~0u;
        head = static_cast<uint8_t>(width | sparse << 6 | !negative << 7);
        if (sparse) return width <= 14 && encode_sparse(c, width, mask, to);
        if (width > 16) return false;
        // 16-bit codes in the order of the values, then their low and their high bytes.
        __m256i a = halves(c[0], c[1]), b = halves(c[2], c[3]);
        const __m256i low = _mm256_set1_epi16(255);
        __m256i bytes = _mm256_permute4x64_epi64(
            _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), 0xD8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes_to_planes(bytes));
        if (width > 8) {
            bytes = _mm256_permute4x64_epi64(
                _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)), 0xD8);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), bytes_to_planes(bytes));
        }
        to += 4 * width;
        return true;
    }

    // False if the block needs the general path, which then also finds what is wrong.
    // Nothing at or behind `readable` is read.
    static bool decode(uint8_t head, const uint8_t*& from, const uint8_t* readable,
                       int64_t position, const Dither& dither, const Scale<T>& scale,
                       Value* out, bool streaming) {
        const int width = head & 31;
        const bool sparse = head & 64, is_unsigned = head & 128;
        if (width > 16 || (width == 0 && !is_unsigned) || readable - from < 96) return false;
        __m256i c[4], keep[4];
        if (!sparse) {
            __m256i bytes = planes_to_bytes(load_planes(from, width));
            __m128i low = _mm256_castsi256_si128(bytes),
                    high = _mm256_extracti128_si256(bytes, 1);
            c[0] = _mm256_cvtepu8_epi32(low);
            c[1] = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(low, low));
            c[2] = _mm256_cvtepu8_epi32(high);
            c[3] = _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(high, high));
            if (width > 8) {
                bytes = planes_to_bytes(load_planes(from + 32, width - 8));
                low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
                const __m128i eighths[4] = {low, _mm_unpackhi_epi64(low, low), high,
                                            _mm_unpackhi_epi64(high, high)};
                for (int g = 0; g < 4; ++g)
                    c[g] = _mm256_or_si256(
                        c[g], _mm256_slli_epi32(_mm256_cvtepu8_epi32(eighths[g]), 8));
            }
            from += 4 * width;
            for (int g = 0; g < 4; ++g) keep[g] = _mm256_set1_epi32(-1);
        } else if (width <= 7) {
            decode_bytes(from, width, c, keep);
        } else if (width <= 14) {
            decode_words(from, width, c, keep);
        } else {
            return false;
        }
        const __m256i sign = _mm256_set1_epi32(is_unsigned ? 0 : 1 << (width - 1));
        const __m256 step = _mm256_set1_ps(scale.step[head >> 5 & 1]);
        __m256 u[4];
        offsets(position, dither, u);
        for (int g = 0; g < 4; ++g) {
            __m256i code = _mm256_sub_epi32(_mm256_xor_si256(c[g], sign), sign);
            __m256 y = _mm256_cvtepi32_ps(code);
            if constexpr (Kind != ENCKE_PLAIN) y = _mm256_sub_ps(y, u[g]);
            y = _mm256_mul_ps(y, step);
            if constexpr (Kind == ENCKE_PLAIN)
                y = _mm256_and_ps(y, _mm256_castsi256_ps(keep[g]));
            store8<T, Kind>(out + 8 * g, y, keep[g], streaming);
        }
        return true;
    }

  private:
    static void offsets(int64_t position, const Dither& dither, __m256* u) {
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

    // Four vectors of 0 or -1 to one of bytes, in the order of the values.
    static __m256i to_bytes(const __m256i* c) {
        __m256i v =
            _mm256_packs_epi16(_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3]));
        return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }

    // The low 16 bits of sixteen ints, in order.
    static __m256i halves(__m256i a, __m256i b) {
        const __m256i low = _mm256_set1_epi32(0xFFFF);
        return _mm256_permute4x64_epi64(
            _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), 0xD8);
    }

    // Bytes (7 bits and less) or 16-bit words of eight or four codes at a time: one pext
    // drops the zeros and the unused bits of the others.
    static bool encode_sparse(const __m256i* c, int width, uint32_t mask, uint8_t*& to) {
        write<uint32_t>(to, mask);
        to += 4;
        alignas(32) uint64_t words[8];
        __m256i a = halves(c[0], c[1]), b = halves(c[2], c[3]);
        uint64_t pending = 0;
        int filled = 0;
        auto append = [&](uint64_t bits, int count) {
            pending |= bits << filled;
            write<uint64_t>(to, pending);
            filled += count;
            to += filled >> 3;
            // What is left is less than a byte; shifting by 64 must not happen.
            pending = filled >= 8 ? bits >> 1 >> (count - (filled & 7) - 1) : pending;
            filled &= 7;
        };
        if (width <= 7) {
            const __m256i low = _mm256_set1_epi16(255);
            __m256i bytes = _mm256_permute4x64_epi64(
                _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)), 0xD8);
            _mm256_store_si256(reinterpret_cast<__m256i*>(words), bytes);
            const uint64_t used = 0x0101010101010101u * ((1u << width) - 1);
            for (int g = 0; g < 4; ++g) {
                uint64_t eight = mask >> 8 * g & 255;
                uint64_t present = _pdep_u64(eight, 0x0101010101010101u) * 255;
                append(_pext_u64(words[g], present & used), width * __builtin_popcount(eight));
            }
        } else {
            _mm256_store_si256(reinterpret_cast<__m256i*>(words), a);
            _mm256_store_si256(reinterpret_cast<__m256i*>(words + 4), b);
            const uint64_t used = 0x0001000100010001u * ((1u << width) - 1);
            for (int g = 0; g < 8; ++g) {
                uint64_t four = mask >> 4 * g & 15;
                uint64_t present = _pdep_u64(four, 0x0001000100010001u) * 65535;
                append(_pext_u64(words[g], present & used), width * __builtin_popcount(four));
            }
        }
        to += filled > 0;
        return true;
    }

    static void decode_bytes(const uint8_t*& from, int width, __m256i* c, __m256i* keep) {
        const uint32_t mask = read<uint32_t>(from);
        from += 4;
        const uint64_t used = 0x0101010101010101u * ((1u << width) - 1);
        int bit = 0;
        for (int g = 0; g < 4; ++g) {
            uint64_t eight = mask >> 8 * g & 255;
            uint64_t present = _pdep_u64(eight, 0x0101010101010101u) * 255;
            uint64_t bits = read<uint64_t>(from + (bit >> 3)) >> (bit & 7);
            bit += width * __builtin_popcount(eight);
            c[g] = _mm256_cvtepu8_epi32(
                _mm_cvtsi64_si128(static_cast<int64_t>(_pdep_u64(bits, present & used))));
            keep[g] = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(present)));
        }
        from += (bit + 7) >> 3;
    }

    static void decode_words(const uint8_t*& from, int width, __m256i* c, __m256i* keep) {
        const uint32_t mask = read<uint32_t>(from);
        from += 4;
        const uint64_t used = 0x0001000100010001u * ((1u << width) - 1);
        int bit = 0;
        for (int g = 0; g < 4; ++g) {
            int64_t code[2], whole[2];
            for (int h = 0; h < 2; ++h) {
                uint64_t four = mask >> (8 * g + 4 * h) & 15;
                uint64_t present = _pdep_u64(four, 0x0001000100010001u) * 65535;
                uint64_t bits = read<uint64_t>(from + (bit >> 3)) >> (bit & 7);
                bit += width * __builtin_popcount(four);
                code[h] = static_cast<int64_t>(_pdep_u64(bits, present & used));
                whole[h] = static_cast<int64_t>(present);
            }
            c[g] = _mm256_cvtepu16_epi32(_mm_set_epi64x(code[1], code[0]));
            keep[g] = _mm256_cvtepi16_epi32(_mm_set_epi64x(whole[1], whole[0]));
        }
        from += (bit + 7) >> 3;
    }
};

}  // namespace encke::ENCKE_ISA
