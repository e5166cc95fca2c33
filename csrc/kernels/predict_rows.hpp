// Rows of values against rows of predictions: the inner loops of `predict`, written so
// that the compiler turns them into vector instructions. Every operation rounds once.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dither.hpp"
#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA::predict {

// Bit patterns as integers, and the number whose addition rounds to an integer.
template <class Real>
struct RealBits;
template <>
struct RealBits<float> {
    using Signed = int32_t;
    static constexpr Signed kMagnitude = 0x7FFFFFFF;
    static constexpr float kRounder = 0x1.8p23f;
};
template <>
struct RealBits<double> {
    using Signed = int64_t;
    static constexpr Signed kMagnitude = 0x7FFFFFFFFFFFFFFF;
    static constexpr double kRounder = 0x1.8p52;
};

// A step and its inverse, the largest error, which is below the promise by more than the
// comparison can round, and the largest code.
template <class Real>
struct Lattice {
    Real step, inverse, error, most;
    bool holes = false;  // whether NaN stands for no value at all
};

// The room that a magnitude has below a limit, in units in the last place, negative if there
// is none; NaN is above every limit. Integers, because compilers do not vectorise float
// comparisons, which might trap.
template <class Real>
inline typename RealBits<Real>::Signed room_below(Real limit, Real value) {
    using Signed = typename RealBits<Real>::Signed;
    constexpr Signed kMagnitude = RealBits<Real>::kMagnitude;
    return bit_cast<Signed>(limit) - (bit_cast<Signed>(value) & kMagnitude);
}

template <class Real>
struct Quantised {
    Real value, rounded;
    typename RealBits<Real>::Signed room;  // negative if the error is too large
};

// Code and reconstruction of one value. A value that no code reaches takes code 0.
template <bool kDithered, class Real>
inline Quantised<Real> quantise_against(Real x, Real predicted, Real u,
                                        const Lattice<Real>& l) {
    using Signed = typename RealBits<Real>::Signed;
    constexpr Real kRounder = RealBits<Real>::kRounder;
    Real scaled = (x - predicted) * l.inverse;
    if constexpr (kDithered) scaled = scaled + u;
    Signed beyond = room_below(l.most, scaled) >> (8 * sizeof(Signed) - 1);
    scaled = bit_cast<Real>(bit_cast<Signed>(scaled) & ~beyond);
    Real rounded = (scaled + kRounder) - kRounder;
    Real y = predicted + (kDithered ? rounded - u : rounded) * l.step;
    return {y, rounded, room_below(l.error, y - x)};
}

// What a value is predicted from: b and c on either side of it, a and d one further.
template <class Real>
struct Neighbours {
    const Real *a, *b, *c, *d;
    Real near, far;

    Real predict(int64_t i) const { return (b[i] + c[i]) * near + (a[i] + d[i]) * far; }
};

// Predictions that are there already.
template <class Real>
struct Predictions {
    const Real* row;
    Real predict(int64_t i) const { return row[i]; }
};

// No prediction.
template <class Real>
struct Nothing {
    Real predict(int64_t) const { return 0; }
};

// Codes and reconstructions of n values; true if each of them kept the error.
template <bool kDithered, class From, class Real>
bool encode_row(const From from, const Real* __restrict x, const Real* __restrict u,
                const Lattice<Real> l, Real* __restrict y, int32_t* __restrict codes,
                int64_t n) {
    typename RealBits<Real>::Signed room = 0;
    for (int64_t i = 0; i < n; ++i) {
        Real predicted = from.predict(i);
        auto r = quantise_against<kDithered>(x[i], predicted, kDithered ? u[i] : Real{0}, l);
        y[i] = r.value;
        codes[i] = static_cast<int32_t>(r.rounded);
        room |= r.room;
    }
    return room >= 0;
}

// The positions, counted from `first`, whose error is too large.
template <class Real>
inline void list_failures(const Real* x, const Real* y, const Lattice<Real>& l, int64_t first,
                          int64_t n, std::vector<int64_t>& to) {
    if (l.holes) {
        using Signed = typename RealBits<Real>::Signed;
        const Real infinite = std::numeric_limits<Real>::infinity();
        Signed room = 0;
        for (int64_t i = 0; i < n; ++i) {
            Signed hole = room_below(infinite, x[i]) >> (8 * sizeof(Signed) - 1);
            room |= room_below(l.error, y[i] - x[i]) & ~hole;
        }
        if (room >= 0) return;
    }
    for (int64_t i = 0; i < n; ++i)
        if (room_below(l.error, y[i] - x[i]) < 0 && !(l.holes && x[i] != x[i]))
            to.push_back(first + i);
}

template <bool kDithered, class From, class Real>
void decode_row(const From from, const int32_t* __restrict codes, const Real* __restrict u,
                Real step, Real* __restrict y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        Real predicted = from.predict(i);
        Real code = static_cast<Real>(codes[i]);
        y[i] = predicted + (kDithered ? code - u[i] : code) * step;
    }
}

// The same for rows whose values alternate with those they are predicted from: x, and the
// even and odd places of `pairs`, are n pairs.
template <bool kDithered, class Real>
bool encode_pairs(const Neighbours<Real> from, const Real* __restrict x,
                  const Real* __restrict u, const Lattice<Real> l, Real* __restrict pairs,
                  int32_t* __restrict codes, int64_t n) {
    typename RealBits<Real>::Signed room = 0;
    for (int64_t i = 0; i < n; ++i) {
        auto r = quantise_against<kDithered>(x[2 * i + 1], from.predict(i),
                                             kDithered ? u[i] : Real{0}, l);
        pairs[2 * i] = from.b[i];
        pairs[2 * i + 1] = r.value;
        codes[i] = static_cast<int32_t>(r.rounded);
        room |= r.room;
    }
    return room >= 0;
}

template <bool kDithered, class Real>
void decode_pairs(const Neighbours<Real> from, const int32_t* __restrict codes,
                  const Real* __restrict u, Real step, Real* __restrict pairs, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        Real code = static_cast<Real>(codes[i]);
        pairs[2 * i] = from.b[i];
        pairs[2 * i + 1] = from.predict(i) + (kDithered ? code - u[i] : code) * step;
    }
}

// The dither of the positions start .. start + n - 1.
template <class Real>
void fill_dither(Real* u, uint64_t seed, int64_t start, int64_t n) {
    while (n > 0) {
        Dither page(seed, start);
        uint32_t j = static_cast<uint32_t>(start & ((1 << kPageBits) - 1));
        int64_t here = (int64_t{1} << kPageBits) - j;
        if (here > n) here = n;
        for (int64_t i = 0; i < here; ++i)
            u[i] = dither_offset<Real>(page.level(j + static_cast<uint32_t>(i)));
        u += here, start += here, n -= here;
    }
}

}  // namespace encke::ENCKE_ISA::predict
