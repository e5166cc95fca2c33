// Fields with holes (docs/format.md, section 8): positions without a value have no code, and
// their neighbours are predicted from what holes beside values are filled with.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/predict_interpolate.hpp"
#include "kernels/predict_plan.hpp"

namespace encke::ENCKE_ISA::predict {

inline int64_t count_valid(const uint8_t* valid, int64_t n) {
    int64_t sum = 0, at = 0;
#ifdef __AVX2__
    __m256i sums = _mm256_setzero_si256();
    for (; at + 32 <= n; at += 32) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(valid + at));
        sums = _mm256_add_epi64(sums, _mm256_sad_epu8(v, _mm256_setzero_si256()));
    }
    int64_t parts[4];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), sums);
    sum = parts[0] + parts[1] + parts[2] + parts[3];
#endif
    for (; at < n; ++at) sum += valid[at];
    return sum;
}

#ifdef __AVX2__
// For eight bits: which of eight values are chosen, one behind the other, and the inverse.
struct Shuffles {
    uint64_t close[256], open[256];
    Shuffles() {
        for (int bits = 0; bits < 256; ++bits) {
            uint8_t to[8] = {}, from[8] = {};
            int n = 0;
            for (int i = 0; i < 8; ++i) {
                from[i] = static_cast<uint8_t>(n & 7);
                if (bits >> i & 1) to[n++] = static_cast<uint8_t>(i);
            }
            std::memcpy(&close[bits], to, 8);
            std::memcpy(&open[bits], from, 8);
        }
    }
    static const Shuffles& table() {
        static const Shuffles shuffles;
        return shuffles;
    }
};

inline __m256i lanes_of(uint64_t eight) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(eight)));
}
#endif

// The codes of valid positions, closed up in place; how many they are.
inline int64_t close_up(int32_t* codes, const uint8_t* valid, int64_t n) {
    int64_t to = 0, i = 0;
#ifdef __AVX2__
    const Shuffles& shuffles = Shuffles::table();
    for (; i + 8 <= n; i += 8) {
        uint64_t bits = _pext_u64(read<uint64_t>(valid + i), 0x0101010101010101u);
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
        v = _mm256_permutevar8x32_epi32(v, lanes_of(shuffles.close[bits]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + to), v);
        to += __builtin_popcountll(bits);
    }
#endif
    for (; i < n; ++i) {
        codes[to] = codes[i];
        to += valid[i];
    }
    return to;
}

// The inverse, from memory of its own that has room for eight more; holes take 0. Gives the
// first code that was not used.
inline const int32_t* open_up(const int32_t* from, const uint8_t* valid, int64_t n,
                              int32_t* codes) {
    int64_t i = 0;
#ifdef __AVX2__
    const Shuffles& shuffles = Shuffles::table();
    for (; i + 8 <= n; i += 8) {
        uint64_t eight = read<uint64_t>(valid + i);
        uint64_t bits = _pext_u64(eight, 0x0101010101010101u);
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        v = _mm256_permutevar8x32_epi32(v, lanes_of(shuffles.open[bits]));
        __m256i keep = _mm256_sub_epi32(_mm256_setzero_si256(), lanes_of(eight));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm256_and_si256(v, keep));
        from += __builtin_popcountll(bits);
    }
#endif
    for (; i < n; ++i) {
        codes[i] = valid[i] ? *from : 0;
        from += valid[i];
    }
    return from;
}

// Which positions of each grid, and of the codes in their order, have a value.
class ValidGrids {
  public:
    // `valid` has 0 or 1 for each value of the tensor.
    ValidGrids(const Plan& plan, const std::vector<Extents>& grids, const uint8_t* valid)
        : grids_(grids) {
        valid_.push_back(valid);
        many_.push_back(count_valid(valid, grids[0].size()));
        if (plan.steps == 0) return;
        order_.reset(new uint8_t[static_cast<size_t>(grids[0].size())]);
        size_t room = 0;
        for (size_t i = 1; i < grids.size(); ++i)
            room += static_cast<size_t>(grids[i].size()) + 32;
        bytes_.reset(new uint8_t[room]);
        uint8_t* at = bytes_.get();
        for (int i = 0; i < plan.steps; ++i) {
            Halving h = halving(plan, i);
            take_even(h, valid_.back(), at);
            valid_.push_back(at);
            at += grids[static_cast<size_t>(i) + 1].size() + 32;
        }
        uint8_t* to = order_.get();
        to = std::copy_n(valid_.back(), grids.back().size(), to);
        for (int i = plan.steps - 1; i >= 0; --i) to = take_odd(halving(plan, i), i, to);
        for (size_t i = 1; i < grids.size(); ++i)
            many_.push_back(count_valid(valid_[i], grids[i].size()));
    }

    // How many codes each part of the traversal has, in order.
    std::vector<int64_t> pieces() const {
        std::vector<int64_t> pieces{many_.back()};
        for (size_t i = many_.size() - 1; i > 0; --i) pieces.push_back(many_[i - 1] - many_[i]);
        return pieces;
    }
    const uint8_t* order() const { return order_ ? order_.get() : valid_[0]; }
    const uint8_t* grid(int i) const { return valid_[static_cast<size_t>(i)]; }
    bool has_holes(int i) const {
        size_t at = static_cast<size_t>(i);
        return many_[at] < grids_[at].size();
    }

  private:
    Halving halving(const Plan& plan, int i) const {
        const Extents& grid = grids_[static_cast<size_t>(i)];
        int axis = plan.axis(i);
        return {grid.before(axis), grid.n[axis], grid.behind(axis)};
    }
    uint8_t* take_odd(const Halving& h, int i, uint8_t* to) const {
        const uint8_t* from = grid(i);
        for (int64_t o = 0; o < h.outer; ++o, from += h.n * h.inner) {
            if (h.inner == 1)
                for (int64_t j = 0; j < h.odd(); ++j) to[j] = from[2 * j + 1];
            else
                for (int64_t j = 0; j < h.odd(); ++j)
                    std::copy_n(from + (2 * j + 1) * h.inner, h.inner, to + j * h.inner);
            to += h.odd() * h.inner;
        }
        return to;
    }

    std::vector<Extents> grids_;
    std::vector<const uint8_t*> valid_;
    std::unique_ptr<uint8_t[]> bytes_, order_;
    std::vector<int64_t> many_;
};

// Holes of the coarsest grid, which nothing predicts, take the value before them, or after
// them where there is none before.
template <class Real>
void carry_over(const uint8_t* valid, int64_t n, Real* y) {
    int64_t first = 0;
    while (first < n && !valid[first]) ++first;
    if (first == n) {
        std::fill_n(y, n, Real{0});
        return;
    }
    std::fill_n(y, first, y[first]);
    for (int64_t i = first + 1; i < n; ++i)
        if (!valid[i]) y[i] = y[i - 1];
}

}  // namespace encke::ENCKE_ISA::predict
