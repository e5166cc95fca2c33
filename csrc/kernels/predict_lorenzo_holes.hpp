// Lorenzo prediction of fields with holes (docs/format.md, section 8): first order, from the
// neighbours that there are.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/predict_holes.hpp"
#include "kernels/predict_lorenzo.hpp"

namespace encke::ENCKE_ISA::predict {

// A row of codes, or of nothing.
struct CodeRow {
    const int32_t* codes;
    const uint8_t* valid;
};

// What the rows above, before and above before say about the codes first .. last - 1 of one:
// code i is base[i], plus the code before it where link[i] is not 0. `inner` is 0 where the
// codes in front of the rows belong to others.
inline void foretell(const uint8_t* own, const CodeRow n, const CodeRow p, const CodeRow pn,
                     int64_t first, int64_t last, uint32_t inner, int32_t* __restrict base,
                     int32_t* __restrict link) {
    const int64_t back = inner;
    for (int64_t i = first; i < last; ++i) {
        // 1 where there is a value.
        const uint32_t w = own[i - back] & inner, vn = n.valid[i], vp = p.valid[i];
        const uint32_t vpn = pn.valid[i], nw = n.valid[i - back], pw = p.valid[i - back];
        const uint32_t pnw = pn.valid[i - back];
        const uint32_t N = static_cast<uint32_t>(n.codes[i]);
        const uint32_t P = static_cast<uint32_t>(p.codes[i]);
        const uint32_t PN = static_cast<uint32_t>(pn.codes[i]);
        const uint32_t NW = static_cast<uint32_t>(n.codes[i - back]);
        const uint32_t PW = static_cast<uint32_t>(p.codes[i - back]);
        const uint32_t PNW = static_cast<uint32_t>(pn.codes[i - back]);
        uint32_t left = 0u - own[i];  // what no case has taken yet
        const uint32_t square = left & (0u - (vn & vp & vpn));
        const uint32_t all = square & (0u - (w & nw & pw & pnw));
        left &= ~all;
        const uint32_t before = left & (0u - (w & vp & pw));
        left &= ~before;
        const uint32_t corner = left & square;
        left &= ~corner;
        const uint32_t plane = left & (0u - (w & vn & nw));
        left &= ~plane;
        const uint32_t only_p = left & (0u - vp);
        left &= ~only_p;
        const uint32_t only_n = left & (0u - vn);
        uint32_t sum = ((all | corner | only_n | plane) & N) - ((all | plane) & NW);
        sum += ((all | before | corner | only_p) & P) - ((all | before) & PW);
        sum += (all & PNW) - ((all | corner) & PN);
        base[i] = static_cast<int32_t>(sum);
        link[i] = static_cast<int32_t>(~(corner | only_p | only_n));
    }
}

#ifdef __AVX2__
// The same for the eight codes from i on, which have one in front.
inline void foretell_eight(const uint8_t* own, const CodeRow& n, const CodeRow& p,
                           const CodeRow& pn, int64_t i, int32_t* base, int32_t* link) {
    const __m256i zero = _mm256_setzero_si256();
    auto mask = [&](const uint8_t* valid) {
        __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(valid));
        return _mm256_sub_epi32(zero, _mm256_cvtepu8_epi32(eight));
    };
    auto load = [](const int32_t* codes) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    };
    auto both = [](__m256i a, __m256i b) { return _mm256_and_si256(a, b); };
    auto any = [](__m256i a, __m256i b) { return _mm256_or_si256(a, b); };
    const __m256i w = mask(own + i - 1), vn = mask(n.valid + i), vp = mask(p.valid + i);
    const __m256i nw = mask(n.valid + i - 1), pw = mask(p.valid + i - 1);
    __m256i left = mask(own + i);
    const __m256i square = both(both(left, mask(pn.valid + i)), both(vn, vp));
    const __m256i all = both(both(square, both(w, mask(pn.valid + i - 1))), both(nw, pw));
    left = _mm256_andnot_si256(all, left);
    const __m256i before = both(left, both(w, both(vp, pw)));
    left = _mm256_andnot_si256(before, left);
    const __m256i corner = both(left, square);
    left = _mm256_andnot_si256(corner, left);
    const __m256i plane = both(left, both(w, both(vn, nw)));
    left = _mm256_andnot_si256(plane, left);
    const __m256i only_p = both(left, vp);
    left = _mm256_andnot_si256(only_p, left);
    const __m256i only_n = both(left, vn);
    auto part = [&](__m256i now, __m256i then, const int32_t* codes) {
        return _mm256_sub_epi32(both(now, load(codes + i)), both(then, load(codes + i - 1)));
    };
    const __m256i corners = any(all, corner), planes = any(all, plane);
    const __m256i befores = any(all, before);
    __m256i sum = part(any(corners, any(only_n, plane)), planes, n.codes);
    sum = _mm256_add_epi32(sum, part(any(corners, any(before, only_p)), befores, p.codes));
    sum = _mm256_sub_epi32(sum, part(corners, all, pn.codes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(base + i), sum);
    const __m256i apart = any(corner, any(only_p, only_n));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(link + i),
                        _mm256_andnot_si256(apart, _mm256_cmpeq_epi32(zero, zero)));
}
#endif

// Walks over the rows of a tensor and knows the ones around each.
class HoledRows {
  public:
    HoledRows(const Extents& e, int axes, const uint8_t* valid)
        : width_(e.n[3]),
          rows_(e.n[2]),
          planes_(e.n[1]),
          axes_(axes),
          valid_(valid),
          holes_(static_cast<size_t>(width_)),
          zeros_(static_cast<size_t>(width_)) {}

    void look(const int32_t* codes, int64_t row, int32_t* base, int32_t* link) const {
        const int64_t at = row * width_, plane = rows_ * width_;
        const bool above = axes_ > 1 && row % rows_ > 0;
        const bool before = axes_ > 2 && row / rows_ % planes_ > 0;
        const CodeRow n = take(above, codes, at - width_);
        const CodeRow p = take(before, codes, at - plane);
        const CodeRow pn = take(above && before, codes, at - plane - width_);
        const uint8_t* own = valid_ + at;
        foretell(own, n, p, pn, 0, 1, 0, base, link);
        int64_t i = 1;
#ifdef __AVX2__
        for (; i + 8 <= width_; i += 8) {
            const uint64_t here = read<uint64_t>(own + i);
            const uint64_t all =
                here & read<uint64_t>(own + i - 1) & pairs(n, i) & pairs(p, i) & pairs(pn, i);
            // Most eights have every neighbour, or no value.
            if (all == 0x0101010101010101u) {
                __m256i sum = _mm256_add_epi32(steps(n, i), steps(p, i));
                store(base + i, _mm256_sub_epi32(sum, steps(pn, i)));
                store(link + i, _mm256_set1_epi32(-1));
            } else if (here == 0) {
                store(base + i, _mm256_setzero_si256());
                store(link + i, _mm256_set1_epi32(-1));
            } else {
                foretell_eight(own, n, p, pn, i, base, link);
            }
        }
#endif
        foretell(own, n, p, pn, i, width_, 1, base, link);
    }

  private:
    CodeRow take(bool there, const int32_t* codes, int64_t at) const {
        if (!there) return {zeros_.data(), holes_.data()};
        return {codes + at, valid_ + at};
    }
#ifdef __AVX2__
    static uint64_t pairs(const CodeRow& row, int64_t i) {
        return read<uint64_t>(row.valid + i) & read<uint64_t>(row.valid + i - 1);
    }
    static __m256i steps(const CodeRow& row, int64_t i) {
        return _mm256_sub_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.codes + i)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.codes + i - 1)));
    }
    static void store(int32_t* to, __m256i v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
    }
#endif
    int64_t width_, rows_, planes_;
    int axes_;
    const uint8_t* valid_;
    std::vector<uint8_t> holes_;
    std::vector<int32_t> zeros_;
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
        __m256i zero = _mm256_setzero_si256();
        if (_mm256_movemask_epi8(l) == -1) {
            v = _mm256_add_epi32(v, _mm256_slli_si256(v, 4));
            v = _mm256_add_epi32(v, _mm256_slli_si256(v, 8));
            __m256i low = _mm256_permute2x128_si256(v, v, 0x08);
            v = _mm256_add_epi32(v, _mm256_shuffle_epi32(low, 0xFF));
            v = _mm256_add_epi32(v, carry);
            carry = _mm256_permutevar8x32_epi32(v, last);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(own + i), v);
            continue;
        }
        // Sums within the eight, as far as links reach.
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

// The codes, from differences that are closed up.
inline void lorenzo_sum_holes(const Plan& plan, const Extents& e, const uint8_t* valid,
                              const int32_t* closed, int32_t* codes) {
    const int64_t width = e.n[3], rows = e.size() / width;
    HoledRows around(e, plan.axes, valid);
    std::vector<int32_t> base(static_cast<size_t>(width)), link(base);
    int32_t before = 0;
    for (int64_t r = 0; r < rows; ++r) {
        closed = open_up(closed, valid + r * width, width, codes + r * width);
        around.look(codes, r, base.data(), link.data());
        before = sum_linked(codes + r * width, base.data(), link.data(), width, before);
    }
}

}  // namespace encke::ENCKE_ISA::predict
