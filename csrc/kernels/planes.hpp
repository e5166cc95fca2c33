// 32 codes of w bits as w bit planes, and back. Plane p holds bit p of every code.
#pragma once

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

inline int bit_length(uint32_t v) { return v ? 32 - __builtin_clz(v) : 0; }

// 8x8 bit transpose of the bytes of v (Hacker's Delight, section 7-3): bit c of byte r
// goes to bit r of byte c.
inline uint64_t transpose8(uint64_t v) {
    uint64_t t = (v ^ (v >> 7)) & 0x00AA00AA00AA00AAu;
    v ^= t ^ (t << 7);
    t = (v ^ (v >> 14)) & 0x0000CCCC0000CCCCu;
    v ^= t ^ (t << 14);
    t = (v ^ (v >> 28)) & 0x00000000F0F0F0F0u;
    return v ^ t ^ (t << 28);
}

#ifdef __AVX2__
// Packing ints to bytes leaves value 8g + 4h + j in lane h, at byte 4g + j. In this order a
// transposition needs but one exchange between lanes.

// Of 4x4 bits, in the low and in the high halves of the bytes of each int: bit c of byte r
// goes to bit r of byte c.
inline __m256i transpose4(__m256i v) {
    const __m256i m1 = _mm256_set1_epi32(0x00AA00AA);
    const __m256i m2 = _mm256_set1_epi32(0x0000CCCC);
    __m256i t = _mm256_and_si256(_mm256_xor_si256(v, _mm256_srli_epi32(v, 7)), m1);
    v = _mm256_xor_si256(v, _mm256_xor_si256(t, _mm256_slli_epi32(t, 7)));
    t = _mm256_and_si256(_mm256_xor_si256(v, _mm256_srli_epi32(v, 14)), m2);
    return _mm256_xor_si256(v, _mm256_xor_si256(t, _mm256_slli_epi32(t, 14)));
}

// The high halves of the low lane's bytes for the low halves of the high lane's.
inline __m256i exchange_halves(__m256i v) {
    const __m256i stays = _mm256_setr_epi32(0x0F0F0F0F, 0x0F0F0F0F, 0x0F0F0F0F, 0x0F0F0F0F,
                                            ~0x0F0F0F0F, ~0x0F0F0F0F, ~0x0F0F0F0F, ~0x0F0F0F0F);
    __m256i moves = _mm256_permute4x64_epi64(_mm256_andnot_si256(stays, v), 0x4E);
    moves = _mm256_sllv_epi32(moves, _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0));
    moves = _mm256_srlv_epi32(moves, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return _mm256_or_si256(_mm256_and_si256(stays, v), moves);
}

// Byte 4a + b of each lane to byte 4b + a.
inline __m256i transpose_bytes(__m256i v) {
    const __m256i fours =
        _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1,
                         5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm256_shuffle_epi8(v, fours);
}

// 32 bytes in the order of packing to eight planes of 32 bits, and back.
inline __m256i packed_to_planes(__m256i bytes) {
    return transpose_bytes(transpose4(exchange_halves(bytes)));
}
inline __m256i planes_to_packed(__m256i planes) {
    return exchange_halves(transpose4(transpose_bytes(planes)));
}

// The first `count` of eight planes at `from`, the others zero. Reads 32 bytes.
inline __m256i load_planes(const uint8_t* from, int count) {
    alignas(32) static constexpr int32_t kThere[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm256_and_si256(
        v, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kThere + 8 - count)));
}
#endif

// Eight planes of one byte of each code: the byte is `codes[i] >> shift & 255`.
inline void byte_planes(const int32_t* codes, int shift, uint32_t planes[8]) {
#ifdef __AVX2__
    const __m256i* c = reinterpret_cast<const __m256i*>(codes);
    const __m256i low = _mm256_set1_epi32(255);
    const __m128i by = _mm_cvtsi32_si128(shift);
    __m256i a = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(c), by), low);
    __m256i b = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(c + 1), by), low);
    __m256i d = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(c + 2), by), low);
    __m256i e = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(c + 3), by), low);
    __m256i v = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(d, e));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(planes), packed_to_planes(v));
#else
    for (int p = 0; p < 8; ++p) planes[p] = 0;
    for (int g = 0; g < 4; ++g) {
        uint64_t bytes = 0;
        for (int i = 0; i < 8; ++i)
            bytes |=
                static_cast<uint64_t>(static_cast<uint32_t>(codes[8 * g + i]) >> shift & 255)
                << 8 * i;
        bytes = transpose8(bytes);
        for (int p = 0; p < 8; ++p)
            planes[p] |= static_cast<uint32_t>(bytes >> 8 * p & 255) << 8 * g;
    }
#endif
}

// All planes of 32 codes. planes has room for `width` rounded up to a multiple of 8.
inline void split_planes(const int32_t* codes, int width, uint32_t* planes) {
    for (int shift = 0; shift < width; shift += 8) byte_planes(codes, shift, planes + shift);
}

// The inverse: w planes to codes, sign-extended unless `is_unsigned`.
inline void join_planes(const uint32_t* planes, int width, bool is_unsigned, int32_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = 0;
    for (int shift = 0; shift < width; shift += 8) {
        for (int g = 0; g < 4; ++g) {
            uint64_t bytes = 0;
            for (int p = 0; p < 8 && shift + p < width; ++p)
                bytes |= static_cast<uint64_t>(planes[shift + p] >> 8 * g & 255) << 8 * p;
            bytes = transpose8(bytes);
            for (int i = 0; i < 8; ++i)
                codes[8 * g + i] |= static_cast<int32_t>((bytes >> 8 * i & 255) << shift);
        }
    }
    if (!is_unsigned && width > 0) {
        uint32_t sign = uint32_t{1} << (width - 1);
        for (int i = 0; i < 32; ++i)
            codes[i] = static_cast<int32_t>((static_cast<uint32_t>(codes[i]) ^ sign) - sign);
    }
}

}  // namespace encke::ENCKE_ISA
