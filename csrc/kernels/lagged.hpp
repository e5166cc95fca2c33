// Values to codes of what a prediction leaves over, and back (docs/format.md, section 7).
#pragma once

#include <limits>

#include "kernels/float8.hpp"
#include "kernels/lag.hpp"
#include "kernels/lanes.hpp"
#include "kernels/quantise.hpp"

namespace encke::ENCKE_ISA {

// For one type, float or double, and one linear kind. Zeros are marked in every kind.
template <class T, int Kind>
class LaggedCodes {
  public:
    using Real = typename T::Real;
    static constexpr bool kWide = sizeof(Real) == 4;  // eight at once

    LaggedCodes(const encke_quantiser& q, const Lag& lag)
        : scale_(q), share_(lag.template share<Real>()) {
        // The difference of two values is rounded before it is compared.
        constexpr double kRoom = kWide ? 0x1p-22 : 0x1p-51;
        constexpr double kLargest = std::numeric_limits<Real>::max();
        allowed_ = static_cast<Real>((q.error < kLargest ? q.error : kLargest) * (1 - kRoom));
    }

    // What the values of a chunk turned out to be.
    struct Seen {
        int64_t verbatim = 0;
        bool some = false;  // not zero
        bool all = true;    // have codes
    };
#ifdef __AVX2__
    static constexpr bool kCalm = kWide;
#else
    static constexpr bool kCalm = false;
#endif

    // Codes in lane order of n values from `start` in a page on, a multiple of 8; the last
    // group is filled up with kAfter. before[k] predicts value k, after[k] gets what it decodes
    // to. Calm, which is faster: false, and nothing of use, if a value is zero or verbatim.
    template <bool Calm>
    bool code(const Real* x, int64_t n, const LaneOrder& order, uint32_t start, int tier,
              const Real* before, Real* after, int32_t* codes, Seen& seen) const {
        int64_t i = 0;
#ifdef __AVX2__
        if constexpr (kWide) {
            i = n & ~int64_t{7};
            if (!code8<Calm>(x, i, order, start, tier, before, after, codes, seen))
                return false;
        }
#endif
        for (; i < n; i += 8) {
            int32_t group[8];
            const uint32_t j = start + static_cast<uint32_t>(i);
            for (int p = 0; p < 8; ++p) {
                if (i + p >= n) {
                    group[p] = kAfter;
                    continue;
                }
                group[p] = code_one(x[i + p], before[i + p], offset(order.dither(), j + p),
                                    tier, after[i + p]);
                seen.verbatim += group[p] == kVerbatim;
                seen.some |= group[p] != kZero;
                seen.all &= group[p] > kAfter;
            }
            order.to_lanes(j, group, codes + i);
        }
        return !Calm || seen.all;
    }

    // (c - u) * step of n codes in lane order, in memory order; NaN for what has no code.
    // Returns whether any of them is verbatim.
    bool residuals(const int32_t* codes, int64_t n, const LaneOrder& order, uint32_t start,
                   int tier, Real* to) const {
        bool verbatim = false;
        for (int64_t i = 0; i < n; i += 8) {
            const uint32_t j = start + static_cast<uint32_t>(i);
#ifdef __AVX2__
            if constexpr (kWide) {
                __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
                __m256i kept = _mm256_cmpeq_epi32(c, _mm256_set1_epi32(kVerbatim));
                verbatim |= !_mm256_testz_si256(kept, kept);
                __m256 u = _mm256_set1_ps(0.5f);
                if constexpr (Kind == ENCKE_DITHER) {
                    __m256i rotation;
                    u = order.dither().offsets8(j, rotation);
                    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                    c = _mm256_permutevar8x32_epi32(c, _mm256_add_epi32(lanes, rotation));
                }
                __m256i none = _mm256_cmpgt_epi32(_mm256_set1_epi32(kAfter), c);
                __m256 r = _mm256_cvtepi32_ps(c);
                if constexpr (Kind != ENCKE_PLAIN) r = _mm256_sub_ps(r, u);
                r = _mm256_mul_ps(r, _mm256_set1_ps(scale_.step[tier]));
                _mm256_storeu_ps(to + i, _mm256_or_ps(r, _mm256_castsi256_ps(none)));
                continue;
            }
#endif
            int32_t group[8];
            order.to_memory(j, codes + i, group);
            for (int p = 0; p < 8; ++p) {
                verbatim |= group[p] == kVerbatim;
                to[i + p] = group[p] < kAfter
                                ? std::numeric_limits<Real>::quiet_NaN()
                                : residual(group[p], offset(order.dither(), j + p), tier);
            }
        }
        return verbatim;
    }

    // Residuals to values; those that are NaN give 0.
    void add(const Real* residual, int64_t n, const Real* before, Real* after, Real* out,
             [[maybe_unused]] bool streaming) const {
        int64_t i = 0;
#ifdef __AVX2__
        if constexpr (kWide) {
            if (streaming)
                i = add8<true>(residual, n, before, after, out);
            else
                i = add8<false>(residual, n, before, after, out);
        }
#endif
        for (; i < n; ++i) {
            const Real r = residual[i], p = share_ * before[i];
            out[i] = after[i] = r == r ? p + r : Real(0);
        }
    }

    Real step(int tier) const { return scale_.step[tier]; }

  private:
    // Codes beyond are not tried: the sums of values that far apart are too coarse.
    static constexpr int32_t kFarthest = kWide ? 1 << 21 : 1 << 29;

    Scale<T> scale_;
    Real share_, allowed_;

    Real offset(const Dither& dither, uint32_t j) const {
        if constexpr (Kind == ENCKE_DITHER) return dither_offset<Real>(dither.level(j));
        (void)dither, (void)j;
        return Kind == ENCKE_HALF ? Real(0.5) : Real(0);
    }

    Real residual(int32_t c, Real u, int tier) const {
        const Real r = static_cast<Real>(c);
        return (Kind == ENCKE_PLAIN ? r : r - u) * scale_.step[tier];
    }

    int32_t code_one(Real x, Real before, Real u, int tier, Real& y) const {
        y = 0;
        if (x == 0) return kZero;
        const Real p = share_ * before;
        Real t = (x - p) * scale_.inverse[tier];
        if constexpr (Kind != ENCKE_PLAIN) t = t + u;
        t = t < kFarthest ? t : Real(kFarthest);
        t = t > -kFarthest ? t : Real(-kFarthest);
        const int32_t c = nearest(t);
        const Real decoded = p + residual(c, u, tier), d = decoded - x;
        bool good = d <= allowed_ && d >= -allowed_;
        if constexpr (Kind != ENCKE_PLAIN) good &= decoded != 0;
        if (!good) return kVerbatim;
        y = decoded;
        return c;
    }

#ifdef __AVX2__
    // Calm: no value is zero or verbatim; if one is, that is found out and everything else is
    // of no use. Returns whether the values were what they were taken for.
    template <bool Calm>
    bool code8(const Real* x, int64_t n, const LaneOrder& order, uint32_t start, int tier,
               const Real* before, Real* after, int32_t* codes, Seen& seen) const {
        const __m256 step = _mm256_set1_ps(scale_.step[tier]);
        const __m256 inverse = _mm256_set1_ps(scale_.inverse[tier]);
        const __m256 share = _mm256_set1_ps(share_), allowed = _mm256_set1_ps(allowed_);
        const __m256 far = hoisted(_mm256_set1_ps(static_cast<float>(kFarthest)));
        const __m256 near = hoisted(_mm256_set1_ps(static_cast<float>(-kFarthest)));
        const __m256 unsign = hoisted(_mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)));
        const __m256 nothing = hoisted(_mm256_setzero_ps());
        [[maybe_unused]] const __m256i zero_code = hoisted(_mm256_set1_epi32(kZero));
        [[maybe_unused]] const __m256i raw_code = hoisted(_mm256_set1_epi32(kVerbatim));
        const __m256i lanes = hoisted(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        const __m256i eight = hoisted(_mm256_set1_epi32(8));
        const __m256i k0 = _mm256_set1_epi32(static_cast<int>(order.dither().k0));
        const __m256i k1 = _mm256_set1_epi32(static_cast<int>(order.dither().k1));
        __m256i counters = Dither::counters(start & ~15u), hashes{};
        // Lanes that always were good, in calm; how often they were, otherwise.
        __m256i good_ones = _mm256_set1_epi32(Calm ? -1 : 0), zero_ones{};
        auto next_hashes = [&]() __attribute__((always_inline)) {
            if constexpr (Kind == ENCKE_DITHER) hashes = Dither::hash8(counters, k0, k1);
            counters = _mm256_add_epi32(counters, eight);
        };
        auto one = [&]<int Half>(int64_t i) __attribute__((always_inline)) {
            const __m256 v = _mm256_loadu_ps(x + i);
            const __m256 p = _mm256_mul_ps(share, _mm256_loadu_ps(before + i));
            __m256 u = _mm256_set1_ps(0.5f), t = _mm256_mul_ps(_mm256_sub_ps(v, p), inverse);
            __m256i rotation{};
            if constexpr (Kind == ENCKE_DITHER) u = Dither::offsets8<Half>(hashes, rotation);
            if constexpr (Kind != ENCKE_PLAIN) t = _mm256_add_ps(t, u);
            t = _mm256_max_ps(_mm256_min_ps(t, far), near);
            __m256i c = _mm256_cvtps_epi32(t);
            __m256 r = _mm256_cvtepi32_ps(c);
            if constexpr (Kind != ENCKE_PLAIN) r = _mm256_sub_ps(r, u);
            __m256 y = _mm256_add_ps(p, _mm256_mul_ps(r, step));
            __m256 good =
                _mm256_cmp_ps(_mm256_and_ps(_mm256_sub_ps(y, v), unsign), allowed, _CMP_LE_OQ);
            if constexpr (Calm) {
                // Neither is zero if their product is not; in kind plain a value may become it.
                const __m256 both = Kind == ENCKE_PLAIN ? v : _mm256_mul_ps(y, v);
                const __m256 some = _mm256_cmp_ps(both, nothing, _CMP_NEQ_OQ);
                good = _mm256_and_ps(good, some);
                good_ones = _mm256_and_si256(good_ones, _mm256_castps_si256(good));
            } else {
                const __m256 zero = _mm256_cmp_ps(v, nothing, _CMP_EQ_OQ);
                if constexpr (Kind != ENCKE_PLAIN)
                    good = _mm256_and_ps(good, _mm256_cmp_ps(y, nothing, _CMP_NEQ_OQ));
                good = _mm256_andnot_ps(zero, good);
                y = _mm256_and_ps(y, good);
                c = _mm256_blendv_epi8(raw_code, c, _mm256_castps_si256(good));
                c = _mm256_sub_epi32(
                    c, _mm256_castps_si256(zero));  // kZero is one more than kVerbatim
                good_ones = _mm256_sub_epi32(good_ones, _mm256_castps_si256(good));
                zero_ones = _mm256_sub_epi32(zero_ones, _mm256_castps_si256(zero));
            }
            if constexpr (Kind == ENCKE_DITHER)
                c = _mm256_permutevar8x32_epi32(c, _mm256_sub_epi32(lanes, rotation));
            _mm256_storeu_ps(after + i, y);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), c);
        };
        int64_t i = 0;
        if (start & 8 && n) {
            next_hashes();
            one.template operator()<1>(0);
            i = 8;
        }
        for (; i + 16 <= n; i += 16) {
            next_hashes();
            one.template operator()<0>(i);
            one.template operator()<1>(i + 8);
        }
        if (i < n) {
            next_hashes();
            one.template operator()<0>(i);
        }
        if constexpr (Calm) {
            seen.some = true;
            return _mm256_testc_si256(good_ones, _mm256_set1_epi32(-1));
        } else {
            const int64_t zeros = total(zero_ones);
            seen.verbatim += n - zeros - total(good_ones);
            seen.some |= zeros < n;
            seen.all &= n == total(good_ones);
            return true;
        }
    }

    static int64_t total(__m256i counts) {
        alignas(32) int32_t lanes[kLanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), counts);
        int64_t sum = 0;
        for (int32_t lane : lanes) sum += lane;
        return sum;
    }

    template <bool Streaming>
    int64_t add8(const Real* residual, int64_t n, const Real* before, Real* after,
                 Real* out) const {
        constexpr int64_t kAhead = 1024;
        const __m256 share = _mm256_set1_ps(share_);
        int64_t i = 0;
        for (; i + 8 <= n; i += 8) {
            __m256 r = _mm256_loadu_ps(residual + i);
            __m256 p = _mm256_mul_ps(share, _mm256_loadu_ps(before + i));
            __m256 coded = _mm256_cmp_ps(r, r, _CMP_ORD_Q);
            __m256 y = _mm256_and_ps(_mm256_add_ps(p, r), coded);
            _mm256_storeu_ps(after + i, y);
            if constexpr (Streaming) {
                _mm256_stream_ps(out + i, y);
            } else {
                __builtin_prefetch(out + i + kAhead, 1);
                _mm256_storeu_ps(out + i, y);
            }
        }
        return i;
    }
#endif
};

}  // namespace encke::ENCKE_ISA
