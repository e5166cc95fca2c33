// Interpolation by halving (docs/format.md, section 8): the grid is halved along one axis
// after the other, and each step back predicts the values between from those around them.
//
// Prediction uses what the decoder will have, so errors do not add up. A step touches
// contiguous runs only: the grids of all steps are kept compact.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/chunks.hpp"
#include "kernels/predict_plan.hpp"
#include "kernels/predict_rows.hpp"

namespace encke::ENCKE_ISA::predict {

// One halving: a grid seen as (outer, n, inner), its even part (outer, ceil(n/2), inner).
struct Halving {
    int64_t outer, n, inner;
    int64_t even() const { return (n + 1) / 2; }
    int64_t odd() const { return n / 2; }
    int64_t size() const { return outer * n * inner; }
    int64_t even_size() const { return outer * even() * inner; }
    int64_t odd_size() const { return outer * odd() * inner; }
};

// How the codes of one step are computed.
template <class Real>
struct StepContext {
    Halving h;
    Real near, far;  // weights of the neighbours
    Lattice<Real> lattice;
    uint64_t seed;      // of the dither of the step's run
    int64_t dither_at;  // the step's first position in it
};

constexpr int64_t kTile = 1024;
// Rows from this length on are worked on where they are.
constexpr int64_t kLongRow = 32;

template <class Real>
inline void take_even(const Halving& h, const Real* grid, Real* even) {
    if (h.inner == 1) {
        int64_t lines = h.n % 2 ? h.outer : 1, length = h.n % 2 ? h.even() : h.even_size();
        for (int64_t o = 0; o < lines; ++o, grid += h.n, even += length)
            for (int64_t j = 0; j < length; ++j) even[j] = grid[2 * j];
        return;
    }
    for (int64_t o = 0; o < h.outer; ++o)
        for (int64_t j = 0; j < h.even(); ++j)
            std::copy_n(grid + (o * h.n + 2 * j) * h.inner, h.inner,
                        even + (o * h.even() + j) * h.inner);
}

// Calls row(neighbours, j, at, n) for stretches of at most kTile values of the odd rows
// first .. last - 1 of line o, `at` being the position in the row.
template <class Real, class F>
inline void for_long_rows(const StepContext<Real>& s, const Real* even, int64_t o,
                          int64_t first, int64_t last, F row) {
    const Halving& h = s.h;
    const int64_t end = h.even() - 1;
    const Real* line = even + o * h.even() * h.inner;
    for (int64_t j = first; j < last; ++j)
        for (int64_t at = 0; at < h.inner; at += kTile) {
            const Real* b = line + at;
            Neighbours<Real> from{b + std::max<int64_t>(j - 1, 0) * h.inner,
                                  b + j * h.inner,
                                  b + std::min(j + 1, end) * h.inner,
                                  b + std::min(j + 2, end) * h.inner,
                                  s.near,
                                  s.far};
            row(from, j, at, std::min(kTile, h.inner - at));
        }
}

// Calls row(neighbours, j, n) for stretches of n whole odd rows of line o; the neighbours
// are copied so that what the edges lack is there.
template <class Real, class F>
inline void for_short_rows(const StepContext<Real>& s, const Real* even, int64_t o, F row) {
    const Halving& h = s.h;
    const int64_t most = kTile / h.inner, inner = h.inner, end = h.even() - 1;
    alignas(64) Real padded[kTile + 3 * kLongRow];
    const Real* line = even + o * h.even() * inner;
    for (int64_t j = 0; j < h.odd(); j += most) {
        int64_t n = std::min(most, h.odd() - j);
        // Rows j - 1 .. j + n + 1, those outside replaced by the nearest inside.
        int64_t from = std::max<int64_t>(j - 1, 0), to = std::min(j + n + 1, end);
        Real* inside = padded + (from - (j - 1)) * inner;
        std::copy(line + from * inner, line + (to + 1) * inner, inside);
        if (j == 0) std::copy_n(line, inner, padded);
        for (int64_t k = to + 1; k <= j + n + 1; ++k)
            std::copy_n(line + end * inner, inner, padded + (k - j + 1) * inner);
        row(Neighbours<Real>{padded, padded + inner, padded + 2 * inner, padded + 3 * inner,
                             s.near, s.far},
            j, n);
    }
}

// The odd rows j .. j + n - 1 of a line, packed.
template <class Real>
inline void gather_odd(const Halving& h, const Real* line, int64_t j, int64_t n, Real* to) {
    line += (2 * j + 1) * h.inner;
    for (int64_t r = 0; r < n; ++r)
        for (int64_t i = 0; i < h.inner; ++i) to[r * h.inner + i] = line[2 * r * h.inner + i];
}

// The rows 2j .. 2j + 2n - 1 of a line from their even and odd halves.
template <class Real>
inline void interleave(const Halving& h, const Real* even, const Real* odd, int64_t j,
                       int64_t n, Real* line) {
    line += 2 * j * h.inner;
    for (int64_t r = 0; r < n; ++r, line += 2 * h.inner)
        for (int64_t i = 0; i < h.inner; ++i) {
            line[i] = even[r * h.inner + i];
            line[h.inner + i] = odd[r * h.inner + i];
        }
}

// The last even row of a line of odd length has no odd row behind it.
template <class Real>
inline void copy_last(const Halving& h, const Real* even, int64_t o, Real* grid) {
    if (h.n % 2 == 0) return;
    std::copy_n(even + ((o + 1) * h.even() - 1) * h.inner, h.inner,
                grid + ((o + 1) * h.n - 1) * h.inner);
}

// Calls f(o, first odd row, last odd row, thread) on the threads there are: over rows where
// they are long, else over lines.
template <class F>
inline void for_lines(const Halving& h, F f) {
    const bool rows = h.inner >= kLongRow;
    const int64_t units = rows ? h.outer * h.odd() : h.outer;
    for_ranges(units, thread_count(units, h.odd_size()),
               [&](int64_t first, int64_t last, int thread) {
                   for (int64_t unit = first; unit < last;) {
                       int64_t o = rows ? unit / h.odd() : unit;
                       int64_t j = rows ? unit % h.odd() : 0;
                       int64_t stop = rows ? std::min(h.odd(), j + last - unit) : h.odd();
                       f(o, j, stop, thread);
                       unit += rows ? stop - j : 1;
                   }
                   return ENCKE_OK;
               });
}

// One step of the encoder. `grid` are the true values, `even` the reconstructed even part;
// the codes of the odd part go to `codes`, and, unless null, the reconstruction of the
// whole grid to `rebuilt`. Odd positions beyond the bound go to `failed` unless that is
// null, one list a thread.
template <bool kDithered, class Real>
void encode_step(const StepContext<Real>& s, const Real* grid, const Real* even, Real* rebuilt,
                 int32_t* codes, std::vector<int64_t>* failed) {
    const Halving& h = s.h;
    for_lines(h, [&](int64_t o, int64_t first, int64_t last, int thread) {
        alignas(64) Real x[kTile], y[kTile], pairs[2 * kTile], u[kDithered ? kTile : 1];
        const Real* line = grid + o * h.n * h.inner;
        Real* built = rebuilt ? rebuilt + o * h.n * h.inner : nullptr;
        auto code = [&](const Neighbours<Real>& from, const Real* truth, int64_t at, int64_t n,
                        Real* to) {
            if constexpr (kDithered) fill_dither(u, s.seed, s.dither_at + at, n);
            bool good = encode_row<kDithered>(from, truth, u, s.lattice, to, codes + at, n);
            if (!good && failed) list_failures(truth, to, s.lattice, at, n, failed[thread]);
        };
        if (h.inner >= kLongRow) {
            for_long_rows(s, even, o, first, last,
                          [&](const Neighbours<Real>& from, int64_t j, int64_t i, int64_t n) {
                              int64_t row = 2 * j * h.inner + i;
                              if (built) std::copy_n(from.b, n, built + row);
                              code(from, line + row + h.inner, (o * h.odd() + j) * h.inner + i,
                                   n, built ? built + row + h.inner : y);
                          });
        } else if (h.inner > 1) {
            for_short_rows(s, even, o, [&](const Neighbours<Real>& from, int64_t j, int64_t n) {
                gather_odd(h, line, j, n, x);
                code(from, x, (o * h.odd() + j) * h.inner, n * h.inner, y);
                if (built) interleave(h, from.b, y, j, n, built);
            });
        } else {
            for_short_rows(s, even, o, [&](const Neighbours<Real>& from, int64_t j, int64_t n) {
                int64_t at = o * h.odd() + j;
                if constexpr (kDithered) fill_dither(u, s.seed, s.dither_at + at, n);
                Real* to = built ? built + 2 * j : pairs;
                bool good = encode_pairs<kDithered>(from, line + 2 * j, u, s.lattice, to,
                                                    codes + at, n);
                if (good || !failed) return;
                for (int64_t i = 0; i < n; ++i)
                    x[i] = line[2 * (j + i) + 1], y[i] = to[2 * i + 1];
                list_failures(x, y, s.lattice, at, n, failed[thread]);
            });
        }
        if (built && last == h.odd()) copy_last(h, even, o, rebuilt);
    });
}

template <bool kDithered, class Real>
void decode_step(const StepContext<Real>& s, const Real* even, const int32_t* codes,
                 Real* rebuilt) {
    const Halving& h = s.h;
    for_lines(h, [&](int64_t o, int64_t first, int64_t last, int) {
        alignas(64) Real y[kTile], u[kDithered ? kTile : 1];
        Real* built = rebuilt + o * h.n * h.inner;
        auto decode = [&](const Neighbours<Real>& from, int64_t at, int64_t n, Real* to) {
            if constexpr (kDithered) fill_dither(u, s.seed, s.dither_at + at, n);
            decode_row<kDithered>(from, codes + at, u, s.lattice.step, to, n);
        };
        if (h.inner >= kLongRow) {
            for_long_rows(s, even, o, first, last,
                          [&](const Neighbours<Real>& from, int64_t j, int64_t i, int64_t n) {
                              Real* row = built + 2 * j * h.inner + i;
                              std::copy_n(from.b, n, row);
                              decode(from, (o * h.odd() + j) * h.inner + i, n, row + h.inner);
                          });
        } else if (h.inner > 1) {
            for_short_rows(s, even, o, [&](const Neighbours<Real>& from, int64_t j, int64_t n) {
                decode(from, (o * h.odd() + j) * h.inner, n * h.inner, y);
                interleave(h, from.b, y, j, n, built);
            });
        } else {
            for_short_rows(s, even, o, [&](const Neighbours<Real>& from, int64_t j, int64_t n) {
                int64_t at = o * h.odd() + j;
                if constexpr (kDithered) fill_dither(u, s.seed, s.dither_at + at, n);
                decode_pairs<kDithered>(from, codes + at, u, s.lattice.step, built + 2 * j, n);
            });
        }
        if (last == h.odd()) copy_last(h, even, o, rebuilt);
    });
}

}  // namespace encke::ENCKE_ISA::predict
