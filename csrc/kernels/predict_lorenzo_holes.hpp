// Lorenzo prediction of fields with holes (docs/format.md, section 8): first order, from the
// neighbours that there are.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/predict_lorenzo.hpp"

namespace encke::ENCKE_ISA::predict {

// A row of codes, or of nothing.
struct CodeRow {
    const int32_t* codes;
    const uint8_t* valid;
};

// What the rows above, before and above before say about one: code i is base[i], plus the code
// before it where link[i] is not 0. The rows may be read one place in front.
inline void foretell_row(const uint8_t* __restrict own, const CodeRow n, const CodeRow p,
                         const CodeRow pn, int64_t width, int32_t* __restrict base,
                         int32_t* __restrict link) {
    for (int64_t i = 0; i < width; ++i) {
        // 1 where there is a value.
        const uint32_t w = own[i - 1], vn = n.valid[i], vp = p.valid[i], vpn = pn.valid[i];
        const uint32_t nw = n.valid[i - 1], pw = p.valid[i - 1], pnw = pn.valid[i - 1];
        const uint32_t N = static_cast<uint32_t>(n.codes[i]);
        const uint32_t P = static_cast<uint32_t>(p.codes[i]);
        const uint32_t PN = static_cast<uint32_t>(pn.codes[i]);
        const uint32_t NW = static_cast<uint32_t>(n.codes[i - 1]);
        const uint32_t PW = static_cast<uint32_t>(p.codes[i - 1]);
        const uint32_t PNW = static_cast<uint32_t>(pn.codes[i - 1]);
        uint32_t left = 0u - own[i];  // what no case has taken yet
        const uint32_t square = left & (0u - (vn & vp & vpn));
        const uint32_t all = square & (0u - (w & nw & pw & pnw));
        left &= ~all;
        const uint32_t back = left & (0u - (w & vp & pw));
        left &= ~back;
        const uint32_t corner = left & square;
        left &= ~corner;
        const uint32_t plane = left & (0u - (w & vn & nw));
        left &= ~plane;
        const uint32_t only_p = left & (0u - vp);
        left &= ~only_p;
        const uint32_t only_n = left & (0u - vn);
        uint32_t sum = ((all | corner | only_n | plane) & N) - ((all | plane) & NW);
        sum += ((all | back | corner | only_p) & P) - ((all | back) & PW);
        sum += (all & PNW) - ((all | corner) & PN);
        base[i] = static_cast<int32_t>(sum);
        link[i] = static_cast<int32_t>(~(corner | only_p | only_n));
    }
}

// Walks over the rows of a tensor and knows the ones around each.
class HoledRows {
  public:
    HoledRows(const Extents& e, int axes, const uint8_t* valid)
        : width_(e.n[3]),
          rows_(e.n[2]),
          planes_(e.n[1]),
          axes_(axes),
          valid_(valid),
          holes_(static_cast<size_t>(width_) + 1),
          zeros_(static_cast<size_t>(width_) + 1),
          masks_(4 * (static_cast<size_t>(width_) + 1)),
          codes_(3 * (static_cast<size_t>(width_) + 1)) {}

    void look(const int32_t* codes, int64_t row, int32_t* base, int32_t* link) {
        const int64_t at = row * width_, plane = rows_ * width_;
        const bool above = axes_ > 1 && row % rows_ > 0;
        const bool before = axes_ > 2 && row / rows_ % planes_ > 0;
        const CodeRow n = take(above, codes, at - width_, 0);
        const CodeRow p = take(before, codes, at - plane, 1);
        const CodeRow pn = take(above && before, codes, at - plane - width_, 2);
        uint8_t* own = masks_.data() + 3 * (width_ + 1) + 1;
        std::copy_n(valid_ + at, width_, own);
        foretell_row(own, n, p, pn, width_, base, link);
    }

  private:
    // A copy with nothing in front, since what is there in memory belongs to another row.
    CodeRow take(bool there, const int32_t* codes, int64_t at, int place) {
        if (!there) return {zeros_.data() + 1, holes_.data() + 1};
        int32_t* to = codes_.data() + place * (width_ + 1) + 1;
        uint8_t* mask = masks_.data() + place * (width_ + 1) + 1;
        std::copy_n(codes + at, width_, to);
        std::copy_n(valid_ + at, width_, mask);
        return {to, mask};
    }

    int64_t width_, rows_, planes_;
    int axes_;
    const uint8_t* valid_;
    std::vector<uint8_t> holes_;
    std::vector<int32_t> zeros_;
    std::vector<uint8_t> masks_;
    std::vector<int32_t> codes_;
};

// Gives holes the code before them.
inline void carry_codes(const uint8_t* valid, int64_t n, int32_t* codes) {
    for (int64_t at = 0; at < n;) {
        const void* hole = std::memchr(valid + at, 0, static_cast<size_t>(n - at));
        if (!hole) return;
        at = static_cast<const uint8_t*>(hole) - valid;
        const int32_t before = at > 0 ? codes[at - 1] : 0;
        for (; at < n && !valid[at]; ++at) codes[at] = before;
    }
}

// Codes to differences, in place.
inline void lorenzo_difference_holes(const Plan& plan, const Extents& e, const uint8_t* valid,
                                     int32_t* codes) {
    const int64_t width = e.n[3], rows = e.size() / width;
    carry_codes(valid, e.size(), codes);
    HoledRows around(e, plan.axes, valid);
    std::vector<int32_t> base(static_cast<size_t>(width)), link(base);
    for (int64_t r = rows - 1; r >= 0; --r) {
        around.look(codes, r, base.data(), link.data());
        int32_t* own = codes + r * width;
        for (int64_t i = width - 1; i > 0; --i) {
            size_t k = static_cast<size_t>(i);
            base[k] = wrap_sum(base[k], own[i - 1] & link[k]);
        }
        if (r > 0) base[0] = wrap_sum(base[0], own[-1] & link[0]);
        for (int64_t i = 0; i < width; ++i)
            own[i] = wrap_difference(own[i], base[static_cast<size_t>(i)]);
    }
}

// own[i] += base[i], plus the sum before it where link[i] is not 0; the last sum.
inline int32_t sum_linked(int32_t* own, const int32_t* base, const int32_t* link, int64_t n,
                          int32_t before) {
    int64_t i = 0;
#ifdef __AVX2__
    const __m256i last = _mm256_set1_epi32(7);
    __m256i carry = _mm256_set1_epi32(before);
    for (; i + 8 <= n; i += 8) {
        __m256i v =
            _mm256_add_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(own + i)),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + i)));
        __m256i l = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(link + i));
        // Sums within the eight, as far as links reach.
        __m256i zero = _mm256_setzero_si256();
        __m256i shifted = _mm256_permute2x128_si256(v, v, 0x08);
        v = _mm256_add_epi32(v, _mm256_and_si256(_mm256_alignr_epi8(v, shifted, 12), l));
        shifted = _mm256_permute2x128_si256(l, l, 0x08);
        // What is in front of the eight is linked to, for the carry's sake.
        shifted = _mm256_blend_epi32(shifted, _mm256_cmpeq_epi32(zero, zero), 0x0F);
        __m256i reach = _mm256_and_si256(l, _mm256_alignr_epi8(l, shifted, 12));
        shifted = _mm256_permute2x128_si256(v, v, 0x08);
        v = _mm256_add_epi32(v, _mm256_and_si256(_mm256_alignr_epi8(v, shifted, 8), reach));
        shifted = _mm256_permute2x128_si256(reach, reach, 0x08);
        shifted = _mm256_blend_epi32(shifted, _mm256_cmpeq_epi32(zero, zero), 0x0F);
        reach = _mm256_and_si256(reach, _mm256_alignr_epi8(reach, shifted, 8));
        shifted = _mm256_permute2x128_si256(v, v, 0x08);
        v = _mm256_add_epi32(v, _mm256_and_si256(shifted, reach));
        shifted = _mm256_permute2x128_si256(reach, reach, 0x08);
        shifted = _mm256_blend_epi32(shifted, _mm256_cmpeq_epi32(zero, zero), 0x0F);
        reach = _mm256_and_si256(reach, shifted);
        v = _mm256_add_epi32(v, _mm256_and_si256(carry, reach));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(own + i), v);
        carry = _mm256_permutevar8x32_epi32(v, last);
    }
    before = _mm256_cvtsi256_si32(carry);
#endif
    for (; i < n; ++i) own[i] = before = wrap_sum(wrap_sum(own[i], base[i]), before & link[i]);
    return before;
}

inline void lorenzo_sum_holes(const Plan& plan, const Extents& e, const uint8_t* valid,
                              int32_t* codes) {
    const int64_t width = e.n[3], rows = e.size() / width;
    HoledRows around(e, plan.axes, valid);
    std::vector<int32_t> base(static_cast<size_t>(width)), link(base);
    int32_t before = 0;
    for (int64_t r = 0; r < rows; ++r) {
        around.look(codes, r, base.data(), link.data());
        before = sum_linked(codes + r * width, base.data(), link.data(), width, before);
    }
}

}  // namespace encke::ENCKE_ISA::predict
