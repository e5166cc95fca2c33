// Lorenzo prediction (docs/format.md, section 8) on codes instead of values: quantised
// first, then differenced once or twice along each axis. Integers lose nothing on the way,
// and no value waits for its neighbour.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/chunks.hpp"
#include "kernels/predict_plan.hpp"
#include "kernels/predict_rows.hpp"

namespace encke::ENCKE_ISA::predict {

// Calls f(first, n) on stretches of the tensor.
template <class F>
inline void for_stretches(int64_t count, F f) {
    constexpr int64_t kStretch = 4096;
    int64_t stretches = (count + kStretch - 1) / kStretch;
    for_ranges(stretches, thread_count(stretches, count),
               [&](int64_t first, int64_t last, int thread) {
                   for (int64_t s = first; s < last; ++s)
                       f(thread, s * kStretch, std::min(kStretch, count - s * kStretch));
                   return ENCKE_OK;
               });
}

// Calls f(pointer to the first row, rows, row to row, values of a row) for independent
// columns of rows along `axis`.
template <class F>
inline void for_columns(const Extents& e, int axis, int32_t* codes, F f) {
    constexpr int64_t kWidth = 1024;
    const int64_t n = e.n[axis], inner = e.behind(axis), outer = e.before(axis);
    const int64_t parts = (inner + kWidth - 1) / kWidth;
    for_ranges(outer * parts, thread_count(outer * parts, e.size()),
               [&](int64_t first, int64_t last, int) {
                   for (int64_t unit = first; unit < last; ++unit) {
                       int64_t o = unit / parts, at = unit % parts * kWidth;
                       f(codes + o * n * inner + at, n, inner, std::min(kWidth, inner - at));
                   }
                   return ENCKE_OK;
               });
}

// Sums and differences wrap around at 2^32, so that they are inverse to each other.
inline int32_t wrap_sum(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline int32_t wrap_difference(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}

// The sums of a row, in place.
inline void sum_row(int32_t* row, int64_t n) {
    int64_t i = 0;
    int32_t sum = 0;
#ifdef __AVX2__
    __m256i carry = _mm256_setzero_si256();
    const __m256i last = _mm256_set1_epi32(7);
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i));
        v = _mm256_add_epi32(v, _mm256_slli_si256(v, 4));
        v = _mm256_add_epi32(v, _mm256_slli_si256(v, 8));
        // The total of the low half, added to the high half.
        __m256i low = _mm256_permute2x128_si256(v, v, 0x08);
        v = _mm256_add_epi32(v, _mm256_shuffle_epi32(low, 0xFF));
        v = _mm256_add_epi32(v, carry);
        carry = _mm256_permutevar8x32_epi32(v, last);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i), v);
    }
    sum = _mm256_cvtsi256_si32(carry);
#endif
    for (; i < n; ++i) row[i] = sum = wrap_sum(sum, row[i]);
}

// First order along two or three axes, row by row: with s the codes and d their differences,
// d = s - above - before + both along the last but one and the one before that.
inline void difference_rows(const Extents& e, int axes, int32_t* codes) {
    const int64_t width = e.n[3], rows = e.n[2], plane = rows * width;
    const int64_t planes = axes == 3 ? e.n[1] : 1, cubes = e.size() / (planes * plane);
    for (int64_t at = cubes * planes * rows - 1; at >= 0; --at) {
        int32_t* row = codes + at * width;
        const bool first_row = at % rows == 0, first_plane = at / rows % planes == 0;
        if (!first_row && !first_plane) {
            const int32_t *above = row - width, *before = row - plane, *both = before - width;
            for (int64_t i = 0; i < width; ++i)
                row[i] = wrap_difference(wrap_difference(row[i], above[i]),
                                         wrap_difference(before[i], both[i]));
        } else if (!first_row || !first_plane) {
            const int32_t* from = first_row ? row - plane : row - width;
            for (int64_t i = 0; i < width; ++i) row[i] = wrap_difference(row[i], from[i]);
        }
        for (int64_t i = width - 1; i > 0; --i) row[i] = wrap_difference(row[i], row[i - 1]);
    }
}

inline void sum_rows(const Extents& e, int axes, int32_t* codes) {
    const int64_t width = e.n[3], rows = e.n[2], plane = rows * width;
    const int64_t planes = axes == 3 ? e.n[1] : 1, cubes = e.size() / (planes * plane);
    for (int64_t at = 0; at < cubes * planes * rows; ++at) {
        int32_t* row = codes + at * width;
        const bool first_row = at % rows == 0, first_plane = at / rows % planes == 0;
        sum_row(row, width);
        if (!first_row && !first_plane) {
            const int32_t *above = row - width, *before = row - plane, *both = before - width;
            for (int64_t i = 0; i < width; ++i)
                row[i] =
                    wrap_sum(wrap_sum(row[i], above[i]), wrap_difference(before[i], both[i]));
        } else if (!first_row || !first_plane) {
            const int32_t* from = first_row ? row - plane : row - width;
            for (int64_t i = 0; i < width; ++i) row[i] = wrap_sum(row[i], from[i]);
        }
    }
}

// Whether one thread does it all, and in a single pass over memory.
inline bool in_one_pass(const Plan& plan, const Extents& e) {
    return plan.order == 1 && plan.axes > 1 && thread_count(e.size() / 1024, e.size()) == 1;
}

inline void lorenzo_difference(const Plan& plan, const Extents& e, int32_t* codes) {
    if (in_one_pass(plan, e)) return difference_rows(e, plan.axes, codes);
    for (int axis = kAxes - plan.axes; axis < kAxes; ++axis)
        for (int pass = 0; pass < plan.order; ++pass)
            for_columns(e, axis, codes,
                        [](int32_t* at, int64_t rows, int64_t by, int64_t width) {
                            for (int64_t j = rows - 1; j > 0; --j)
                                for (int64_t i = 0; i < width; ++i)
                                    at[j * by + i] =
                                        wrap_difference(at[j * by + i], at[(j - 1) * by + i]);
                        });
}

inline void lorenzo_sum(const Plan& plan, const Extents& e, int32_t* codes) {
    if (in_one_pass(plan, e)) return sum_rows(e, plan.axes, codes);
    for (int axis = kAxes - 1; axis >= kAxes - plan.axes; --axis)
        for (int pass = 0; pass < plan.order; ++pass)
            for_columns(
                e, axis, codes, [](int32_t* at, int64_t rows, int64_t by, int64_t width) {
                    if (by == 1) return sum_row(at, rows);
                    for (int64_t j = 1; j < rows; ++j)
                        for (int64_t i = 0; i < width; ++i)
                            at[j * by + i] = wrap_sum(at[j * by + i], at[(j - 1) * by + i]);
                });
}

// Values to codes on the lattice, each against zero.
template <bool kDithered, class Real>
void lorenzo_quantise(const Extents& e, const Lattice<Real>& l, uint64_t seed, const Real* x,
                      Real* rebuilt, int32_t* codes, std::vector<int64_t>& outliers) {
    std::vector<std::vector<int64_t>> failed(Parts::kMost);
    for_stretches(e.size(), [&](int thread, int64_t first, int64_t n) {
        alignas(64) Real y[4096], u[kDithered ? 4096 : 1];
        if constexpr (kDithered) fill_dither(u, seed, first, n);
        bool good =
            encode_row<kDithered>(Nothing<Real>{}, x + first, u, l, y, codes + first, n);
        if (rebuilt) std::copy_n(y, n, rebuilt + first);
        if (!good && !rebuilt) list_failures(x + first, y, l, first, n, failed[thread]);
    });
    for (const auto& list : failed) outliers.insert(outliers.end(), list.begin(), list.end());
}

template <bool kDithered, class Real>
void lorenzo_rebuild(const Extents& e, Real step, uint64_t seed, const int32_t* codes,
                     Real* out) {
    for_stretches(e.size(), [&](int, int64_t first, int64_t n) {
        alignas(64) Real u[kDithered ? 4096 : 1];
        if constexpr (kDithered) fill_dither(u, seed, first, n);
        decode_row<kDithered>(Nothing<Real>{}, codes + first, u, step, out + first, n);
    });
}

}  // namespace encke::ENCKE_ISA::predict
