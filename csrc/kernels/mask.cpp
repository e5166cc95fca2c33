// `mask`: one bit a value (docs/format.md, section 10).
#include "kernels/chunks.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

// Whether each of eight bytes is not zero, as eight bits.
inline uint8_t bits_of(uint64_t bytes) {
    uint64_t high =
        (((bytes & 0x7F7F7F7F7F7F7F7Fu) + 0x7F7F7F7F7F7F7F7Fu) | bytes) & 0x8080808080808080u;
    return static_cast<uint8_t>((high >> 7) * 0x0102040810204080u >> 56);
}

inline uint64_t bytes_of(uint8_t bits) {
    uint64_t own = (bits * 0x0101010101010101u) & 0x8040201008040201u;
    return (own + 0x7F7F7F7F7F7F7F7Fu) >> 7 & 0x0101010101010101u;
}

void encode_range(const uint8_t* x, int64_t count, uint8_t* to) {
    int64_t i = 0;
#ifdef __AVX2__
    const __m256i zero = _mm256_setzero_si256();
    for (; i + 32 <= count; i += 32) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        int zeros = _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, zero));
        write<uint32_t>(to + i / 8, ~static_cast<uint32_t>(zeros));
    }
#endif
    for (; i + 8 <= count; i += 8) to[i / 8] = bits_of(read<uint64_t>(x + i));
    if (i < count) {
        uint64_t rest = 0;
        std::memcpy(&rest, x + i, static_cast<size_t>(count - i));
        to[i / 8] = bits_of(rest);
    }
}

void decode_range(const uint8_t* from, int64_t count, uint8_t* y) {
    int64_t i = 0;
#ifdef __AVX2__
    const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2,
                                             2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit_of = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
    const __m256i one = _mm256_set1_epi8(1);
    for (; i + 32 <= count; i += 32) {
        __m256i v = _mm256_set1_epi32(static_cast<int>(read<uint32_t>(from + i / 8)));
        v = _mm256_and_si256(_mm256_shuffle_epi8(v, byte_of), bit_of);
        v = _mm256_min_epu8(v, one);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), v);
    }
#endif
    for (; i + 8 <= count; i += 8) write<uint64_t>(y + i, bytes_of(from[i / 8]));
    if (i < count) {
        uint64_t rest = bytes_of(from[i / 8]);
        std::memcpy(y + i, &rest, static_cast<size_t>(count - i));
    }
}

}  // namespace

int mask_encode(const void* x, int64_t count, Parts& to) {
    to.start(1);
    if (count == 0) return ENCKE_OK;
    size_t size = static_cast<size_t>((count + 7) / 8);
    uint8_t* out = to[0].reserve(size);
    if (!out) return ENCKE_NO_MEMORY;
    const uint8_t* values = static_cast<const uint8_t*>(x);
    for_values(count, [&](int64_t begin, int64_t end) {
        encode_range(values + begin, end - begin, out + begin / 8);
    });
    to[0].advance(size);
    return ENCKE_OK;
}

int mask_decode(const uint8_t* payload, int64_t size, void* out, int64_t count) {
    if (size != count / 8 + (count % 8 != 0)) return ENCKE_CORRUPT;
    if (count % 8 != 0 && payload[size - 1] >> count % 8) return ENCKE_CORRUPT;
    uint8_t* values = static_cast<uint8_t*>(out);
    return for_values(count, [&](int64_t begin, int64_t end) {
        decode_range(payload + begin / 8, end - begin, values + begin);
    });
}

}  // namespace encke::ENCKE_ISA
