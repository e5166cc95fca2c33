// The values that a ReLU lets through, closed up without gaps, and the way back. float32.
// Bits lie as in codec `mask` (docs/format.md, section 10).
#include <array>
#include <bit>
#include <vector>

#include "kernels/bits.hpp"
#include "kernels/chunks.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

int64_t ones(const uint8_t* bits, int64_t begin, int64_t end) {
    int64_t found = 0;
    for (; begin + 8 <= end; begin += 8) {
        uint64_t word;
        std::memcpy(&word, bits + begin, 8);
        found += std::popcount(word);
    }
    for (; begin < end; ++begin) found += std::popcount(bits[begin]);
    return found;
}

#ifdef __AVX2__
// For each byte of bits: where its ones lie, in order; and for each of its places, how many
// ones lie before it.
struct Moves {
    std::array<std::array<uint8_t, 8>, 256> close{}, open{};
    constexpr Moves() {
        for (int byte = 0; byte < 256; ++byte) {
            int found = 0;
            for (int place = 0; place < 8; ++place) {
                open[byte][place] = static_cast<uint8_t>(found);
                if (byte >> place & 1) close[byte][found++] = static_cast<uint8_t>(place);
            }
        }
    }
};
constexpr Moves kMoves;

inline __m256i moves(const std::array<uint8_t, 8>& places) {
    uint64_t word;
    std::memcpy(&word, places.data(), 8);
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(word)));
}

inline void add_lanes(double* to, __m256 v) {
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    _mm256_storeu_pd(to, _mm256_add_pd(_mm256_loadu_pd(to), low));
    _mm256_storeu_pd(to + 4, _mm256_add_pd(_mm256_loadu_pd(to + 4), high));
}

inline double total(__m256 v) {
    __m256d two = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(v)),
                                _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
    __m128d one = _mm_add_pd(_mm256_castpd256_pd128(two), _mm256_extractf128_pd(two, 1));
    return _mm_cvtsd_f64(one) + _mm_cvtsd_f64(_mm_unpackhi_pd(one, one));
}
#endif

// Count, sum and sum of squares of the values of each channel that were chosen.
struct Sums {
    double *count, *sum, *square;
    void add(int64_t c, float v) const {
        count[c] += 1, sum[c] += v, square[c] += static_cast<double>(v) * v;
    }
};

// Values [begin, end) of one channel; writes the chosen ones to [to, stop) and returns where
// it ends.
float* close_run(const float* x, const uint8_t* bits, float gain, float shift, int64_t c,
                 int64_t begin, int64_t end, float* to, [[maybe_unused]] float* stop,
                 const Sums& sums) {
    int64_t i = begin;
    auto single = [&] {
        if (bit(bits, i)) sums.add(c, *to++ = x[i] * gain + shift);
    };
    for (; i < end && i % 8; ++i) single();
#ifdef __AVX2__
    const __m256 g = _mm256_set1_ps(gain), s = _mm256_set1_ps(shift);
    // Floats over 2,048 values at a time, so that rounding does not add up.
    for (; i + 8 <= end && to + 8 <= stop;) {
        __m256 sum = _mm256_setzero_ps(), square = sum;
        int64_t until = i + 2048 < end ? i + 2048 : end, found = 0;
        for (; i + 8 <= until && to + 8 <= stop; i += 8) {
            uint8_t byte = bits[i / 8];
            __m256 v = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), g), s);
            __m256 seen = _mm256_and_ps(v, lanes_of(byte));
            sum = _mm256_add_ps(sum, seen);
            square = _mm256_add_ps(square, _mm256_mul_ps(seen, seen));
            _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(v, moves(kMoves.close[byte])));
            int more = std::popcount(byte);
            to += more, found += more;
        }
        sums.count[c] += static_cast<double>(found);
        sums.sum[c] += total(sum), sums.square[c] += total(square);
    }
#endif
    for (; i < end; ++i) single();
    return to;
}

// The same for rows that hold all channels side by side.
float* close_rows(const float* x, const uint8_t* bits, const float* gain, const float* shift,
                  int64_t channels, int64_t begin, int64_t end, float* to,
                  [[maybe_unused]] float* stop, const Sums& sums) {
    int64_t c = begin % channels;
    for (int64_t i = begin; i < end;) {
#ifdef __AVX2__
        if (i % 8 == 0 && i + 8 <= end && c + 8 <= channels && to + 8 <= stop) {
            uint8_t byte = bits[i / 8];
            __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(gain + c));
            v = _mm256_add_ps(v, _mm256_loadu_ps(shift + c));
            __m256 lanes = lanes_of(byte), seen = _mm256_and_ps(v, lanes);
            add_lanes(sums.count + c, _mm256_and_ps(_mm256_set1_ps(1.0f), lanes));
            add_lanes(sums.sum + c, seen);
            add_lanes(sums.square + c, _mm256_mul_ps(seen, seen));
            _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(v, moves(kMoves.close[byte])));
            to += std::popcount(byte);
            i += 8, c += 8;
            if (c == channels) c = 0;
            continue;
        }
#endif
        if (bit(bits, i)) sums.add(c, *to++ = x[i] * gain[c] + shift[c]);
        ++i;
        if (++c == channels) c = 0;
    }
    return to;
}

const float* open_run(const float* values, [[maybe_unused]] const float* stop,
                      const uint8_t* bits, float gain, float shift, float other, int64_t begin,
                      int64_t end, float* y) {
    int64_t i = begin;
    auto single = [&] { y[i] = bit(bits, i) ? *values++ * gain + shift : other; };
    for (; i < end && i % 8; ++i) single();
#ifdef __AVX2__
    const __m256 g = _mm256_set1_ps(gain), s = _mm256_set1_ps(shift);
    const __m256 o = _mm256_set1_ps(other);
    for (; i + 8 <= end && values + 8 <= stop; i += 8) {
        uint8_t byte = bits[i / 8];
        __m256 v = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), moves(kMoves.open[byte]));
        v = _mm256_add_ps(_mm256_mul_ps(v, g), s);
        _mm256_storeu_ps(y + i, _mm256_blendv_ps(o, v, lanes_of(byte)));
        values += std::popcount(byte);
    }
#endif
    for (; i < end; ++i) single();
    return values;
}

// y += value * gain + shift where the bit is set.
const float* add_run(const float* values, [[maybe_unused]] const float* stop,
                     const uint8_t* bits, float gain, float shift, int64_t begin, int64_t end,
                     float* y) {
    int64_t i = begin;
    auto single = [&] {
        if (bit(bits, i)) y[i] += *values++ * gain + shift;
    };
    for (; i < end && i % 8; ++i) single();
#ifdef __AVX2__
    const __m256 g = _mm256_set1_ps(gain), s = _mm256_set1_ps(shift);
    for (; i + 8 <= end && values + 8 <= stop; i += 8) {
        uint8_t byte = bits[i / 8];
        __m256 v = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), moves(kMoves.open[byte]));
        v = _mm256_and_ps(_mm256_add_ps(_mm256_mul_ps(v, g), s), lanes_of(byte));
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), v));
        values += std::popcount(byte);
    }
#endif
    for (; i < end; ++i) single();
    return values;
}

void add_rows(const float* values, const uint8_t* bits, const float* gain, const float* shift,
              int64_t channels, int64_t begin, int64_t end, float* y) {
    int64_t c = begin % channels;
    for (int64_t i = begin; i < end; ++i) {
        if (bit(bits, i)) y[i] += *values++ * gain[c] + shift[c];
        if (++c == channels) c = 0;
    }
}

const float* open_rows(const float* values, [[maybe_unused]] const float* stop,
                       const uint8_t* bits, const float* gain, const float* shift,
                       const float* other, int64_t channels, int64_t begin, int64_t end,
                       float* y) {
    int64_t c = begin % channels;
    for (int64_t i = begin; i < end;) {
#ifdef __AVX2__
        if (i % 8 == 0 && i + 8 <= end && c + 8 <= channels && values + 8 <= stop) {
            uint8_t byte = bits[i / 8];
            __m256 v =
                _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), moves(kMoves.open[byte]));
            v = _mm256_add_ps(_mm256_mul_ps(v, _mm256_loadu_ps(gain + c)),
                              _mm256_loadu_ps(shift + c));
            v = _mm256_blendv_ps(_mm256_loadu_ps(other + c), v, lanes_of(byte));
            _mm256_storeu_ps(y + i, v);
            values += std::popcount(byte);
            i += 8, c += 8;
            if (c == channels) c = 0;
            continue;
        }
#endif
        y[i] = bit(bits, i) ? *values++ * gain[c] + shift[c] : other[c];
        ++i;
        if (++c == channels) c = 0;
    }
    return values;
}

// Runs f(begin, end, before, thread) on ranges of values; `before` ones lie before them.
template <class F>
int for_ones(const uint8_t* bits, int64_t count, int threads, F f) {
    if (count == 0) return ENCKE_OK;
    constexpr int64_t kChunk = 65536;
    int64_t chunks = (count + kChunk - 1) / kChunk, size = (count + 7) / 8;
    std::vector<int64_t> before(static_cast<size_t>(threads) + 1);
    auto first = [&](int64_t t) { return chunks * t / threads * kChunk; };
    for (int64_t t = 0; t < threads; ++t) {
        int64_t end = first(t + 1) / 8;
        before[t + 1] = before[t] + ones(bits, first(t) / 8, end < size ? end : size);
    }
    return for_ranges(threads, threads, [&](int64_t from, int64_t to, int) -> int {
        for (int64_t t = from; t < to; ++t) {
            int64_t end = first(t + 1);
            f(first(t), end < count ? end : count, before[t], before[t + 1], t);
        }
        return ENCKE_OK;
    });
}

bool fits(int64_t size, int64_t channels, int64_t inner, int64_t count) {
    if (!has_size(size, count) || channels < 0) return false;
    return count == 0 || (channels > 0 && inner > 0 && count % (channels * inner) == 0);
}

int threads_for(int64_t count) { return thread_count((count + 65535) / 65536, count); }

}  // namespace

int64_t gated_count(const uint8_t* bits, int64_t size, int64_t count) {
    if (!has_size(size, count)) return ENCKE_CORRUPT;
    // Bits beyond the last value are nobody's.
    int64_t all = ones(bits, 0, count / 8);
    for (int64_t i = count / 8 * 8; i < count; ++i) all += bit(bits, i);
    return all;
}

int gated_close(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                const float* shift, int64_t channels, int64_t inner, int64_t count, void* out,
                int64_t chosen, double* sums) {
    if (!fits(size, channels, inner, count)) return ENCKE_BAD_ARGUMENT;
    if (gated_count(bits, size, count) != chosen) return ENCKE_BAD_ARGUMENT;
    const float* from = static_cast<const float*>(x);
    float* to = static_cast<float*>(out);
    int threads = threads_for(count);
    size_t width = 3 * static_cast<size_t>(channels);
    std::vector<double> all(width * static_cast<size_t>(threads));
    int status = for_ones(
        bits, count, threads,
        [&](int64_t begin, int64_t end, int64_t before, int64_t after, int64_t thread) {
            double* mine = all.data() + width * static_cast<size_t>(thread);
            Sums own{mine, mine + channels, mine + 2 * channels};
            float* next = to + before;
            float* stop = to + (after < chosen ? after : chosen);
            if (inner == 1) {
                close_rows(from, bits, gain, shift, channels, begin, end, next, stop, own);
                return;
            }
            for_runs(begin, end, channels, inner, [&](int64_t i, int64_t last, int64_t c) {
                next = close_run(from, bits, gain[c], shift[c], c, i, last, next, stop, own);
            });
        });
    for (size_t i = 0; i < width; ++i) {
        sums[i] = 0;
        for (int t = 0; t < threads; ++t) sums[i] += all[width * static_cast<size_t>(t) + i];
    }
    return status;
}

int gated_open(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
               const float* gain, const float* shift, const float* other, int64_t channels,
               int64_t inner, void* out, int64_t count) {
    if (!fits(size, channels, inner, count)) return ENCKE_BAD_ARGUMENT;
    if (gated_count(bits, size, count) != chosen) return ENCKE_CORRUPT;
    const float* from = static_cast<const float*>(values);
    float* y = static_cast<float*>(out);
    return for_ones(
        bits, count, threads_for(count),
        [&](int64_t begin, int64_t end, int64_t before, int64_t, int64_t) {
            const float *next = from + before, *stop = from + chosen;
            if (inner == 1) {
                open_rows(next, stop, bits, gain, shift, other, channels, begin, end, y);
                return;
            }
            for_runs(begin, end, channels, inner, [&](int64_t i, int64_t last, int64_t c) {
                next = open_run(next, stop, bits, gain[c], shift[c], other[c], i, last, y);
            });
        });
}

int gated_add(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
              const float* gain, const float* shift, int64_t channels, int64_t inner, void* to,
              int64_t count) {
    if (!fits(size, channels, inner, count)) return ENCKE_BAD_ARGUMENT;
    if (gated_count(bits, size, count) != chosen) return ENCKE_CORRUPT;
    const float* from = static_cast<const float*>(values);
    float* y = static_cast<float*>(to);
    return for_ones(
        bits, count, threads_for(count),
        [&](int64_t begin, int64_t end, int64_t before, int64_t, int64_t) {
            const float *next = from + before, *stop = from + chosen;
            if (inner == 1) {
                add_rows(next, bits, gain, shift, channels, begin, end, y);
                return;
            }
            for_runs(begin, end, channels, inner, [&](int64_t i, int64_t last, int64_t c) {
                next = add_run(next, stop, bits, gain[c], shift[c], i, last, y);
            });
        });
}

}  // namespace encke::ENCKE_ISA
