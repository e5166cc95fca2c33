// What coding and decoding blocks of `fixed` with AVX2 share.
//
// Neighbouring blocks differ in width, and in being sparse or not, too irregularly for a
// processor to foresee: a branch on it costs more than the work it saves. So a chunk is taken
// in steps. First every block's width and place are found without a branch, and its number is
// put on the list of blocks alike; then each list is gone through by a loop of its own.
#pragma once

#include "kernels/float8.hpp"
#include "kernels/planes.hpp"
#include "kernels/quantise.hpp"

namespace encke::ENCKE_ISA {

constexpr int kBlocks = 256;  // of a chunk

// What a block is to these loops. The `narrow` have codes of a byte, the `wide` of two; for
// the encoder the `short` have at most four bits, and the `byte` ones exactly eight.
enum Class {
    kDenseNarrow,
    kDenseWide,
    kSparseNarrow,
    kSparseWide,
    kZero,
    kGeneral,
    kSparseShort,
    kSparseByte,
    kClasses
};

// The numbers of the blocks of each class, in order.
struct ClassLists {
    int count[kClasses];
    uint8_t list[kClasses][kBlocks + 8];

    void clear() {
        for (int& n : count) n = 0;
    }
    // Adds those of the eight blocks from `block` on whose bits are set.
    [[gnu::always_inline]] void add(int kind, int block, uint32_t bits) {
        constexpr uint64_t kOnes = 0x0101010101010101u;
        const uint64_t numbers = 0x0706050403020100u + kOnes * static_cast<uint64_t>(block);
        const uint64_t there = _pdep_u64(bits, kOnes) * 255;
        write<uint64_t>(list[kind] + count[kind], _pext_u64(numbers, there));
        count[kind] += static_cast<int>(_mm_popcnt_u32(bits));
    }
};

// The kinds and types whose blocks these loops take.
template <class T, int Kind>
constexpr bool kFast = sizeof(typename T::Real) == 4 && Kind != ENCKE_POINTWISE;

// Offsets u of the 32 positions from `position` on, in the page that `dither` is for.
template <int Kind>
[[gnu::always_inline]] inline void block_offsets(int64_t position, const Dither& dither,
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

// Bytes that are 255 where the corresponding bit of `bits` is set.
inline __m256i spread_bits(uint32_t bits) {
    const __m256i byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                          2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

inline __m256i load32(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline void store32(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }

}  // namespace encke::ENCKE_ISA
