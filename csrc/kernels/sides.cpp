// ReLU's side of the tape, for float32: the sign of a tensor as bits, the bits as ones and
// zeros, and the output of norm and ReLU from the norm's input and those bits. One pass each,
// where torch would take three. Bits lie as in codec `mask` (docs/format.md, section 10).
#include "kernels/bits.hpp"
#include "kernels/chunks.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

// Values [begin, end) that share gain and shift.
void affine_run(const float* x, const uint8_t* bits, float gain, float shift, int64_t begin,
                int64_t end, float* y) {
    int64_t i = begin;
    for (; i < end && i % 8; ++i) y[i] = bit(bits, i) ? x[i] * gain + shift : 0.0f;
#ifdef __AVX2__
    const __m256 g = _mm256_set1_ps(gain), s = _mm256_set1_ps(shift);
    for (; i + 8 <= end; i += 8) {
        __m256 v = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), g), s);
        _mm256_storeu_ps(y + i, _mm256_and_ps(v, lanes_of(bits[i / 8])));
    }
#endif
    for (; i < end; ++i) y[i] = bit(bits, i) ? x[i] * gain + shift : 0.0f;
}

// Values [begin, end) of rows that hold all channels side by side.
void affine_rows(const float* x, const uint8_t* bits, const float* gain, const float* shift,
                 int64_t channels, int64_t begin, int64_t end, float* y) {
    int64_t c = begin % channels;
    for (int64_t i = begin; i < end;) {
#ifdef __AVX2__
        if (i % 8 == 0 && i + 8 <= end && c + 8 <= channels) {
            __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(gain + c));
            v = _mm256_add_ps(v, _mm256_loadu_ps(shift + c));
            _mm256_storeu_ps(y + i, _mm256_and_ps(v, lanes_of(bits[i / 8])));
            i += 8, c += 8;
            if (c == channels) c = 0;
            continue;
        }
#endif
        y[i] = bit(bits, i) ? x[i] * gain[c] + shift[c] : 0.0f;
        ++i;
        if (++c == channels) c = 0;
    }
}

}  // namespace

int positive_encode(const void* x, int64_t count, Parts& to) {
    to.start(1);
    if (count == 0) return ENCKE_OK;
    size_t size = static_cast<size_t>((count + 7) / 8);
    uint8_t* out = to[0].reserve(size);
    if (!out) return ENCKE_NO_MEMORY;
    const float* values = static_cast<const float*>(x);
    for_values(count, [&](int64_t begin, int64_t end) {
        int64_t i = begin;
#ifdef __AVX2__
        const __m256 zero = _mm256_setzero_ps();
        for (; i + 8 <= end; i += 8) {
            __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(values + i), zero, _CMP_NLE_UQ);
            out[i / 8] = static_cast<uint8_t>(_mm256_movemask_ps(above));
        }
#endif
        for (; i < end; i += 8) {
            uint8_t byte = 0;
            for (int64_t k = i; k < end && k < i + 8; ++k)
                byte |= static_cast<uint8_t>(!(values[k] <= 0.0f)) << (k - i);
            out[i / 8] = byte;
        }
    });
    to[0].advance(size);
    return ENCKE_OK;
}

int positive_decode(const uint8_t* bits, int64_t size, void* out, int64_t count) {
    if (!has_size(size, count)) return ENCKE_CORRUPT;
    float* y = static_cast<float*>(out);
    return for_values(count, [&](int64_t begin, int64_t end) {
        int64_t i = begin;
#ifdef __AVX2__
        const __m256 one = _mm256_set1_ps(1.0f);
        for (; i + 8 <= end; i += 8)
            _mm256_storeu_ps(y + i, _mm256_and_ps(one, lanes_of(bits[i / 8])));
#endif
        for (; i < end; ++i) y[i] = bit(bits, i) ? 1.0f : 0.0f;
    });
}

int affine_where(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                 const float* shift, int64_t channels, int64_t inner, void* out,
                 int64_t count) {
    if (!has_size(size, count)) return ENCKE_CORRUPT;
    if (count == 0) return ENCKE_OK;
    if (channels <= 0 || inner <= 0 || count % (channels * inner)) return ENCKE_BAD_ARGUMENT;
    const float* from = static_cast<const float*>(x);
    float* y = static_cast<float*>(out);
    return for_values(count, [&](int64_t begin, int64_t end) {
        if (inner == 1) {
            affine_rows(from, bits, gain, shift, channels, begin, end, y);
            return;
        }
        for_runs(begin, end, channels, inner, [&](int64_t i, int64_t stop, int64_t c) {
            affine_run(from, bits, gain[c], shift[c], i, stop, y);
        });
    });
}

}  // namespace encke::ENCKE_ISA
