// How `predict` goes about a field with holes: chosen from samples of the values there are.
// Holes are NaN here.
#pragma once

#include <algorithm>

#include "kernels/predict_plan.hpp"

namespace encke::ENCKE_ISA::predict {

template <class Real>
inline bool is_hole(Real v) {
    return v != v;
}

// Reads up to `many` values between ones of which at least one is there; those that are not
// are replaced as the filling of holes would, about.
template <class T>
void read_beside_holes(SampledAxis<typename T::Real>& sample, const typename T::Value* data,
                       const Extents& grid, const int64_t* stride, int axis, int many) {
    using Real = typename T::Real;
    const uint64_t* points = sample_points();
    const int64_t n = grid.n[axis], even = (n + 1) / 2, odd = n / 2, by = stride[axis];
    const Real half = static_cast<Real>(0.5);
    int count = 0;
    for (int k = 0; k < std::min(kPoints, 4 * many) && count < many; ++k) {
        int64_t at = 0, j = 0;
        for (int d = 0; d < kAxes; ++d) {
            int64_t i = sample_index(points[k], d, d == axis ? odd : grid.n[d]);
            if (d == axis) j = i, i = 2 * i + 1;
            at += i * stride[d];
        }
        Real x = T::load(data[at]), b = T::load(data[at - by]);
        Real c = j + 1 < even ? T::load(data[at + by]) : b;
        Real a = j > 0 ? T::load(data[at - 3 * by]) : b;
        Real d = j + 2 < even ? T::load(data[at + 3 * by]) : c;
        if (is_hole(x) || (is_hole(b) && is_hole(c))) continue;
        if (is_hole(b)) b = is_hole(d) ? c : c + (c - d) * half;
        if (is_hole(c)) c = is_hole(a) ? b : b + (b - a) * half;
        if (is_hole(a)) a = b;
        if (is_hole(d)) d = c;
        sample.x[count] = x, sample.pair[count] = b + c, sample.outer[count] = a + d;
        ++count;
    }
    sample.count = count;
}

// The best number of axes for Lorenzo's predictor of first order.
template <class T>
Candidate plan_lorenzo_holes(const typename T::Value* data, const Extents& extents,
                             typename T::Real step) {
    using Real = typename T::Real;
    const Real inverse = static_cast<Real>(1) / step;
    const uint64_t* points = sample_points();
    CodeHistogram codes[3];
    int64_t distance[8];
    for (int i = 0; i < 8; ++i)
        distance[i] = (i >> 2) * extents.behind(1) + (i >> 1 & 1) * extents.behind(2) + (i & 1);
    int count = 0;
    for (int k = 0; k < kPoints && count < kLorenzoSamples; ++k) {
        int64_t index[kAxes], at = 0, code[8];
        for (int d = 0; d < kAxes; ++d) {
            index[d] = sample_index(points[k], d, extents.n[d]);
            at = at * extents.n[d] + index[d];
        }
        if (is_hole(T::load(data[at]))) continue;
        // Neighbours by what lies between: 1 along the last axis, 2 the one before, 4 planes.
        bool there[8];
        for (int i = 0; i < 8; ++i) {
            bool inside =
                (i >> 2) <= index[1] && (i >> 1 & 1) <= index[2] && (i & 1) <= index[3];
            Real v = inside ? T::load(data[at - distance[i]]) : 0;
            there[i] = inside && !is_hole(v);
            code[i] = there[i] ? sampled_code(v * inverse) : 0;
        }
        ++count;
        for (int axes = 1; axes <= 3; ++axes) {
            bool w = there[1], n = axes > 1 && there[2], p = axes > 2 && there[4];
            bool nw = n && there[3], pw = p && there[5], pn = n && p && there[6];
            int64_t foretold = code[1];
            if (w && nw && pw && pn && there[7])
                foretold = code[1] + code[2] + code[4] - code[3] - code[5] - code[6] + code[7];
            else if (w && pw)
                foretold = code[1] + code[4] - code[5];
            else if (pn)
                foretold = code[2] + code[4] - code[6];
            else if (w && nw)
                foretold = code[1] + code[2] - code[3];
            else if (p)
                foretold = code[4];
            else if (n)
                foretold = code[2];
            else if (!w)
                continue;
            const bool negative = code[0] < foretold;
            codes[axes - 1].add(negative ? foretold - code[0] : code[0] - foretold, negative);
        }
    }
    Candidate best;
    best.plan.mode = kLorenzo;
    best.bits = codes[0].bits();
    for (int axes = 2; axes <= 3; ++axes) {
        double bits = codes[axes - 1].bits();
        if (bits < best.bits) best.bits = bits, best.plan.axes = axes;
    }
    return best;
}

template <class T>
Plan choose_plan_holes(const typename T::Value* data, const Extents& extents,
                       typename T::Real step) {
    using Real = typename T::Real;
    Candidate halved = plan_interpolation(
        extents, step,
        [&](SampledAxis<Real>& sample, const Extents& grid, const int64_t* stride, int axis,
            int many) { read_beside_holes<T>(sample, data, grid, stride, axis, many); });
    if (halved.bits > 0.25) halved.plan.share = 3;
    halved.plan.fill = halved.near;
    halved.plan.steep = halved.bits > 1;
    if (halved.bits < 1) return halved.plan;
    Candidate lorenzo = plan_lorenzo_holes<T>(data, extents, step);
    return lorenzo.bits < kClearly * halved.bits ? lorenzo.plan : halved.plan;
}

}  // namespace encke::ENCKE_ISA::predict
