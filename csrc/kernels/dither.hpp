// Subtractive dither of docs/format.md, section 4: counter-based, so that the decoder
// repeats it at any position.
#pragma once

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

constexpr int kPageBits = 16;

// The generator of one page of 65,536 positions.
struct Dither {
    uint32_t k0, k1;

    Dither(uint64_t seed, int64_t position) {
        uint64_t page = static_cast<uint64_t>(position) >> kPageBits;
        uint64_t z = seed + (page + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        k0 = static_cast<uint32_t>(z);
        k1 = static_cast<uint32_t>(z >> 32);
    }

    uint32_t hash(uint32_t counter) const {
        uint32_t h = counter ^ k0;
        h = (h ^ h >> 16) * 0x85EBCA6Bu;
        h ^= k1;
        h = (h ^ h >> 13) * 0xC2B2AE35u;
        return h ^ h >> 16;
    }

    // Two neighbouring groups share their hashes and take different bits of them.
    static uint32_t counter(uint32_t j) { return (j >> 4) * 8 + (j & 7); }

    // The rotation of the group that position j is in.
    uint32_t rotation(uint32_t j) const {
        return hash(counter(j & ~7u)) >> (29 - 3 * (j >> 3 & 1)) & 7;
    }

    // m of position j in 0..65535; its class is m >> 13.
    uint32_t level(uint32_t j) const {
        uint32_t cls = (j + rotation(j)) & 7;
        return cls << 13 | (hash(counter(j)) >> 13 * (j >> 3 & 1) & 8191);
    }

#ifdef __AVX2__
    // The counters of the sixteen positions from j on (a multiple of 16).
    static __m256i counters(uint32_t j) {
        return _mm256_or_si256(_mm256_set1_epi32(static_cast<int>(j >> 1)),
                               _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }

    // Their hashes.
    static __m256i hash8(__m256i h, __m256i k0, __m256i k1) {
        h = _mm256_xor_si256(h, k0);
        h = _mm256_mullo_epi32(_mm256_xor_si256(h, _mm256_srli_epi32(h, 16)),
                               _mm256_set1_epi32(static_cast<int>(0x85EBCA6Bu)));
        h = _mm256_xor_si256(h, k1);
        h = _mm256_mullo_epi32(_mm256_xor_si256(h, _mm256_srli_epi32(h, 13)),
                               _mm256_set1_epi32(static_cast<int>(0xC2B2AE35u)));
        return _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
    }
    __m256i hash16(uint32_t j) const {
        return hash8(counters(j), _mm256_set1_epi32(static_cast<int>(k0)),
                     _mm256_set1_epi32(static_cast<int>(k1)));
    }

    // u in two parts, each of which is exact: what a class gives, and what the fraction does.
    static __m256 class_part() {
        constexpr float zero = 0x1p-17f - 0.625f;
        return _mm256_setr_ps(zero, zero + 0.125f, zero + 0.25f, zero + 0.375f, zero + 0.5f,
                              zero + 0.625f, zero + 0.75f, zero + 0.875f);
    }
    template <int Half>
    static __m256 fraction_part(__m256i h) {
        // The fraction becomes the top of the mantissa of a number from 1/8 to 1/4.
        __m256i top = Half ? _mm256_srli_epi32(h, 3) : _mm256_slli_epi32(h, 10);
        return _mm256_castsi256_ps(
            _mm256_or_si256(_mm256_and_si256(top, _mm256_set1_epi32(0x007FFC00)),
                            _mm256_set1_epi32(0x3E000000)));
    }
    // The rotation of a group in the three low bits of every lane.
    template <int Half>
    static __m256i rotation8(__m256i h) {
        return _mm256_srli_epi32(_mm256_broadcastd_epi32(_mm256_castsi256_si128(h)),
                                 Half ? 26 : 29);
    }

    // u of the group at j (a multiple of 8) from the hashes of its sixteen positions, and
    // its rotation in every lane (three low bits).
    template <int Half>
    static __m256 offsets8(__m256i h, __m256i& rotation) {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        rotation = rotation8<Half>(h);
        __m256 base = _mm256_permutevar8x32_ps(class_part(), _mm256_add_epi32(lanes, rotation));
        return _mm256_add_ps(fraction_part<Half>(h), base);
    }

    // The same for one group, wherever it starts.
    __m256 offsets8(uint32_t j, __m256i& rotation) const {
        __m256i h = hash16(j & ~15u);
        return j & 8 ? offsets8<1>(h, rotation) : offsets8<0>(h, rotation);
    }
    __m256 offsets8(uint32_t j) const {
        __m256i rotation;
        return offsets8(j, rotation);
    }
#endif
};

template <class Real>
inline Real dither_offset(uint32_t level) {
    return static_cast<Real>(level) * static_cast<Real>(0x1p-16) +
           static_cast<Real>(0x1p-17 - 0.5);
}

}  // namespace encke::ENCKE_ISA
