// Eight values of a type that computes in float, at once.
#pragma once

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

#ifdef __AVX2__
// Eight values as floats, and eight floats as values.
template <class T>
inline __m256 load8(const typename T::Value* x) {
    if constexpr (T::kDtype == ENCKE_F32) {
        return _mm256_loadu_ps(x);
    } else {
        __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
        if constexpr (T::kDtype == ENCKE_F16) return _mm256_cvtph_ps(v);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    }
}

// `keep` has all bits set where a value is not zero; used for kinds other than plain.
template <class T, int Kind>
inline void store8(typename T::Value* out, __m256 y, __m256i keep, bool streaming) {
    if constexpr (T::kDtype == ENCKE_F32) {
        if constexpr (Kind != ENCKE_PLAIN) y = _mm256_and_ps(y, _mm256_castsi256_ps(keep));
        if (streaming)
            _mm256_stream_ps(out, y);
        else
            _mm256_storeu_ps(out, y);
    } else {
        __m128i v;
        if constexpr (T::kDtype == ENCKE_F16) {
            v = _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        } else {
            __m256i bits = _mm256_castps_si256(y);
            __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
            bits = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
            bits = _mm256_srli_epi32(bits, 16);
            v = _mm_packus_epi32(_mm256_castsi256_si128(bits),
                                 _mm256_extracti128_si256(bits, 1));
        }
        if constexpr (Kind != ENCKE_PLAIN) {
            // Not marked as zero but rounded to it: the smallest subnormal instead.
            __m128i magnitude = _mm_and_si128(v, _mm_set1_epi16(0x7FFF));
            __m128i lost = _mm_cmpeq_epi16(magnitude, _mm_setzero_si128());
            v = _mm_or_si128(v, _mm_and_si128(lost, _mm_set1_epi16(1)));
            v = _mm_and_si128(v, _mm_packs_epi32(_mm256_castsi256_si128(keep),
                                                 _mm256_extracti128_si256(keep, 1)));
        }
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), v);
    }
}

#endif

}  // namespace encke::ENCKE_ISA
