// One bit a value, as codec `mask` lays them (docs/format.md, section 10).
#pragma once

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

inline bool bit(const uint8_t* bits, int64_t i) { return bits[i / 8] >> i % 8 & 1; }

inline bool has_size(int64_t bytes, int64_t count) {
    return bytes == count / 8 + (count % 8 != 0);
}

#ifdef __AVX2__
// Eight bits as eight masks of 32.
inline __m256 lanes_of(uint8_t bits) {
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i v = _mm256_and_si256(_mm256_set1_epi32(bits), own);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(v, own));
}
#endif

// Runs f(begin, end, c) on the stretches of [begin, end) that lie in one channel each.
template <class F>
inline void for_runs(int64_t begin, int64_t end, int64_t channels, int64_t inner, F f) {
    for (int64_t i = begin; i < end;) {
        int64_t plane = i / inner, stop = (plane + 1) * inner;
        if (stop > end) stop = end;
        f(i, stop, plane % channels);
        i = stop;
    }
}

}  // namespace encke::ENCKE_ISA
