// Rows of decoded symbols straight to values, without codes in between. Included at the end of
// values.hpp.
#pragma once

#include "kernels/values.hpp"

namespace encke::ENCKE_ISA {

// Where the values of a chunk's whole rows go.
template <class T, int Kind>
class ValueRows {
  public:
    using Value = typename T::Value;
    using Real = typename T::Real;

    ValueRows(Real step, const Dither& dither, const Plan& plan, Value* out, bool streaming)
        : step_(static_cast<float>(step)),
          dither_(dither),
          plan_(plan),
          out_(out),
          streaming_(streaming) {}

    // Takes rows up to one that has an escape; returns how many. None where values are not
    // computed in float, or in kind pointwise.
    template <int D, bool Raw>
    int64_t take(int64_t row, int64_t rows, const uint32_t* slots, const uint32_t* raws) const {
        if constexpr (sizeof(Real) != 4 || Kind == ENCKE_POINTWISE) {
            return 0;
        } else {
            constexpr bool kZero = Kind != ENCKE_PLAIN;
            // Codes without raw bits are within 15 of the base: small enough, unless it is
            // not, for c - u to be exact in whatever order its parts are added.
            const bool small = !Raw && plan_.base >= -32 && plan_.base <= 32;
            if (kZero && plan_.zero)
                return small ? restore<D, Raw, !Raw, kZero>(row, rows, slots, raws)
                             : restore<D, Raw, false, kZero>(row, rows, slots, raws);
            return small ? restore<D, Raw, !Raw, false>(row, rows, slots, raws)
                         : restore<D, Raw, false, false>(row, rows, slots, raws);
        }
    }

  private:
    static constexpr bool kDither = Kind == ENCKE_DITHER;

    const float step_;
    const Dither dither_;
    const Plan plan_;
    Value* const out_;
    const bool streaming_;

    template <int D, bool Raw, bool Small, bool Zero>
    [[gnu::noinline]] int64_t restore(int64_t row, int64_t rows, const uint32_t* slots,
                                      const uint32_t* raws) const {
        constexpr int kCount = 8 / D, kStride = kLanes * kCount;
        // Half-width types tell zeros apart even where none is marked.
        constexpr int kStore = T::kDtype == ENCKE_F32 && !Zero ? int{ENCKE_PLAIN} : Kind;
        const __m256i k0 = _mm256_set1_epi32(static_cast<int>(dither_.k0));
        const __m256i k1 = _mm256_set1_epi32(static_cast<int>(dither_.k1));
        const __m256 step = _mm256_set1_ps(step_);
        const __m256i lanes = hoisted(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        const __m256i eight = hoisted(_mm256_set1_epi32(8));
        const __m256i base = _mm256_set1_epi32(plan_.base);
        // What a small code has added to it in its lane, before it goes to its position.
        const __m256 constant = _mm256_sub_ps(
            _mm256_cvtepi32_ps(base),
            kDither ? Dither::class_part() : _mm256_set1_ps(Kind == ENCKE_HALF ? 0.5f : 0.0f));
        const bool streaming = streaming_;
        __m256i counters = Dither::counters(static_cast<uint32_t>(kStride * row) & ~15u);
        __m256i hashes{};
        auto next_hashes = [&]() __attribute__((always_inline)) {
            if constexpr (kDither) hashes = Dither::hash8(counters, k0, k1);
            counters = _mm256_add_epi32(counters, eight);
        };
        auto restore8 = [&]<int Half>(__m256i code, __m256i zero,
                                      Value* to) __attribute__((always_inline)) {
            const __m256i at = _mm256_add_epi32(lanes, Dither::rotation8<Half>(hashes));
            __m256 y;
            if constexpr (Small) {
                y = _mm256_add_ps(_mm256_cvtepi32_ps(code), constant);
                if constexpr (kDither)
                    y = _mm256_sub_ps(_mm256_permutevar8x32_ps(y, at),
                                      Dither::fraction_part<Half>(hashes));
            } else {
                y = _mm256_cvtepi32_ps(_mm256_add_epi32(code, base));
                if constexpr (kDither) {
                    __m256 u = _mm256_add_ps(_mm256_permutevar8x32_ps(Dither::class_part(), at),
                                             Dither::fraction_part<Half>(hashes));
                    y = _mm256_sub_ps(_mm256_permutevar8x32_ps(y, at), u);
                } else if constexpr (Kind == ENCKE_HALF) {
                    y = _mm256_sub_ps(y, _mm256_set1_ps(0.5f));
                }
            }
            __m256i keep = _mm256_set1_epi32(-1);
            if constexpr (Zero) {
                if constexpr (kDither) zero = _mm256_permutevar8x32_epi32(zero, at);
                keep = _mm256_xor_si256(zero, keep);
            }
            store8<T, kStore>(to, _mm256_mul_ps(y, step), keep, streaming);
        };
        if (kCount == 1 && row & 1) next_hashes();
        Value* to = out_ + kStride * row;
        for (int64_t t = 0; t < rows; ++t) {
            __m256i codes[kCount], zeros[kCount], raw{};
            if constexpr (Raw)
                raw = _mm256_load_si256(reinterpret_cast<const __m256i*>(raws + kLanes * t));
            __m256i slot =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(slots + kLanes * t));
            __m256i escapes = codes8<D, Raw>(slot, raw, codes, zeros);
            if (__builtin_expect(!_mm256_testz_si256(escapes, escapes), 0)) return t;
#pragma GCC unroll 4
            for (int i = 0; i < kCount; ++i, to += kLanes) {
                if ((kCount > 1 ? i : row + t) & 1) {
                    restore8.template operator()<1>(codes[i], zeros[i], to);
                } else {
                    next_hashes();
                    restore8.template operator()<0>(codes[i], zeros[i], to);
                }
            }
        }
        return rows;
    }
};

}  // namespace encke::ENCKE_ISA
