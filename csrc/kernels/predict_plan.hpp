// How `predict` goes about one tensor: chosen from a sample, kept in the stream.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/predict_estimate.hpp"
#include "kernels/predict_rows.hpp"

namespace encke::ENCKE_ISA::predict {

enum PredictMode { kVerbatim = 0, kLorenzo = 1, kRegression = 2, kInterpolation = 3 };
enum PredictFlags { kKeepNonzero = 1, kZeroMap = 2, kHoles = 4 };

constexpr int kAxes = 4;
constexpr int kSamples = 512, kLorenzoSamples = 512, kPoints = 4096;
// Lorenzo must promise fewer bits than this share of the interpolation's: samples vary.
constexpr double kClearly = 0.985;

// The tensor's extents, leading dimensions merged or filled with 1 to make four.
struct Extents {
    int64_t n[kAxes];

    static Extents of(const int64_t* shape, int ndim) {
        Extents e{{1, 1, 1, 1}};
        for (int d = 0; d < ndim; ++d) {
            int axis = kAxes - ndim + d;
            e.n[axis < 0 ? 0 : axis] *= shape[d];
        }
        return e;
    }
    int64_t size() const { return n[0] * n[1] * n[2] * n[3]; }
    int64_t before(int axis) const {
        int64_t product = 1;
        for (int d = 0; d < axis; ++d) product *= n[d];
        return product;
    }
    int64_t behind(int axis) const {
        int64_t product = 1;
        for (int d = axis + 1; d < kAxes; ++d) product *= n[d];
        return product;
    }
    int wide() const {
        int count = 0;
        for (int64_t extent : n) count += extent > 1;
        return count;
    }
};

struct Plan {
    static constexpr int kMostSteps = 80;

    static constexpr int kMostShare = 62;

    int mode = kInterpolation;
    int share = 5;       // a run of codes has at least 2^-share of all
    int order = 1;       // Lorenzo, regression
    int axes = 1;        // Lorenzo, regression: how many of the last axes
    int side = 8;        // regression: of a block
    int difference = 0;  // interpolation: whether the coarsest grid is coded as differences
    int decay = 0;       // interpolation: steps after which the lattice gets finer, or 0
    int fill = 0;        // interpolation with holes: axes that fill them, a bit for each
    int steep = 0;       // interpolation with holes: whether they are filled with more slope
    int steps = 0;       // interpolation, finest first
    uint8_t step[kMostSteps];

    int axis(int i) const { return step[i] & 3; }
    int weight(int i) const { return step[i] >> 2; }

    // The plan's bytes in the stream; how many are used.
    int write(uint8_t* to) const {
        switch (mode) {
            case kLorenzo:
                to[0] = static_cast<uint8_t>(order), to[1] = static_cast<uint8_t>(axes);
                return 2;
            case kRegression:
                to[0] = static_cast<uint8_t>(order), to[1] = static_cast<uint8_t>(axes);
                to[2] = static_cast<uint8_t>(side);
                return 3;
            case kInterpolation:
                to[0] = static_cast<uint8_t>(difference | steep << 1 | fill << 4);
                to[1] = static_cast<uint8_t>(decay);
                std::memcpy(to + 2, step, static_cast<size_t>(steps));
                return 2 + steps;
            default:
                return 0;
        }
    }

    // False if no plan for these extents has these bytes.
    bool read(int of_mode, const uint8_t* from, int size, const Extents& extents, bool holes) {
        mode = of_mode;
        // Without values there is nothing to predict, and extents of 0 divide nothing.
        if (mode != kVerbatim && extents.size() == 0) return false;
        switch (mode) {
            case kVerbatim:
                return size == 0;
            case kLorenzo:
            case kRegression:
                if (size != (mode == kLorenzo ? 2 : 3)) return false;
                order = from[0], axes = from[1];
                if (order < 1 || order > 2 || axes < 1 || axes > 3) return false;
                if (holes && (mode == kRegression || order == 2)) return false;
                if (mode == kRegression) side = from[2];
                return mode == kLorenzo || (side >= 2 && side <= 64);
            case kInterpolation: {
                if (size < 2 || size - 2 > kMostSteps) return false;
                if (holes ? from[0] & 0x0D : from[0] > 1) return false;
                difference = from[0] & 1, steep = from[0] >> 1 & 1, fill = from[0] >> 4;
                decay = from[1], steps = size - 2;
                std::memcpy(step, from + 2, static_cast<size_t>(steps));
                Extents left = extents;
                for (int i = 0; i < steps; ++i) {
                    int64_t& n = left.n[axis(i)];
                    if (weight(i) > 15 || n < 2) return false;
                    n = (n + 1) / 2;
                }
                return true;
            }
            default:
                return false;
        }
    }
};

// The share of the step, in 64ths, that the lattice of halving i has: finer where many
// values depend on a reconstruction.
inline int lattice_share(const Plan& plan, int i) {
    static constexpr int kShares[] = {64, 51, 41, 33, 32};
    if (plan.decay == 0) return 64;
    int age = i / plan.decay;
    return kShares[age < 4 ? age : 4];
}

// Where value k of the grid after `halvings` halvings is in the tensor.
inline int64_t origin(const Plan& plan, int halvings, const Extents& tensor,
                      const Extents& grid, int64_t k) {
    int64_t by[kAxes];
    for (int d = 0; d < kAxes; ++d) by[d] = tensor.behind(d);
    for (int i = 0; i < halvings; ++i) by[plan.axis(i)] *= 2;
    int64_t at = 0;
    for (int d = kAxes - 1; d >= 0; --d) {
        at += k % grid.n[d] * by[d];
        k /= grid.n[d];
    }
    return at;
}

// Positions to look at: 16 random bits for each axis, the same on every backend.
inline const uint64_t* sample_points() {
    struct Points {
        uint64_t bits[kPoints];
        Points() {
            for (uint64_t k = 0; k < kPoints; ++k) {
                uint64_t z = (k + 1) * 0x9E3779B97F4A7C15u;
                z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
                z = (z ^ z >> 27) * 0x94D049BB133111EBu;
                bits[k] = z ^ z >> 31;
            }
        }
    };
    static const Points points;
    return points.bits;
}

inline int64_t sample_index(uint64_t bits, int axis, int64_t extent) {
    uint64_t share = bits >> (16 * axis) & 0xFFFF;
    uint64_t n = static_cast<uint64_t>(extent);
    return static_cast<int64_t>((n >> 16) * share + ((n & 0xFFFF) * share >> 16));
}

// Residuals in eighths of a step, cut off where they cost the same as anything larger. The
// cut compares bit patterns, in which NaN is large; at most 2^20, so that sums fit 32 bits.
template <class Real>
inline int32_t residual_cost(Real residual, Real scale) {
    using Signed = typename RealBits<Real>::Signed;
    const Signed ceiling = bit_cast<Signed>(static_cast<Real>(1 << 20));
    Signed size = bit_cast<Signed>(residual * scale) & RealBits<Real>::kMagnitude;
    return static_cast<int32_t>(bit_cast<Real>(size < ceiling ? size : ceiling));
}

// The code of a value, not further from zero than what any predictor can be judged by.
template <class Real>
inline int64_t sampled_code(Real scaled) {
    Real size = scaled < 0 ? -scaled : scaled;
    return size < static_cast<Real>(1 << 20) ? nearest(scaled) : 0;
}

// Values of one axis between known ones, with the sums of the two pairs around each.
template <class Real>
struct SampledAxis {
    int count = 0;
    Real x[kSamples], pair[kSamples], outer[kSamples];

    // Reads `many` values between known ones along `axis` of the grid with these extents.
    template <class T>
    void read(const typename T::Value* data, const Extents& grid, const int64_t* stride,
              int axis, int many) {
        const uint64_t* points = sample_points();
        const int64_t n = grid.n[axis], even = (n + 1) / 2, odd = n / 2, by = stride[axis];
        count = many;
        for (int k = 0; k < many; ++k) {
            int64_t at = 0, j = 0;
            for (int d = 0; d < kAxes; ++d) {
                int64_t i = sample_index(points[k], d, d == axis ? odd : grid.n[d]);
                if (d == axis) j = i, i = 2 * i + 1;
                at += i * stride[d];
            }
            Real b = T::load(data[at - by]);
            Real c = j + 1 < even ? T::load(data[at + by]) : b;
            Real a = j > 0 ? T::load(data[at - 3 * by]) : b;
            Real d = j + 2 < even ? T::load(data[at + 3 * by]) : c;
            x[k] = T::load(data[at]);
            pair[k] = b + c;
            outer[k] = a + d;
        }
    }

    // A sum over the values that were read, as it would be over `many`.
    int64_t per(int many, int64_t sum) const {
        return count == many ? sum : sum * many / count;
    }

    int64_t cost(int weight, Real scale) const {
        Real near = static_cast<Real>(weight) / 16, far = static_cast<Real>(8 - weight) / 16;
        int32_t total = 0;
        for (int k = 0; k < count; ++k)
            total += residual_cost(x[k] - (pair[k] * near + outer[k] * far), scale);
        return total;
    }
    // The codes' bits.
    double bits(int weight, Real scale) const {
        Real near = static_cast<Real>(weight) / 16, far = static_cast<Real>(8 - weight) / 16;
        CodeHistogram codes;
        for (int k = 0; k < count; ++k) {
            Real residual = x[k] - (pair[k] * near + outer[k] * far);
            codes.add((residual_cost(residual, scale) + 4) / 8, residual < 0);
        }
        return codes.bits();
    }
    // The same without prediction.
    double plain_bits(Real scale) const {
        CodeHistogram codes;
        for (int k = 0; k < count; ++k)
            codes.add((residual_cost(x[k], scale) + 4) / 8, x[k] < 0);
        return codes.bits();
    }
    int64_t plain_cost(Real scale) const {
        int32_t total = 0;
        for (int k = 0; k < count; ++k) total += residual_cost(x[k], scale);
        return total;
    }
};

// A plan and the bits for a value that it should take.
struct Candidate {
    Plan plan;
    double bits = 0;
    int near = 0;  // axes along which values are alike, a bit for each
};

// The halvings, one at a time, that leave the smallest residuals. Stops where no
// neighbour says more about a value than zero does. look(sample, grid, stride, axis, many)
// reads a sample, which may have fewer values than it was asked for.
template <class Real, class Look>
Candidate plan_interpolation(const Extents& extents, Real step, Look look) {
    static constexpr int kWeights[] = {8, 9, 4, 6, 10};
    const Real scale = static_cast<Real>(1) / step * 8;
    Candidate candidate;
    Plan& plan = candidate.plan;
    Extents grid = extents;
    int64_t stride[kAxes];
    for (int d = 0; d < kAxes; ++d) stride[d] = extents.behind(d);
    SampledAxis<Real> sample;
    double left = 1;
    int64_t costs[kAxes] = {-1, -1, -1, -1};
    while (plan.steps < Plan::kMostSteps) {
        int64_t size = grid.size();
        int many = size / 64 < 64    ? 64
                   : size / 64 > 512 ? kSamples
                                     : static_cast<int>(size / 64);
        int64_t best = -1, plain = 0, exact = 0;
        double bits = 0, plain_bits = 0;
        int axis = 0, weight = 8;
        for (int d = 0; d < kAxes; ++d) {
            if (grid.n[d] < 2) continue;
            look(sample, grid, stride, d, many);
            if (sample.count == 0) continue;
            if (plan.steps == 0) costs[d] = sample.per(many, sample.cost(8, scale));
            for (int w : kWeights) {
                int64_t raw = sample.per(many, sample.cost(w, scale));
                // Neighbours in a row are slower to part than rows are.
                int64_t cost = d == kAxes - 1 ? raw + raw / 32 : raw;
                if (best >= 0 && cost >= best) continue;
                best = cost, exact = raw, axis = d, weight = w;
                plain = -1;
            }
            if (plain >= 0) continue;
            plain = sample.per(many, sample.plain_cost(scale));
            bits = sample.bits(weight, scale);
            plain_bits = sample.plain_bits(scale);
        }
        if (best < 0 || (size > 64 && exact >= plain - plain / 16)) {
            candidate.bits += left * plain_bits;
            break;
        }
        if (plan.steps == 0) {
            if (exact * 4 < many) plan.decay = extents.wide();
            // Only along axes that foretell well are holes filled.
            for (int d = 0; d < kAxes; ++d)
                candidate.near |= (costs[d] >= 0 && costs[d] <= 2 * costs[axis]) << d;
        }
        plan.step[plan.steps++] = static_cast<uint8_t>(axis | weight << 2);
        int64_t even = (grid.n[axis] + 1) / 2;
        double share = left * static_cast<double>(even) / static_cast<double>(grid.n[axis]);
        candidate.bits += (left - share) * bits;
        left = share;
        grid.n[axis] = even;
        stride[axis] *= 2;
    }
    return candidate;
}

// The best of Lorenzo's predictors, by their codes at the sampled positions.
template <class T>
Candidate plan_lorenzo(const typename T::Value* data, const Extents& extents,
                       typename T::Real step) {
    using Real = typename T::Real;
    const Real inverse = static_cast<Real>(1) / step;
    const uint64_t* points = sample_points();
    CodeHistogram codes[2][3];
    int64_t distance[27];
    for (int i = 0; i < 27; ++i)
        distance[i] = i / 9 * extents.behind(1) + i / 3 % 3 * extents.behind(2) +
                      i % 3 * extents.behind(3);
    for (int k = 0; k < kLorenzoSamples; ++k) {
        int64_t index[kAxes], at = 0;
        for (int d = 0; d < kAxes; ++d) {
            index[d] = sample_index(points[k], d, extents.n[d]);
            at = at * extents.n[d] + index[d];
        }
        // Codes of the value and of up to two before it along each of the last three axes.
        int64_t code[27];
        for (int i = 0; i < 27; ++i) {
            bool inside = i / 9 <= index[1] && i / 3 % 3 <= index[2] && i % 3 <= index[3];
            code[i] = inside ? sampled_code(T::load(data[at - distance[i]]) * inverse) : 0;
        }
        for (int order = 1; order <= 2; ++order) {
            static constexpr int kTaps[2][3] = {{1, -1, 0}, {1, -2, 1}};
            const int* taps = kTaps[order - 1];
            int64_t residual[3] = {};
            for (int i = 0; i < 27; ++i) {
                int64_t last = code[i] * taps[i % 3];
                if (i < 3) residual[0] += last;
                if (i < 9) residual[1] += last * taps[i / 3];
                residual[2] += last * taps[i / 3 % 3] * taps[i / 9];
            }
            for (int axes = 1; axes <= 3; ++axes) {
                int64_t r = residual[axes - 1];
                codes[order - 1][axes - 1].add(r < 0 ? -r : r, r < 0);
            }
        }
    }
    Candidate best;
    best.plan.mode = kLorenzo;
    best.bits = -1;
    for (int order = 1; order <= 2; ++order)
        for (int axes = 1; axes <= 3; ++axes) {
            double bits = codes[order - 1][axes - 1].bits();
            if (best.bits >= 0 && bits >= best.bits) continue;
            best.bits = bits, best.plan.order = order, best.plan.axes = axes;
        }
    return best;
}

// The plan for a tensor. Regression can be asked for, but is never the best of the three.
template <class T>
Plan choose_plan(const typename T::Value* data, const Extents& extents, typename T::Real step) {
    using Real = typename T::Real;
    Candidate halved = plan_interpolation(
        extents, step,
        [&](SampledAxis<Real>& sample, const Extents& grid, const int64_t* stride, int axis,
            int many) { sample.template read<T>(data, grid, stride, axis, many); });
    // Where most codes are not zero, halvings differ little, and each run costs time.
    if (halved.bits > 0.25) halved.plan.share = 3;
    // Lorenzo's codes carry the rounding of every neighbour: below a bit it cannot win.
    if (halved.bits < 1) return halved.plan;
    Candidate lorenzo = plan_lorenzo<T>(data, extents, step);
    return lorenzo.bits < kClearly * halved.bits ? lorenzo.plan : halved.plan;
}

}  // namespace encke::ENCKE_ISA::predict
