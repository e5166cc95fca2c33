// Lorenzo prediction of fields with holes (docs/format.md, section 8): first order, from the
// neighbours that there are.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/predict_lorenzo.hpp"

namespace encke::ENCKE_ISA::predict {

// What the rows before one say about it: code i is base[i], plus the code before it where
// link[i] is not 0.
class LorenzoRow {
  public:
    LorenzoRow(const Extents& e, int axes, const uint8_t* valid)
        : width_(e.n[3]),
          rows_(e.n[2]),
          planes_(e.n[1]),
          axes_(axes),
          valid_(valid),
          holes_(static_cast<size_t>(width_) + 1),
          zeros_(static_cast<size_t>(width_) + 1),
          base(static_cast<size_t>(width_)),
          link(static_cast<size_t>(width_)) {}

    void look(const int32_t* codes, int64_t row) {
        const int64_t at = row * width_, plane = rows_ * width_;
        const bool above = axes_ > 1 && row % rows_ > 0;
        const bool before = axes_ > 2 && row / rows_ % planes_ > 0;
        // Rows with a value in front of them that is not there.
        Row n = above ? take(codes, at - width_) : nothing();
        Row p = before ? take(codes, at - plane) : nothing();
        Row pn = above && before ? take(codes, at - plane - width_) : nothing();
        const uint8_t* own = valid_ + at;
        if (width_ == 0) return;
        one(0, n, p, pn, 0, 0, 0, 0);
        for (int64_t i = 1; i < width_; ++i)
            one(i, n, p, pn, own[i - 1], n.valid[i - 1], p.valid[i - 1], pn.valid[i - 1]);
        for (int64_t i = 0; i < width_; ++i)
            if (!own[i]) base[static_cast<size_t>(i)] = 0, link[static_cast<size_t>(i)] = -1;
    }

  private:
    struct Row {
        const int32_t* codes;
        const uint8_t* valid;
    };
    Row take(const int32_t* codes, int64_t at) const { return {codes + at, valid_ + at}; }
    Row nothing() const { return {zeros_.data(), holes_.data()}; }

    void one(int64_t i, const Row& n, const Row& p, const Row& pn, uint8_t w, uint8_t nw,
             uint8_t pw, uint8_t pnw) {
        const uint8_t vn = n.valid[i], vp = p.valid[i], vpn = pn.valid[i];
        const int64_t j = i > 0 ? i - 1 : 0;
        uint32_t N = u(n.codes[i]), P = u(p.codes[i]), PN = u(pn.codes[i]);
        uint32_t NW = u(n.codes[j]), PW = u(p.codes[j]), PNW = u(pn.codes[j]);
        uint32_t all = mask(w & vn & vp & vpn & nw & pw & pnw);
        uint32_t back = mask(w & vp & pw) & ~all;
        uint32_t square = mask(vn & vp & vpn) & ~(all | back);
        uint32_t plane = mask(w & vn & nw) & ~(all | back | square);
        uint32_t only_p = mask(vp) & ~(all | back | square | plane);
        uint32_t only_n = mask(vn) & ~(all | back | square | plane | only_p);
        uint32_t sum = (all & (N + P - PN - NW - PW + PNW)) | (back & (P - PW)) |
                       (square & (N + P - PN)) | (plane & (N - NW)) | (only_p & P) |
                       (only_n & N);
        base[static_cast<size_t>(i)] = static_cast<int32_t>(sum);
        link[static_cast<size_t>(i)] = static_cast<int32_t>(~(square | only_p | only_n));
    }
    static uint32_t u(int32_t v) { return static_cast<uint32_t>(v); }
    static uint32_t mask(int bit) { return static_cast<uint32_t>(-bit); }

    int64_t width_, rows_, planes_;
    int axes_;
    const uint8_t* valid_;
    std::vector<uint8_t> holes_;
    std::vector<int32_t> zeros_;

  public:
    std::vector<int32_t> base, link;
};

// Codes to differences, in place. Holes take the code before them first.
inline void lorenzo_difference_holes(const Plan& plan, const Extents& e, const uint8_t* valid,
                                     int32_t* codes) {
    const int64_t width = e.n[3], rows = e.size() / width;
    int32_t before = 0;
    for (int64_t i = 0; i < e.size(); ++i) before = codes[i] = valid[i] ? codes[i] : before;
    LorenzoRow row(e, plan.axes, valid);
    for (int64_t r = rows - 1; r >= 0; --r) {
        row.look(codes, r);
        int32_t* own = codes + r * width;
        for (int64_t i = width - 1; i >= 0; --i) {
            size_t k = static_cast<size_t>(i);
            int32_t w = i > 0 || r > 0 ? own[i - 1] : 0;
            own[i] = wrap_difference(wrap_difference(own[i], row.base[k]), w & row.link[k]);
        }
    }
}

inline void lorenzo_sum_holes(const Plan& plan, const Extents& e, const uint8_t* valid,
                              int32_t* codes) {
    const int64_t width = e.n[3], rows = e.size() / width;
    LorenzoRow row(e, plan.axes, valid);
    int32_t before = 0;
    for (int64_t r = 0; r < rows; ++r) {
        row.look(codes, r);
        int32_t* own = codes + r * width;
        for (int64_t i = 0; i < width; ++i) {
            size_t k = static_cast<size_t>(i);
            before = wrap_sum(wrap_sum(own[i], row.base[k]), before & row.link[k]);
            own[i] = before;
        }
    }
}

}  // namespace encke::ENCKE_ISA::predict
