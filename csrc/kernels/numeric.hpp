// The four float types: how their values are read, computed with and written.
#pragma once

#include <cstdint>
#include <cstring>

#include "encke.h"
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace encke::ENCKE_ISA {

template <class To, class From>
inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class T>
inline T read(const uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class T>
inline void write(uint8_t* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

inline float half_to_float(uint16_t h) {
#ifdef __AVX2__
    return _cvtsh_ss(h);
#else
    uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7FFF;
    if (magnitude >= 0x7C00)  // infinity, NaN
        return bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FF) << 13);
    if (magnitude >= 0x400)  // normal: move the exponent's bias from 15 to 127
        return bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
    float value = static_cast<float>(magnitude) * 0x1p-24f;
    return bit_cast<float>(sign | bit_cast<uint32_t>(value));
#endif
}

// Round to nearest even. Finite input below the overflow threshold only.
inline uint16_t float_to_half(float f) {
#ifdef __AVX2__
    return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    uint32_t bits = bit_cast<uint32_t>(f), sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits < (113u << 23)) {
        // Subnormal half: adding 0.5 lines the wanted bits up at the bottom of the sum.
        float sum = bit_cast<float>(bits) + 0.5f;
        return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(sum) - (126u << 23)));
    }
    uint32_t odd = bits >> 13 & 1;
    return static_cast<uint16_t>(sign | ((bits - (112u << 23) + 0xFFF + odd) >> 13));
#endif
}

inline float bfloat_to_float(uint16_t b) {
    return bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

inline uint16_t float_to_bfloat(float f) {
    uint32_t bits = bit_cast<uint32_t>(f);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#ifdef __AVX2__
// The same vector, of which the compiler does not know that it is constant: in a loop that is
// short of registers it is then loaded from memory, not put together again each time.
inline __m256i hoisted(__m256i v) {
    asm("" : "+x"(v));
    return v;
}
inline __m256 hoisted(__m256 v) {
    asm("" : "+x"(v));
    return v;
}
#endif

// Value: as stored. Real: as computed with. Bits: the integer of Real's width.
struct F32 {
    using Value = float;
    using Real = float;
    using Bits = uint32_t;
    using Pattern = uint32_t;
    static constexpr int kDtype = ENCKE_F32, kMantissa = 23;
    static constexpr Pattern kSign = 0x80000000u, kInfinity = 0x7F800000u;
    static Real load(Value v) { return v; }
    static Value store(Real r) { return r; }
    static Value store_nonzero(Real r) { return r; }
};

struct F64 {
    using Value = double;
    using Real = double;
    using Bits = uint64_t;
    using Pattern = uint64_t;
    static constexpr int kDtype = ENCKE_F64, kMantissa = 52;
    static constexpr Pattern kSign = uint64_t{1} << 63, kInfinity = uint64_t{0x7FF} << 52;
    static Real load(Value v) { return v; }
    static Value store(Real r) { return r; }
    static Value store_nonzero(Real r) { return r; }
};

struct F16 {
    using Value = uint16_t;
    using Real = float;
    using Bits = uint32_t;
    using Pattern = uint16_t;
    static constexpr int kDtype = ENCKE_F16, kMantissa = 10;
    static constexpr Pattern kSign = 0x8000, kInfinity = 0x7C00;
    static Real load(Value v) { return half_to_float(v); }
    static Value store(Real r) { return float_to_half(r); }
    static Value store_nonzero(Real r) {
        Value v = float_to_half(r);
        return (v & 0x7FFF) ? v : static_cast<Value>(v | 1);
    }
};

struct BF16 {
    using Value = uint16_t;
    using Real = float;
    using Bits = uint32_t;
    using Pattern = uint16_t;
    static constexpr int kDtype = ENCKE_BF16, kMantissa = 7;
    static constexpr Pattern kSign = 0x8000, kInfinity = 0x7F80;
    static Real load(Value v) { return bfloat_to_float(v); }
    static Value store(Real r) { return float_to_bfloat(r); }
    static Value store_nonzero(Real r) {
        Value v = float_to_bfloat(r);
        return (v & 0x7FFF) ? v : static_cast<Value>(v | 1);
    }
};

// Calls `f` with the type that `dtype` names; ENCKE_BAD_ARGUMENT for any other.
template <class F>
inline int with_float(int dtype, F f) {
    switch (dtype) {
        case ENCKE_F32:
            return f(F32{});
        case ENCKE_F64:
            return f(F64{});
        case ENCKE_F16:
            return f(F16{});
        case ENCKE_BF16:
            return f(BF16{});
        default:
            return ENCKE_BAD_ARGUMENT;
    }
}

// The nearest integer, ties to even. |r| < 2^31.
inline int32_t nearest(float r) { return static_cast<int32_t>(__builtin_lrintf(r)); }
inline int32_t nearest(double r) { return static_cast<int32_t>(__builtin_lrint(r)); }

}  // namespace encke::ENCKE_ISA
