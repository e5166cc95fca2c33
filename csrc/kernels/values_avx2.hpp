// Values to codes where all are small, and rows of decoded symbols straight to values, without
// codes in between. Included at the end of values.hpp.
#pragma once

#include "kernels/values.hpp"

namespace encke::ENCKE_ISA {

template <class T, int Kind>
void ValueCodes<T, Kind>::fill_calm(const Value* x, int64_t n, const LaneOrder& order,
                                    uint32_t start, int32_t* codes, Most& most) const {
    int64_t i = 0;
    if constexpr (kCalm) {
        const __m256 inverse = hoisted(_mm256_set1_ps(scale_.inverse[0]));
        const __m256i unsign = hoisted(_mm256_set1_epi32(0x7FFFFFFF));
        const __m256i zero_code = hoisted(_mm256_set1_epi32(kZero));
        const __m256i lanes = hoisted(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        const __m256i eight = hoisted(_mm256_set1_epi32(8));
        const __m256i k0 = _mm256_set1_epi32(static_cast<int>(order.dither().k0));
        const __m256i k1 = _mm256_set1_epi32(static_cast<int>(order.dither().k1));
        const __m256 of_class = hoisted(Dither::class_part());
        __m256i counters = Dither::counters(start), hashes{}, top = most.bits;
        auto code8 = [&]<int Half>(const Value* from,
                                   int32_t* to) __attribute__((always_inline)) {
            __m256 v = load8<T>(from);
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v), unsign));
            __m256 u = _mm256_set1_ps(0.5f);
            if constexpr (Kind == ENCKE_DITHER) {
                // Values and fractions go to their lanes, where the classes are already.
                __m256i at = _mm256_sub_epi32(lanes, Dither::rotation8<Half>(hashes));
                v = _mm256_permutevar8x32_ps(v, at);
                u = _mm256_permutevar8x32_ps(Dither::fraction_part<Half>(hashes), at);
                u = _mm256_add_ps(u, of_class);
            }
            __m256 t = _mm256_mul_ps(v, inverse);
            if constexpr (Kind != ENCKE_PLAIN) t = _mm256_add_ps(t, u);
            __m256i c = _mm256_cvtps_epi32(t);
            if constexpr (Kind != ENCKE_PLAIN) {
                __m256 zero = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ);
                c = _mm256_blendv_epi8(c, zero_code, _mm256_castps_si256(zero));
            }
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), c);
        };
        // Stretches are coded from the last to the first: what the processor does not expect.
        const uintptr_t next =
            reinterpret_cast<uintptr_t>(x) - static_cast<uintptr_t>(n) * sizeof(Value);
        for (; i + 16 <= n; i += 16) {
            _mm_prefetch(
                reinterpret_cast<const char*>(next + static_cast<uintptr_t>(i) * sizeof(Value)),
                _MM_HINT_T0);
            if constexpr (Kind == ENCKE_DITHER) {
                hashes = Dither::hash8(counters, k0, k1);
                counters = _mm256_add_epi32(counters, eight);
            }
            code8.template operator()<0>(x + i, codes + i);
            code8.template operator()<1>(x + i + kLanes, codes + i + kLanes);
        }
        for (int64_t rest = i; rest < n; ++rest)
            top = _mm256_max_epi32(
                top, _mm256_set1_epi32(bit_cast<int32_t>(T::load(x[rest])) & 0x7FFFFFFF));
        most.bits = top;
    }
    fill(x + i, n - i, order, start + static_cast<uint32_t>(i), 0, codes + i);
}

template <class T, int Kind>
bool ValueCodes<T, Kind>::within(const Most& most) const {
    if constexpr (!kCalm) {
        return false;
    } else {
        __m256i limit = _mm256_set1_epi32(bit_cast<int32_t>(scale_.limit[0]));
        __m256i over = _mm256_cmpgt_epi32(most.bits, limit);
        return _mm256_testz_si256(over, over) && !_mm256_testz_si256(most.bits, most.bits);
    }
}

// Where the values of a chunk's whole rows go. Residual: they are what a prediction leaves
// over, not values yet, and what is marked as zero becomes NaN.
template <class T, int Kind, bool Residual = false>
class ValueRows {
  public:
    using Value = typename T::Value;
    using Real = typename T::Real;

    // `out` is where the first row taken goes.
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
            constexpr bool kZero = Residual || Kind != ENCKE_PLAIN;
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
        constexpr int64_t kAhead = 4096;
        // Half-width types tell zeros apart even where none is marked.
        [[maybe_unused]] constexpr int kStore =
            T::kDtype == ENCKE_F32 && !Zero ? int{ENCKE_PLAIN} : Kind;
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
            y = _mm256_mul_ps(y, step);
            if constexpr (Zero && kDither) zero = _mm256_permutevar8x32_epi32(zero, at);
            if constexpr (Residual) {
                if constexpr (Zero) y = _mm256_or_ps(y, _mm256_castsi256_ps(zero));
                _mm256_store_ps(to, y);
            } else {
                __m256i keep = _mm256_set1_epi32(-1);
                if constexpr (Zero) keep = _mm256_xor_si256(zero, keep);
                store8<T, kStore>(to, y, keep, streaming);
            }
        };
        if (kCount == 1 && row & 1) next_hashes();
        Value* to = out_;
        for (int64_t t = 0; t < rows; ++t) {
            __m256i codes[kCount], zeros[kCount], raw{};
            if constexpr (Raw)
                raw = _mm256_load_si256(reinterpret_cast<const __m256i*>(raws + kLanes * t));
            __m256i slot =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(slots + kLanes * t));
            __m256i escapes = codes8<D, Raw>(slot, raw, codes, zeros);
            if (__builtin_expect(!_mm256_testz_si256(escapes, escapes), 0)) return t;
            // The coder will not write anything for a while: time to fetch what comes then.
            if (!Residual && !streaming) {
                for (size_t i = 0; i < kStride * sizeof(Value); i += 64)
                    __builtin_prefetch(reinterpret_cast<const char*>(to) + kAhead + i, 1);
            }
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
