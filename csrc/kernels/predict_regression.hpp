// Regression (docs/format.md, section 8): each block of the last axes is predicted by a
// polynomial of first or second order, whose coefficients are codes too.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/chunks.hpp"
#include "kernels/predict_lorenzo.hpp"
#include "kernels/predict_plan.hpp"
#include "kernels/predict_rows.hpp"

namespace encke::ENCKE_ISA::predict {

// The blocks of a tensor: the last three axes are cut into blocks (those before the
// plan's axes into blocks of one), the first is a batch.
class Blocks {
  public:
    static constexpr int kMostTerms = 10, kAlone = 3;

    Blocks(const Plan& plan, const Extents& e) : e_(e), axes_(plan.axes), order_(plan.order) {
        for (int d = 0; d < 3; ++d) {
            side_[d] = d < 3 - axes_ ? 1 : plan.side;
            many_[d] = (e.n[d + 1] + side_[d] - 1) / side_[d];
        }
        while (1 << bits_ < plan.side) ++bits_;
    }
    int64_t count() const { return e_.n[0] * many_[0] * many_[1] * many_[2]; }
    int terms() const { return 1 + axes_ + (order_ == 2 ? axes_ * (axes_ + 1) / 2 : 0); }
    int64_t coefficients() const { return count() * terms(); }

    // Corner, size and first position of one block.
    struct Block {
        int64_t size[3], first;
    };
    Block at(int64_t index) const {
        Block b{};
        int64_t corner[3];
        for (int d = 2; d >= 0; --d) {
            corner[d] = index % many_[d] * side_[d];
            index /= many_[d];
            b.size[d] = std::min(side_[d], e_.n[d + 1] - corner[d]);
        }
        b.first = ((index * e_.n[1] + corner[0]) * e_.n[2] + corner[1]) * e_.n[3] + corner[2];
        return b;
    }
    int64_t position(const Block& b, int64_t i, int64_t j) const {
        return b.first + (i * e_.n[2] + j) * e_.n[3];
    }

    // The power of two that a term's coefficient step is below the value's.
    int shift(int term) const {
        int degree = degree_of(term);
        return degree == 0 ? 1 : degree == 1 ? 1 + bits_ : 2 * bits_;
    }

    // Terms in the order of the format: 1, then for each axis t, and in second order t*t
    // and t times each axis before. f(term, axis, other): other is axis for t*t, kAlone for t.
    template <class F>
    void for_terms(F f) const {
        int term = 1;
        for (int d = 3 - axes_; d < 3; ++d) {
            f(term++, d, kAlone);
            if (order_ < 2) continue;
            f(term++, d, d);
            for (int e = 3 - axes_; e < d; ++e) f(term++, d, e);
        }
    }

    // Predictions of the row (i, j) of a block.
    template <class Real>
    void predict(const Block& b, const Real* c, int64_t i, int64_t j, Real* row) const {
        Real t[4] = {centred<Real>(i, b.size[0]), centred<Real>(j, b.size[1]), 0, 1};
        Real fixed = c[0];
        for (int64_t k = 0; k < b.size[2]; ++k) row[k] = 0;
        bool started = false;
        for_terms([&](int term, int axis, int other) {
            if (axis < 2) {
                fixed = fixed + c[term] * (t[axis] * t[other]);
                return;
            }
            for (int64_t k = 0; k < b.size[2]; ++k) {
                Real tk = centred<Real>(k, b.size[2]);
                Real basis = tk * (other == 2 ? tk : t[other]);
                row[k] = (started ? row[k] : fixed) + c[term] * basis;
            }
            started = true;
        });
    }

    // The least-squares polynomial; the terms are orthogonal once t*t has lost its mean.
    template <class Real>
    void fit(const Block& b, const Real* x, double* c) const {
        double product[kMostTerms] = {}, norm[kMostTerms] = {}, sum = 0, mean[3];
        for (int d = 0; d < 3; ++d)
            mean[d] =
                (static_cast<double>(b.size[d]) * static_cast<double>(b.size[d]) - 1) / 12;
        for (int64_t i = 0; i < b.size[0]; ++i)
            for (int64_t j = 0; j < b.size[1]; ++j) {
                const Real* row = x + position(b, i, j);
                double t[4] = {centred<double>(i, b.size[0]), centred<double>(j, b.size[1]), 0,
                               1};
                // Moments of the row, and of a row of ones, in t of the last axis.
                double m0 = 0, m1 = 0, m2 = 0, width = static_cast<double>(b.size[2]);
                for (int64_t k = 0; k < b.size[2]; ++k) {
                    double v = row[k] - row[k] == 0 ? static_cast<double>(row[k]) : 0.0;
                    double tk = centred<double>(k, b.size[2]);
                    m0 += v, m1 += v * tk, m2 += v * (tk * tk - mean[2]);
                }
                sum += m0;
                for_terms([&](int term, int axis, int other) {
                    if (axis < 2) {
                        double basis = t[axis] * t[other] - (other == axis ? mean[axis] : 0);
                        product[term] += m0 * basis, norm[term] += width * basis * basis;
                    } else if (other == 2) {
                        product[term] += m2;
                        for (int64_t k = 0; k < b.size[2]; ++k) {
                            double tk = centred<double>(k, b.size[2]),
                                   basis = tk * tk - mean[2];
                            norm[term] += basis * basis;
                        }
                    } else {
                        product[term] += m1 * t[other];
                        norm[term] += width * mean[2] * t[other] * t[other];
                    }
                });
            }
        c[0] = sum / static_cast<double>(b.size[0] * b.size[1] * b.size[2]);
        for_terms([&](int term, int axis, int other) {
            c[term] = norm[term] > 0 ? product[term] / norm[term] : 0;
            if (other == axis) c[0] -= c[term] * mean[axis];
        });
    }

  private:
    template <class Real>
    static Real centred(int64_t i, int64_t size) {
        return static_cast<Real>(2 * i - (size - 1)) * static_cast<Real>(0.5);
    }
    int degree_of(int wanted) const {
        int degree = 0;
        for_terms([&](int term, int, int other) {
            if (term == wanted) degree = other == kAlone ? 1 : 2;
        });
        return degree;
    }

    Extents e_;
    int axes_, order_, bits_ = 0;
    int64_t side_[3], many_[3];
};

template <class F>
inline void for_blocks(const Blocks& blocks, int64_t values, F f) {
    for_ranges(blocks.count(), thread_count(blocks.count(), values),
               [&](int64_t first, int64_t last, int thread) {
                   for (int64_t b = first; b < last; ++b) f(thread, b);
                   return ENCKE_OK;
               });
}

// Coefficients from their codes, one lattice for each term.
template <class Real>
inline void coefficients_of(const Blocks& blocks, const int32_t* codes, Real step, Real* c) {
    for (int term = 0; term < blocks.terms(); ++term)
        c[term] = static_cast<Real>(codes[term]) *
                  (step / static_cast<Real>(int64_t{1} << blocks.shift(term)));
}

template <bool kDithered, class Real>
void regression_encode(const Plan& plan, const Extents& e, const Lattice<Real>& l,
                       uint64_t seed, int64_t dither_at, const Real* x, Real* rebuilt,
                       int32_t* coefficients, int32_t* codes, std::vector<int64_t>& outliers) {
    Blocks blocks(plan, e);
    const int terms = blocks.terms();
    std::vector<std::vector<int64_t>> failed(Parts::kMost);
    for_blocks(blocks, e.size(), [&](int thread, int64_t index) {
        Blocks::Block b = blocks.at(index);
        double fitted[Blocks::kMostTerms];
        blocks.fit(b, x, fitted);
        int32_t* own = coefficients + index * terms;
        for (int term = 0; term < terms; ++term) {
            double scaled = fitted[term] / static_cast<double>(l.step) *
                            static_cast<double>(int64_t{1} << blocks.shift(term));
            bool fits = scaled <= 0x1p21 && scaled >= -0x1p21;
            own[term] = fits ? nearest(scaled) : 0;
        }
        Real c[Blocks::kMostTerms], row[64], y[64], u[64];
        coefficients_of(blocks, own, l.step, c);
        for (int64_t i = 0; i < b.size[0]; ++i)
            for (int64_t j = 0; j < b.size[1]; ++j) {
                int64_t at = blocks.position(b, i, j), n = b.size[2];
                blocks.predict(b, c, i, j, row);
                if constexpr (kDithered) fill_dither(u, seed, dither_at + at, n);
                Predictions<Real> from{row};
                bool good = encode_row<kDithered>(from, x + at, u, l, y, codes + at, n);
                if (rebuilt) std::copy_n(y, n, rebuilt + at);
                if (!good && !rebuilt) list_failures(x + at, y, l, at, n, failed[thread]);
            }
    });
    for (const auto& list : failed) outliers.insert(outliers.end(), list.begin(), list.end());
    for (int64_t k = blocks.coefficients() - 1; k >= terms; --k)
        coefficients[k] = wrap_difference(coefficients[k], coefficients[k - terms]);
}

template <bool kDithered, class Real>
void regression_decode(const Plan& plan, const Extents& e, Real step, uint64_t seed,
                       int64_t dither_at, int32_t* coefficients, const int32_t* codes,
                       Real* out) {
    Blocks blocks(plan, e);
    const int terms = blocks.terms();
    for (int64_t k = terms; k < blocks.coefficients(); ++k)
        coefficients[k] = wrap_sum(coefficients[k], coefficients[k - terms]);
    for_blocks(blocks, e.size(), [&](int, int64_t index) {
        Blocks::Block b = blocks.at(index);
        Real c[Blocks::kMostTerms], row[64], u[64];
        coefficients_of(blocks, coefficients + index * terms, step, c);
        for (int64_t i = 0; i < b.size[0]; ++i)
            for (int64_t j = 0; j < b.size[1]; ++j) {
                int64_t at = blocks.position(b, i, j), n = b.size[2];
                blocks.predict(b, c, i, j, row);
                if constexpr (kDithered) fill_dither(u, seed, dither_at + at, n);
                Predictions<Real> from{row};
                decode_row<kDithered>(from, codes + at, u, step, out + at, n);
            }
    });
}

}  // namespace encke::ENCKE_ISA::predict
