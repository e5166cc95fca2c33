// What stands in the holes of a grid while values are predicted from it (docs/format.md,
// section 8).
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/predict_plan.hpp"

namespace encke::ENCKE_ISA::predict {

// Fills the holes of a grid that lie beside values, in two layers, the second from the first:
// with the mean over the plan's axes and both directions of y1 + (y1 - y2) * slope, or of y1
// where there is no y2.
template <class Real>
class HoleFiller {
  public:
    HoleFiller(const Plan& plan, const Extents& grid, Real* y)
        : grid_(grid), axes_(plan.fill), y_(y), slope_(plan.steep ? Real{0.75} : Real{0.5}) {}

    void run(const uint8_t* valid) {
        const int64_t plane = grid_.n[2] * grid_.n[3], planes = grid_.n[0] * grid_.n[1];
        bool shared = true;
        for (int64_t p = 1; shared && p < planes; ++p)
            shared = std::memcmp(valid, valid + p * plane, static_cast<size_t>(plane)) == 0;
        if (!shared || planes == 1) return layers(valid);
        // A mask that all planes have: neighbours in other planes are holes too, so what is
        // found for the first plane holds for all.
        Extents first{{1, 1, grid_.n[2], grid_.n[3]}};
        HoleFiller once(first, axes_ & 12, y_, slope_);
        once.note_ = true;
        once.layers(valid);
        for (int64_t p = 1; p < planes; ++p)
            for (const Filling& f : once.noted_) f.apply(y_ + p * plane, slope_);
    }

  private:
    // One hole, and for each direction the value next to it and, if there is one, behind that.
    struct Filling {
        int64_t at;
        int many = 0;
        int64_t near[8], far[8];

        void apply(Real* y, Real slope) const {
            Real sum = 0;
            for (int k = 0; k < many; ++k) {
                Real value = y[near[k]];
                sum = sum + (far[k] < 0 ? value : value + (value - y[far[k]]) * slope);
            }
            y[at] = sum / static_cast<Real>(many);
        }
    };

    HoleFiller(const Extents& grid, int axes, Real* y, Real slope)
        : grid_(grid), axes_(axes), y_(y), slope_(slope) {}

    void layers(const uint8_t* valid) {
        known_.assign(valid, valid + grid_.size());
        layer();
        for (uint8_t& k : known_) k = static_cast<uint8_t>((k | k >> 1) & 1);
        layer();
    }
    // Marks what it fills with 2, which counts as a hole until the layer is done.
    void layer() {
        const int64_t width = grid_.n[3], rows = grid_.size() / width;
        std::vector<uint8_t> beside(static_cast<size_t>(width) + 8);
        int64_t index[kAxes] = {};
        for (int64_t r = 0; r < rows; ++r) {
            const uint8_t* known = known_.data() + r * width;
            int64_t left = r;
            for (int d = kAxes - 2; d >= 0; --d)
                index[d] = left % grid_.n[d], left /= grid_.n[d];
            if (!std::memchr(known, 0, static_cast<size_t>(width))) continue;
            std::fill_n(beside.begin(), width, uint8_t{0});
            for (int d = 0; d < kAxes - 1; ++d) {
                if (!(axes_ >> d & 1)) continue;
                const int64_t by = grid_.behind(d);
                if (index[d] > 0) mix(beside.data(), known - by, width);
                if (index[d] + 1 < grid_.n[d]) mix(beside.data(), known + by, width);
            }
            if (axes_ >> 3 & 1) {
                mix(beside.data() + 1, known, width - 1);
                mix(beside.data(), known + 1, width - 1);
            }
            for (int64_t i = 0; i < width; ++i)
                beside[static_cast<size_t>(i)] &= static_cast<uint8_t>(~known[i] & 1);
            for (int64_t at = 0; at < width; at += 8) {
                uint64_t eight = read<uint64_t>(beside.data() + at);
                if (at + 8 > width) eight &= ~uint64_t{0} >> 8 * (at + 8 - width);
                for (; eight; eight &= eight - 1) {
                    index[3] = at + __builtin_ctzll(eight) / 8;
                    fill(index, r * width + index[3]);
                }
            }
        }
    }
    static void mix(uint8_t* to, const uint8_t* from, int64_t n) {
        for (int64_t i = 0; i < n; ++i) to[i] |= from[i] & 1;
    }
    void fill(const int64_t* index, int64_t at) {
        Filling f;
        f.at = at;
        for (int d = 0; d < kAxes; ++d) {
            if (!(axes_ >> d & 1)) continue;
            const int64_t by = grid_.behind(d), i = index[d], n = grid_.n[d];
            if (i + 1 < n && known_[at + by] == 1) {
                f.near[f.many] = at + by;
                f.far[f.many++] = i + 2 < n && known_[at + 2 * by] == 1 ? at + 2 * by : -1;
            }
            if (i > 0 && known_[at - by] == 1) {
                f.near[f.many] = at - by;
                f.far[f.many++] = i > 1 && known_[at - 2 * by] == 1 ? at - 2 * by : -1;
            }
        }
        f.apply(y_, slope_);
        known_[at] = 2;
        if (note_) noted_.push_back(f);
    }

    Extents grid_;
    int axes_;
    Real* y_;
    Real slope_;
    std::vector<uint8_t> known_;
    bool note_ = false;
    std::vector<Filling> noted_;
};

}  // namespace encke::ENCKE_ISA::predict
