// Eight codes of w bits, 0 <= w <= 8, between eight bytes and w bytes: the first code in
// the lowest bits.
#pragma once

#include "kernels/numeric.hpp"

namespace encke::ENCKE_ISA {

// Every code must be below 2^width.
inline uint64_t squeeze8(uint64_t bytes, int width) {
#ifdef __AVX2__
    return _pext_u64(bytes, 0x0101010101010101u * ((1u << width) - 1));
#else
    uint64_t v = bytes;
    v = (v & 0x00FF00FF00FF00FFu) | (v >> 8 & 0x00FF00FF00FF00FFu) << width;
    v = (v & 0x0000FFFF0000FFFFu) | (v >> 16 & 0x0000FFFF0000FFFFu) << 2 * width;
    return (v & 0xFFFFFFFFu) | v >> 32 << 4 * width;
#endif
}

inline uint64_t spread8(uint64_t packed, int width) {
#ifdef __AVX2__
    return _pdep_u64(packed, 0x0101010101010101u * ((1u << width) - 1));
#else
    const uint64_t one = (uint64_t{1} << width) - 1;
    const uint64_t two = (uint64_t{1} << 2 * width) - 1;
    const uint64_t four = (uint64_t{1} << 4 * width) - 1;
    uint64_t v = (packed & four) | (packed >> 4 * width & four) << 32;
    v = (v & (two * 0x0000000100000001u)) | (v >> 2 * width & (two * 0x0000000100000001u))
                                                << 16;
    return (v & (one * 0x0001000100010001u)) | (v >> width & (one * 0x0001000100010001u)) << 8;
#endif
}

// Four codes of w bits, 8 <= w <= 16, between four 16-bit fields and 4w bits.
inline uint64_t squeeze4(uint64_t fields, int width) {
#ifdef __AVX2__
    return _pext_u64(fields, 0x0001000100010001u * ((1u << width) - 1));
#else
    uint64_t v = fields;
    v = (v & 0x0000FFFF0000FFFFu) | (v >> 16 & 0x0000FFFF0000FFFFu) << width;
    return (v & 0xFFFFFFFFu) | v >> 32 << 2 * width;
#endif
}

inline uint64_t spread4(uint64_t packed, int width) {
#ifdef __AVX2__
    return _pdep_u64(packed, 0x0001000100010001u * ((1u << width) - 1));
#else
    const uint64_t one = (uint64_t{1} << width) - 1;
    const uint64_t two = (uint64_t{1} << 2 * width) - 1;
    uint64_t v = (packed & two) | (packed >> 2 * width & two) << 32;
    return (v & (one * 0x0000000100000001u)) | (v >> width & (one * 0x0000000100000001u)) << 16;
#endif
}

}  // namespace encke::ENCKE_ISA
