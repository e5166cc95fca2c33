// The three ways to predict, behind one face: pieces of codes, encode, decode.
#pragma once

#include <vector>

#include "kernels/predict_fill.hpp"
#include "kernels/predict_holes.hpp"
#include "kernels/predict_interpolate.hpp"
#include "kernels/predict_lorenzo.hpp"
#include "kernels/predict_lorenzo_holes.hpp"
#include "kernels/predict_payload.hpp"
#include "kernels/predict_regression.hpp"

namespace encke::ENCKE_ISA::predict {

// Memory for one call, kept for the next unless it is large.
class Arena {
  public:
    // False if there is no memory for `size` bytes.
    bool open(size_t size) {
        bytes_.clear();
        if (bytes_.capacity() < size) bytes_.release();
        at_ = bytes_.reserve(size);
        return at_ != nullptr;
    }
    template <class V>
    V* take(int64_t count) {
        V* here = reinterpret_cast<V*>(at_);
        at_ += room<V>(count);
        return here;
    }
    template <class V>
    static size_t room(int64_t count) {
        return (static_cast<size_t>(count) * sizeof(V) + 63) / 64 * 64;
    }
    void close() {
        if (bytes_.capacity() > size_t{256} << 20) bytes_.release();
    }

  private:
    Bytes bytes_;
    uint8_t* at_ = nullptr;
};

inline Arena& arena() {
    thread_local Arena arena;
    return arena;
}

template <class Real>
struct Coding {
    const Plan* plan;
    Extents extents;
    bool dithered;
    uint64_t seed;
    double step;
    Lattice<Real> lattice;
    Runs runs;
    const ValidGrids* valid;  // null where every position has a value
};

// The largest code of a mode: differences of such codes stay clear of the two ends of the
// 32-bit range, which mean something else to the entropy stage.
template <class Real>
Real largest_code(const Plan& plan) {
    if (sizeof(Real) == 4) return 0x1p21f;
    if (plan.mode != kLorenzo) return static_cast<Real>(0x1p29);
    return static_cast<Real>(plan.order == 1 ? 0x1p27 : 0x1p24);
}

// The grids of an interpolation, finest first: grids[0] is the tensor.
inline std::vector<Extents> grids_of(const Plan& plan, const Extents& extents) {
    std::vector<Extents> grids{extents};
    for (int i = 0; i < plan.steps; ++i) {
        Extents next = grids.back();
        int64_t& n = next.n[plan.axis(i)];
        n = (n + 1) / 2;
        grids.push_back(next);
    }
    return grids;
}

// How many codes each part of the traversal has, in order.
inline std::vector<int64_t> pieces_of(const Plan& plan, const Extents& extents) {
    if (plan.mode == kLorenzo) return {extents.size()};
    if (plan.mode == kRegression) return {Blocks(plan, extents).coefficients(), extents.size()};
    std::vector<Extents> grids = grids_of(plan, extents);
    std::vector<int64_t> pieces{grids.back().size()};
    for (int i = plan.steps - 1; i >= 0; --i)
        pieces.push_back(grids[i].size() - grids[i + 1].size());
    return pieces;
}

template <class Real>
Lattice<Real> lattice_at(const Coding<Real>& c, int halving) {
    Lattice<Real> l = c.lattice;
    l.step = static_cast<Real>(c.step * lattice_share(*c.plan, halving) / 64.0);
    l.inverse = static_cast<Real>(1) / l.step;
    return l;
}

// Walks the halvings from the coarsest to the finest: f(i, context, first code).
template <class Real, class F>
void for_halvings(const Coding<Real>& c, const std::vector<Extents>& grids, F f) {
    const Plan& plan = *c.plan;
    int64_t at = grids.back().size();
    size_t run = 0;
    for (int i = plan.steps - 1; i >= 0; --i) {
        while (at >= c.runs.all[run].first + c.runs.all[run].count) ++run;
        int axis = plan.axis(i), weight = plan.weight(i);
        StepContext<Real> s{{grids[i].before(axis), grids[i].n[axis], grids[i].behind(axis)},
                            static_cast<Real>(weight) / 16,
                            static_cast<Real>(8 - weight) / 16,
                            lattice_at(c, i),
                            run_seed(c.seed, run),
                            at - c.runs.all[run].first};
        f(i, s, at);
        at += s.h.odd_size();
    }
}

// Codes of the coarsest grid, which nothing predicts but, if so planned, its neighbour.
template <bool kDithered, class Real>
void encode_base(const Coding<Real>& c, const Real* x, int64_t n, Real* y, int32_t* codes) {
    Lattice<Real> l = lattice_at(c, c.plan->steps);
    uint32_t before = 0;
    Real u[256];
    for (int64_t at = 0; at < n; at += 256) {
        int64_t here = std::min<int64_t>(256, n - at);
        if constexpr (kDithered) fill_dither(u, run_seed(c.seed, 0), at, here);
        for (int64_t i = 0; i < here; ++i) {
            auto r = quantise_against<kDithered>(x[at + i], Real{0}, kDithered ? u[i] : 0, l);
            y[at + i] = r.value;
            uint32_t code = static_cast<uint32_t>(static_cast<int32_t>(r.rounded));
            codes[at + i] = static_cast<int32_t>(c.plan->difference ? code - before : code);
            before = code;
        }
    }
}

template <bool kDithered, class Real>
void decode_base(const Coding<Real>& c, const int32_t* codes, int64_t n, Real* y) {
    Lattice<Real> l = lattice_at(c, c.plan->steps);
    uint32_t sum = 0;
    Real u[256];
    for (int64_t at = 0; at < n; at += 256) {
        int64_t here = std::min<int64_t>(256, n - at);
        if constexpr (kDithered) fill_dither(u, run_seed(c.seed, 0), at, here);
        for (int64_t i = 0; i < here; ++i) {
            uint32_t code = static_cast<uint32_t>(codes[at + i]);
            sum = c.plan->difference ? sum + code : code;
            Real rounded = static_cast<Real>(static_cast<int32_t>(sum));
            y[at + i] = Real{0} + (kDithered ? rounded - u[i] : rounded) * l.step;
        }
    }
}

// Makes the holes of grid i, as it was rebuilt, fit to be predicted from.
template <class Real>
void fill_grid(const Coding<Real>& c, const std::vector<Extents>& grids, int i, Real* y) {
    if (!c.valid || !c.valid->has_holes(i)) return;
    const Extents& grid = grids[static_cast<size_t>(i)];
    if (i == c.plan->steps) carry_over(c.valid->grid(i), grid.size(), y);
    HoleFiller<Real>(*c.plan, grid, y).run(c.valid->grid(i));
}

// Values that the interpolation needs memory for, beside the tensor and its codes.
inline int64_t interpolation_room(const std::vector<Extents>& grids, bool encoding) {
    int64_t room = 0;
    for (size_t i = 1; i < grids.size(); ++i)
        if (encoding || i < 3) room += grids[i].size() + 16;
    if (!encoding) return room;
    for (size_t i = 1; i < grids.size() && i < 3; ++i) room += grids[i].size() + 16;
    return room;
}

// `rebuilt` may be null; then positions beyond the bound go to `outliers`.
template <bool kDithered, class Real>
void interpolation_encode(const Coding<Real>& c, const Real* x, Real* room, Real* rebuilt,
                          int32_t* codes, std::vector<int64_t>& outliers) {
    const Plan& plan = *c.plan;
    std::vector<Extents> grids = grids_of(plan, c.extents);
    std::vector<const Real*> truth{x};
    for (int i = 0; i < plan.steps; ++i) {
        int axis = plan.axis(i);
        Halving h{grids[i].before(axis), grids[i].n[axis], grids[i].behind(axis)};
        take_even(h, truth[i], room);
        truth.push_back(room);
        room += h.even_size() + 16;
    }
    Real* turns[2] = {room, room};
    if (plan.steps > 0) turns[0] = room + grids[1].size() + 16;
    // Grid i is rebuilt in turns[i % 2]: grid 1, the largest, in the second.
    Real* coarsest = plan.steps == 0 && rebuilt ? rebuilt : turns[plan.steps % 2];
    std::vector<Real> alone;
    if (plan.steps == 0 && !rebuilt) {
        alone.resize(static_cast<size_t>(c.extents.size()));
        coarsest = alone.data();
    }
    encode_base<kDithered>(c, truth.back(), grids.back().size(), coarsest, codes);
    auto check_base = [&] {
        const Extents& g = grids.back();
        for (int64_t k = 0; k < g.size(); ++k) {
            if (c.lattice.holes && truth.back()[k] != truth.back()[k]) continue;
            Real error = coarsest[k] - truth.back()[k];
            if (!((error < 0 ? -error : error) <= c.lattice.error))
                outliers.push_back(origin(plan, plan.steps, c.extents, g, k));
        }
    };
    if (!rebuilt) check_base();
    for_halvings(c, grids, [&](int i, const StepContext<Real>& s, int64_t at) {
        Real* even = i + 1 == plan.steps ? coarsest : turns[(i + 1) % 2];
        Real* to = i == 0 ? rebuilt : turns[i % 2];
        fill_grid(c, grids, i + 1, even);
        if (rebuilt) {
            encode_step<kDithered>(s, truth[i], even, to, codes + at, nullptr);
            return;
        }
        std::vector<std::vector<int64_t>> failed(Parts::kMost);
        encode_step<kDithered>(s, truth[i], even, to, codes + at, failed.data());
        for (const auto& list : failed)
            for (int64_t packed : list) {
                int64_t row = packed / s.h.inner, odd = s.h.odd();
                int64_t k =
                    (row / odd * s.h.n + 2 * (row % odd) + 1) * s.h.inner + packed % s.h.inner;
                outliers.push_back(origin(plan, i, c.extents, grids[i], k));
            }
    });
}

template <bool kDithered, class Real>
void interpolation_decode(const Coding<Real>& c, const int32_t* codes, Real* room, Real* out) {
    const Plan& plan = *c.plan;
    std::vector<Extents> grids = grids_of(plan, c.extents);
    Real* turns[2] = {room, room};
    if (plan.steps > 0) turns[0] = room + grids[1].size() + 16;
    Real* coarsest = plan.steps == 0 ? out : turns[plan.steps % 2];
    decode_base<kDithered>(c, codes, grids.back().size(), coarsest);
    for_halvings(c, grids, [&](int i, const StepContext<Real>& s, int64_t at) {
        fill_grid(c, grids, i + 1, turns[(i + 1) % 2]);
        decode_step<kDithered>(s, turns[(i + 1) % 2], codes + at, i == 0 ? out : turns[i % 2]);
    });
}

}  // namespace encke::ENCKE_ISA::predict
