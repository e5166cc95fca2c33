// Values to integer codes and back, 32 values a block (docs/format.md, section 4).
#pragma once

#include <type_traits>

#include "kernels/dither.hpp"

namespace encke::ENCKE_ISA {

constexpr int kBlock = 32;
constexpr int kParameters = 32;

// Calls f with the kind as a constant.
template <class F>
inline int with_kind(int kind, F f) {
    switch (kind) {
        case ENCKE_PLAIN:
            return f(std::integral_constant<int, ENCKE_PLAIN>{});
        case ENCKE_HALF:
            return f(std::integral_constant<int, ENCKE_HALF>{});
        case ENCKE_DITHER:
            return f(std::integral_constant<int, ENCKE_DITHER>{});
        case ENCKE_POINTWISE:
            return f(std::integral_constant<int, ENCKE_POINTWISE>{});
        default:
            return ENCKE_CORRUPT;
    }
}

// The 32 bytes that a quantised payload starts with; bytes 1..7 are left at 0.
inline void write_parameters(const encke_quantiser& q, uint8_t* to) {
    std::memset(to, 0, kParameters);
    to[0] = static_cast<uint8_t>(q.kind);
    write<double>(to + 8, q.step[0]);
    write<double>(to + 16, q.step[1]);
    write<uint64_t>(to + 24, q.kind >= ENCKE_DITHER ? q.seed : 0);
}

// The inverse; false if they cannot be meant. The limits are not in a stream.
inline bool read_parameters(const uint8_t* from, int dtype, encke_quantiser& q) {
    q.kind = from[0];
    q.seed = read<uint64_t>(from + 24);
    if (q.kind > ENCKE_POINTWISE || (q.kind == ENCKE_POINTWISE && q.seed == 0)) return false;
    if (q.kind < ENCKE_DITHER && q.seed != 0) return false;
    for (int t = 0; t < 2; ++t) {
        q.step[t] = read<double>(from + 8 + 8 * t);
        bool exact = dtype == ENCKE_F64 ||
                     static_cast<double>(static_cast<float>(q.step[t])) == q.step[t];
        if (!(q.step[t] >= 0 && q.step[t] <= 1.7976931348623157e308) || !exact) return false;
    }
    return true;
}

// A quantiser in the precision that a type computes in.
template <class T>
struct Scale {
    using Real = typename T::Real;
    Real step[2], inverse[2], limit[2];
    bool narrow;  // a code of 7 bits is within tier 0 whatever its value was

    explicit Scale(const encke_quantiser& q) {
        for (int t = 0; t < 2; ++t) {
            step[t] = static_cast<Real>(q.step[t]);
            inverse[t] = step[t] > 0 ? Real(1) / step[t] : Real(0);
            limit[t] = static_cast<Real>(q.limit[t]);
        }
        narrow = step[0] > 0 && limit[0] >= 128 * step[0];
    }
};

// Offsets u of a block's positions. One of these per kind, so that loops specialise.
template <class T, int Kind>
struct Offsets {
    using Real = typename T::Real;
    Real u[kBlock];

    Offsets(uint64_t seed, int64_t position) {
        if constexpr (Kind == ENCKE_DITHER) {
            Dither dither(seed, position);
            uint32_t j = static_cast<uint32_t>(position & ((1 << kPageBits) - 1));
#ifdef __AVX2__
            if constexpr (sizeof(Real) == 4) {
                for (int g = 0; g < kBlock; g += 8)
                    _mm256_storeu_ps(u + g, dither.offsets8(j + g));
                return;
            }
#endif
            for (int i = 0; i < kBlock; ++i) u[i] = dither_offset<Real>(dither.level(j + i));
        } else {
            (void)seed, (void)position;
            for (int i = 0; i < kBlock; ++i) u[i] = Kind == ENCKE_HALF ? Real(0.5) : Real(0);
        }
    }
};

// The largest magnitude of a block as bits; larger than infinity's if there is a NaN.
template <class T>
inline typename T::Bits magnitude(const typename T::Real* x) {
    using Bits = typename T::Bits;
    Bits most = 0;
    for (int i = 0; i < kBlock; ++i) {
        Bits bits = bit_cast<Bits>(x[i]) & (~Bits{0} >> 1);
        most = bits > most ? bits : most;
    }
    return most;
}

// 0 or 1, or -1 where the block is to be kept verbatim.
template <class T>
inline int tier_of(typename T::Bits most, const Scale<T>& scale) {
    using Bits = typename T::Bits;
    if (most <= bit_cast<Bits>(scale.limit[0])) return 0;
    return most <= bit_cast<Bits>(scale.limit[1]) ? 1 : -1;
}

template <class T, int Kind>
inline void quantise(const typename T::Real* x, const typename T::Real* u,
                     typename T::Real inverse, int32_t* codes) {
    for (int i = 0; i < kBlock; ++i) {
        if constexpr (Kind == ENCKE_PLAIN)
            codes[i] = nearest(x[i] * inverse);
        else
            codes[i] = nearest(x[i] * inverse + u[i]);
    }
}

// One bit for each value that is not zero.
template <class T>
inline uint32_t nonzeros(const typename T::Real* x) {
    uint32_t mask = 0;
    for (int i = 0; i < kBlock; ++i) mask |= static_cast<uint32_t>(x[i] != 0) << i;
    return mask;
}

// A block's codes to values; `mask` has the bits of values that are not exactly zero
// (all bits in kind plain).
template <class T, int Kind>
inline void dequantise(const int32_t* codes, const typename T::Real* u, typename T::Real step,
                       uint32_t mask, typename T::Value* out) {
    using Real = typename T::Real;
    for (int i = 0; i < kBlock; ++i) {
        if constexpr (Kind == ENCKE_PLAIN) {
            out[i] = T::store(static_cast<Real>(codes[i]) * step);
        } else {
            auto y = T::store_nonzero((static_cast<Real>(codes[i]) - u[i]) * step);
            out[i] = (mask >> i & 1) ? y : typename T::Value{};
        }
    }
}

}  // namespace encke::ENCKE_ISA
