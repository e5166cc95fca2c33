// A batch norm's backward for float32 values whose channels lie apart (inner values of each
// side by side). The input's gradient may be written over the input: each channel is read
// before it is written.
#include "kernels/chunks.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

struct Sums {
    double dy = 0, along = 0;
};

Sums sums_of(const float* dy, const float* x, float mean, int64_t inner) {
    // Stretches short enough for single precision.
    constexpr int64_t kStretch = 1024;
    Sums total;
    for (int64_t begin = 0; begin < inner; begin += kStretch) {
        const int64_t end = begin + kStretch < inner ? begin + kStretch : inner;
        float plain = 0, along = 0;
#pragma omp simd reduction(+ : plain, along)
        for (int64_t i = begin; i < end; ++i) {
            plain += dy[i];
            along += dy[i] * (x[i] - mean);
        }
        total.dy += plain;
        total.along += along;
    }
    return total;
}

}  // namespace

int norm_backward(const void* dy, const void* x, const float* mean, const float* spread,
                  const float* weight, int64_t outer, int64_t channels, int64_t inner, void* dx,
                  float* weight_gradient, float* offset_gradient) {
    const auto* coming = static_cast<const float*>(dy);
    const auto* values = static_cast<const float*>(x);
    auto* going = static_cast<float*>(dx);
    const double count = static_cast<double>(outer) * static_cast<double>(inner);
    const int threads = thread_count(channels, outer * channels * inner);
    return for_ranges(channels, threads, [&](int64_t first, int64_t last, int) -> int {
        for (int64_t c = first; c < last; ++c) {
            Sums sums;
            for (int64_t n = 0; n < outer; ++n) {
                const int64_t at = (n * channels + c) * inner;
                const Sums one = sums_of(coming + at, values + at, mean[c], inner);
                sums.dy += one.dy;
                sums.along += one.along;
            }
            weight_gradient[c] = static_cast<float>(sums.along * spread[c]);
            offset_gradient[c] = static_cast<float>(sums.dy);
            const float gain = (weight ? weight[c] : 1.0f) * spread[c];
            const auto centre = static_cast<float>(sums.dy / count);
            const double wide = spread[c];
            const auto slope = static_cast<float>(sums.along * wide * wide / count);
            const float middle = mean[c];
            for (int64_t n = 0; n < outer; ++n) {
                const int64_t at = (n * channels + c) * inner;
                const float *in = values + at, *from = coming + at;
                float* to = going + at;
#pragma omp simd
                for (int64_t i = 0; i < inner; ++i)
                    to[i] = (from[i] - centre - (in[i] - middle) * slope) * gain;
            }
        }
        return ENCKE_OK;
    });
}

}  // namespace encke::ENCKE_ISA
