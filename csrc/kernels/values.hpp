// Values in memory to codes in lane order and back, for `entropy` (docs/format.md, sections
// 4 and 7).
#pragma once

#include "kernels/float8.hpp"
#include "kernels/lanes.hpp"
#include "kernels/quantise.hpp"

namespace encke::ENCKE_ISA {

// For one type and kind.
template <class T, int Kind>
class ValueCodes {
  public:
    using Value = typename T::Value;
    using Real = typename T::Real;
    using Bits = typename T::Bits;

    ValueCodes(const encke_quantiser& q, uint64_t center)
        : seed_(q.seed), center_(center), scale_(q) {}

    // How many values exceed the limit of each tier (or are not finite), and the largest
    // magnitude's bits.
    void survey(const Value* x, int64_t n, int64_t over[2], bool& all_zero) const {
        over[0] = over[1] = 0;
        Bits any = 0;
        const Bits limit0 = bit_cast<Bits>(scale_.limit[0]);
        const Bits limit1 = bit_cast<Bits>(scale_.limit[1]);
        int64_t i = 0;
#ifdef __AVX2__
        if constexpr (sizeof(Real) == 4) {
            __m256i most = _mm256_setzero_si256();
            const __m256i unsign = _mm256_set1_epi32(0x7FFFFFFF);
            for (; i + 8 <= n; i += 8)
                most = _mm256_max_epi32(
                    most, _mm256_and_si256(_mm256_castps_si256(load8<T>(x + i)), unsign));
            alignas(32) uint32_t lanes[8];
            _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
            Bits top = 0;
            for (uint32_t lane : lanes) top = lane > top ? lane : top;
            any = top;
            if (top > limit0) i = 0;  // rare: count them one by one below
        }
#endif
        for (; i < n; ++i) {
            Bits bits = bit_cast<Bits>(T::load(x[i])) & (~Bits{0} >> 1);
            any |= bits;
            over[0] += bits > limit0;
            over[1] += bits > limit1;
        }
        all_zero = any == 0;
    }

    // Whether a value has no code in this tier.
    bool verbatim(Value v, int tier) const {
        if constexpr (Kind == ENCKE_POINTWISE)
            return code(v, Dither(0, 0), 0, tier) == kVerbatim;
        else
            return (bit_cast<Bits>(T::load(v)) & (~Bits{0} >> 1)) >
                   bit_cast<Bits>(scale_.limit[tier]);
    }

    // Codes of n values from `start` in a page on, a multiple of 16; the last group is filled
    // up with kAfter.
    void fill(const Value* x, int64_t n, const LaneOrder& order, uint32_t start, int tier,
              int32_t* codes) const {
        int64_t i = 0;
#ifdef __AVX2__
        if constexpr (sizeof(Real) == 4 && Kind != ENCKE_POINTWISE) {
            const __m256 inverse = _mm256_set1_ps(scale_.inverse[tier]);
            const __m256i limit = _mm256_set1_epi32(bit_cast<int32_t>(scale_.limit[tier]));
            const __m256i unsign = _mm256_set1_epi32(0x7FFFFFFF);
            [[maybe_unused]] const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            [[maybe_unused]] __m256i hashes{};
            for (; i + 8 <= n; i += 8, codes += 8) {
                __m256 v = load8<T>(x + i);
                __m256 t = _mm256_mul_ps(v, inverse);
                __m256i lane_of{};
                if constexpr (Kind == ENCKE_DITHER) {
                    __m256i rotation;
                    if (!(i & 8))
                        hashes = order.dither().hash16(start + static_cast<uint32_t>(i));
                    t = _mm256_add_ps(t, i & 8 ? Dither::offsets8<1>(hashes, rotation)
                                               : Dither::offsets8<0>(hashes, rotation));
                    lane_of = _mm256_sub_epi32(lanes, rotation);  // its three low bits count
                } else if constexpr (Kind == ENCKE_HALF) {
                    t = _mm256_add_ps(t, _mm256_set1_ps(0.5f));
                }
                __m256i c = _mm256_cvtps_epi32(t);
                __m256i over =
                    _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(v), unsign), limit);
                c = _mm256_blendv_epi8(c, _mm256_set1_epi32(kVerbatim), over);
                if constexpr (Kind != ENCKE_PLAIN) {
                    __m256 zero = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ);
                    c = _mm256_blendv_epi8(c, _mm256_set1_epi32(kZero),
                                           _mm256_castps_si256(zero));
                }
                if constexpr (Kind == ENCKE_DITHER) c = _mm256_permutevar8x32_epi32(c, lane_of);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), c);
            }
        }
#endif
        for (; i < n; i += 8, codes += 8) {
            int32_t group[8];
            uint32_t j = start + static_cast<uint32_t>(i);
            for (int p = 0; p < 8; ++p)
                group[p] = i + p < n ? code(x[i + p], order.dither(), j + p, tier) : kAfter;
            order.to_lanes(j, group, codes);
        }
    }

    // Whether there is a faster way for values all within tier 0: `fill_calm`, which collects
    // the largest magnitude, and tells afterwards.
#ifdef __AVX2__
    static constexpr bool kCalm = sizeof(Real) == 4 && Kind != ENCKE_POINTWISE;
    struct Most {
        __m256i bits = _mm256_setzero_si256();
    };
#else
    static constexpr bool kCalm = false;
    struct Most {};
#endif
    void fill_calm(const Value* x, int64_t n, const LaneOrder& order, uint32_t start,
                   int32_t* codes, Most& most) const;
    // False also if all of them were zero.
    bool within(const Most& most) const;

    // The inverse, for n values from `start` in a page on; verbatim ones come from `raw`.
    // False if there are too few.
    bool restore(const int32_t* codes, int64_t n, const LaneOrder& order, uint32_t start,
                 int tier, const uint8_t*& raw, const uint8_t* raw_end, Value* out,
                 bool streaming) const {
#ifdef __AVX2__
        [[maybe_unused]] const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        [[maybe_unused]] __m256i hashes{};
#endif
        for (int64_t i = 0; i < n; i += 8, codes += 8) {
            uint32_t j = start + static_cast<uint32_t>(i);
#ifdef __AVX2__
            if constexpr (sizeof(Real) == 4 && Kind != ENCKE_POINTWISE) {
                __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
                __m256i verbatim = _mm256_cmpeq_epi32(c, _mm256_set1_epi32(kVerbatim));
                if (Kind == ENCKE_DITHER && (i == 0 || !(j & 8)))
                    hashes = order.dither().hash16(j & ~15u);
                if (i + 8 <= n && _mm256_testz_si256(verbatim, verbatim)) {
                    __m256 u = _mm256_set1_ps(0.5f);
                    if constexpr (Kind == ENCKE_DITHER) {
                        __m256i rotation;
                        u = j & 8 ? Dither::offsets8<1>(hashes, rotation)
                                  : Dither::offsets8<0>(hashes, rotation);
                        c = _mm256_permutevar8x32_epi32(c, _mm256_add_epi32(lanes, rotation));
                    }
                    __m256i zero = _mm256_cmpeq_epi32(c, _mm256_set1_epi32(kZero));
                    __m256 y = _mm256_cvtepi32_ps(_mm256_andnot_si256(zero, c));
                    if constexpr (Kind != ENCKE_PLAIN) y = _mm256_sub_ps(y, u);
                    y = _mm256_mul_ps(y, _mm256_set1_ps(scale_.step[tier]));
                    store8<T, Kind>(out + i, y, _mm256_xor_si256(zero, _mm256_set1_epi32(-1)),
                                    streaming);
                    continue;
                }
            }
#else
            (void)streaming;
#endif
            int32_t group[8];
            order.to_memory(j, codes, group);
            for (int p = 0; p < 8 && i + p < n; ++p) {
                if (Kind == ENCKE_POINTWISE && below_zero(group[p])) return false;
                if (group[p] == kVerbatim) {
                    if (raw_end - raw < static_cast<ptrdiff_t>(sizeof(Value))) return false;
                    out[i + p] = read<Value>(raw);
                    raw += sizeof(Value);
                } else {
                    out[i + p] = value(group[p], order.dither(), j + p, tier);
                }
            }
        }
        return true;
    }

    Real step(int tier) const { return scale_.step[tier]; }

  private:
    uint64_t seed_, center_;
    Scale<T> scale_;

    // Whether a pointwise code counts from the centre to before the first pattern.
    bool below_zero(int32_t c) const {
        return c > kAfter && c < 0 &&
               center_ < static_cast<uint64_t>(-static_cast<int64_t>(c >> 1));
    }

    int32_t code(Value v, const Dither& dither, uint32_t j, int tier) const {
        if constexpr (Kind == ENCKE_POINTWISE) {
            using Pattern = typename T::Pattern;
            Pattern bits = bit_cast<Pattern>(v);
            uint64_t b = bits & static_cast<Pattern>(~T::kSign);
            if (b == 0) return kZero;
            if (b < uint64_t{1} << T::kMantissa || b >= T::kInfinity) return kVerbatim;
            int64_t k = static_cast<int64_t>((b + seed_ / 2) / seed_ - center_);
            if (k >= 1 << 29 || k <= -(1 << 29)) return kVerbatim;
            return static_cast<int32_t>(2 * k + ((bits & T::kSign) != 0));
        } else {
            Real x = T::load(v);
            Bits bits = bit_cast<Bits>(x) & (~Bits{0} >> 1);
            if (bits > bit_cast<Bits>(scale_.limit[tier])) return kVerbatim;
            if (Kind != ENCKE_PLAIN && bits == 0) return kZero;
            Real t = x * scale_.inverse[tier];
            if constexpr (Kind == ENCKE_DITHER)
                t = t + dither_offset<Real>(dither.level(j));
            else if constexpr (Kind == ENCKE_HALF)
                t = t + Real(0.5);
            return nearest(t);
        }
    }

    Value value(int32_t c, const Dither& dither, uint32_t j, int tier) const {
        if (c == kZero) return Value{};
        if constexpr (Kind == ENCKE_POINTWISE) {
            using Pattern = typename T::Pattern;
            // Written as a shift so that negative codes round down, as the format says.
            const uint64_t distance = static_cast<uint64_t>(static_cast<int64_t>(c >> 1));
            uint64_t k = center_ + distance, b;
            bool beyond = c >= 0 && k < center_;
            if (beyond || __builtin_mul_overflow(k, seed_, &b) || b >= T::kInfinity)
                b = T::kInfinity - 1;
            Pattern bits = static_cast<Pattern>(b);
            if (c & 1) bits = static_cast<Pattern>(bits | T::kSign);
            return bit_cast<Value>(bits);
        } else {
            Real y = static_cast<Real>(c);
            if constexpr (Kind == ENCKE_PLAIN) return T::store(y * scale_.step[tier]);
            if constexpr (Kind == ENCKE_DITHER)
                y = y - dither_offset<Real>(dither.level(j));
            else
                y = y - Real(0.5);
            return T::store_nonzero(y * scale_.step[tier]);
        }
    }
};
#ifndef __AVX2__
template <class T, int Kind>
void ValueCodes<T, Kind>::fill_calm(const Value* x, int64_t n, const LaneOrder& order,
                                    uint32_t start, int32_t* codes, Most&) const {
    fill(x, n, order, start, 0, codes);
}

template <class T, int Kind>
bool ValueCodes<T, Kind>::within(const Most&) const {
    return false;
}
#endif

}  // namespace encke::ENCKE_ISA

#ifdef __AVX2__
#include "kernels/values_avx2.hpp"
#endif
