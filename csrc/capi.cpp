#ifdef __linux__
#include <sys/mman.h>
#endif

#include "dispatch.hpp"
#include "encke.h"

namespace {

thread_local encke::Parts result;

int64_t sized(int status) { return status == ENCKE_OK ? result.size() : status; }

}  // namespace

extern "C" {

int64_t encke_fixed_encode(const void* x, int64_t count, int dtype, const encke_quantiser* q) {
    return sized(encke::kernels().fixed_encode(x, count, dtype, *q, result));
}

int encke_fixed_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                       int dtype) {
    return encke::kernels().fixed_decode(payload, size, out, count, dtype);
}

int64_t encke_entropy_encode(const void* x, const int64_t* shape, int ndim, int dtype,
                             const encke_quantiser* q) {
    return sized(encke::kernels().entropy_encode(x, shape, ndim, dtype, *q, result));
}

int encke_entropy_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                         int dtype) {
    return encke::kernels().entropy_decode(payload, size, out, count, dtype);
}

int64_t encke_predict_encode(const void* x, const uint8_t* valid, const int64_t* shape,
                             int ndim, int dtype, const encke_quantiser* q, const int32_t* plan,
                             int plan_size) {
    return sized(encke::kernels().predict_encode(x, valid, shape, ndim, dtype, *q, plan,
                                                 plan_size, result));
}

int encke_predict_decode(const uint8_t* payload, int64_t size, const uint8_t* valid, void* out,
                         const int64_t* shape, int ndim, int dtype) {
    return encke::kernels().predict_decode(payload, size, valid, out, shape, ndim, dtype);
}

int64_t encke_bitmap_encode(const void* x, const void* domain, const int64_t* shape, int ndim) {
    return sized(encke::kernels().bitmap_encode(x, domain, shape, ndim, result));
}

int encke_bitmap_decode(const uint8_t* payload, int64_t size, const void* domain,
                        const int64_t* shape, int ndim, void* out) {
    return encke::kernels().bitmap_decode(payload, size, domain, shape, ndim, out);
}

int64_t encke_holes_mark(const void* x, int64_t count, int dtype, const double* fill, int fills,
                         uint8_t* valid) {
    return encke::kernels().holes_mark(x, count, dtype, fill, fills, valid);
}

int64_t encke_holes_sample(const void* x, int64_t count, int dtype, int64_t stride) {
    return encke::kernels().holes_sample(x, count, dtype, stride);
}

int64_t encke_holes_pattern(const void* x, const uint8_t* valid, int64_t count, int dtype,
                            uint8_t* out) {
    return encke::kernels().holes_pattern(x, valid, count, dtype, out);
}

int64_t encke_holes_put(void* y, const uint8_t* where, int64_t count, int dtype,
                        uint64_t bits) {
    return encke::kernels().holes_put(y, where, count, dtype, bits);
}

int64_t encke_group_encode(const void* x, int64_t count, int dtype, int bits, int stochastic,
                           uint64_t seed) {
    return sized(
        encke::kernels().group_encode(x, count, dtype, bits, stochastic, seed, result));
}

int encke_group_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                       int dtype) {
    return encke::kernels().group_decode(payload, size, out, count, dtype);
}

int64_t encke_mask_encode(const void* x, int64_t count) {
    return sized(encke::kernels().mask_encode(x, count, result));
}

int encke_mask_decode(const uint8_t* payload, int64_t size, void* out, int64_t count) {
    return encke::kernels().mask_decode(payload, size, out, count);
}

int64_t encke_positive_encode(const void* x, int64_t count) {
    return sized(encke::kernels().positive_encode(x, count, result));
}

int encke_positive_decode(const uint8_t* bits, int64_t size, void* out, int64_t count) {
    return encke::kernels().positive_decode(bits, size, out, count);
}

int encke_affine_where(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                       const float* shift, int64_t channels, int64_t inner, void* out,
                       int64_t count) {
    return encke::kernels().affine_where(x, bits, size, gain, shift, channels, inner, out,
                                         count);
}

int64_t encke_gated_count(const uint8_t* bits, int64_t size, int64_t count) {
    return encke::kernels().gated_count(bits, size, count);
}

int encke_gated_close(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                      const float* shift, int64_t channels, int64_t inner, int64_t count,
                      void* out, int64_t chosen, double* sums) {
    return encke::kernels().gated_close(x, bits, size, gain, shift, channels, inner, count, out,
                                        chosen, sums);
}

int encke_gated_open(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
                     const float* gain, const float* shift, const float* other,
                     int64_t channels, int64_t inner, void* out, int64_t count) {
    return encke::kernels().gated_open(values, chosen, bits, size, gain, shift, other, channels,
                                       inner, out, count);
}

int encke_gated_add(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
                    const float* gain, const float* shift, int64_t channels, int64_t inner,
                    void* to, int64_t count) {
    return encke::kernels().gated_add(values, chosen, bits, size, gain, shift, channels, inner,
                                      to, count);
}

int encke_norm_backward(const void* dy, const void* x, const float* mean, const float* spread,
                        const float* weight, int64_t outer, int64_t channels, int64_t inner,
                        void* dx, float* weight_gradient, float* offset_gradient) {
    return encke::kernels().norm_backward(dy, x, mean, spread, weight, outer, channels, inner,
                                          dx, weight_gradient, offset_gradient);
}

int64_t encke_index_encode(const void* x, int64_t count, int dtype) {
    return sized(encke::kernels().index_encode(x, count, dtype, result));
}

int encke_index_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                       int dtype) {
    return encke::kernels().index_decode(payload, size, out, count, dtype);
}

void encke_expect(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kLarge = uintptr_t{2} << 20;
    uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + kLarge - 1) & ~(kLarge - 1);
    uintptr_t last =
        (reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(bytes)) & ~(kLarge - 1);
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

void encke_take(void* destination) { result.take(static_cast<uint8_t*>(destination)); }

}  // extern "C"
