// The C interface of Encke's native kernels. Plain pointers and sizes: no Python, no
// torch. Payloads are those of docs/format.md.
#ifndef ENCKE_H
#define ENCKE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Data types, with their ids in the format.
enum {
    ENCKE_F32 = 1,
    ENCKE_F64 = 2,
    ENCKE_F16 = 3,
    ENCKE_BF16 = 4,
    ENCKE_BOOL = 5,
    ENCKE_U8 = 6,
    ENCKE_I8 = 7,
    ENCKE_I16 = 8,
    ENCKE_I32 = 9,
    ENCKE_I64 = 10
};

enum { ENCKE_PLAIN = 0, ENCKE_HALF = 1, ENCKE_DITHER = 2, ENCKE_POINTWISE = 3 };

// See src/encke/ops/quantiser.py.
typedef struct {
    int32_t kind;
    double step[2];
    double limit[2];
    uint64_t seed;
    double error;
} encke_quantiser;

// Results of decoders; encoders return a size, or one of the negative ones.
enum { ENCKE_OK = 0, ENCKE_CORRUPT = -1, ENCKE_NO_MEMORY = -2, ENCKE_BAD_ARGUMENT = -3 };

// Encoders keep their result for the calling thread until its next encode, and
// return its size; encke_take copies it to `destination` and lets it go.
int64_t encke_fixed_encode(const void* x, int64_t count, int dtype, const encke_quantiser* q);
int encke_fixed_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                       int dtype);

// The shape, slowest dimension first, says which values are neighbours.
int64_t encke_entropy_encode(const void* x, const int64_t* shape, int ndim, int dtype,
                             const encke_quantiser* q);
int encke_entropy_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                         int dtype);

int64_t encke_predict_encode(const void* x, const uint8_t* valid, const int64_t* shape,
                             int ndim, int dtype, const encke_quantiser* q, const int32_t* plan,
                             int plan_size);
int encke_predict_decode(const uint8_t* payload, int64_t size, const uint8_t* valid, void* out,
                         const int64_t* shape, int ndim, int dtype);

// Truth values (a byte each, 0 or 1) whose neighbours foretell them. Where `domain` is given
// and 0, there is no truth value and x must be 0.
int64_t encke_bitmap_encode(const void* x, const void* domain, const int64_t* shape, int ndim);
int encke_bitmap_decode(const uint8_t* payload, int64_t size, const void* domain,
                        const int64_t* shape, int ndim, void* out);

// Holes: 1 where a value is finite and none of `fill` (numbers of the dtype), and how many
// those are; how many of every stride-th value are not finite; 1 and the bits of one if all
// holes have the same.
int64_t encke_holes_mark(const void* x, int64_t count, int dtype, const double* fill, int fills,
                         uint8_t* valid);
int64_t encke_holes_sample(const void* x, int64_t count, int dtype, int64_t stride);
int64_t encke_holes_pattern(const void* x, const uint8_t* valid, int64_t count, int dtype,
                            uint8_t* out);
// Writes the bits wherever `where` is 1; how often that was.
int64_t encke_holes_put(void* y, const uint8_t* where, int64_t count, int dtype, uint64_t bits);

int64_t encke_group_encode(const void* x, int64_t count, int dtype, int bits, int stochastic,
                           uint64_t seed);
int encke_group_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                       int dtype);

int64_t encke_mask_encode(const void* x, int64_t count);
int encke_mask_decode(const uint8_t* payload, int64_t size, void* out, int64_t count);

// The sign of float32 values as the bits of codec `mask` (1: not <= 0); those bits as 1.0f and
// 0.0f; and the output of a norm followed by ReLU: bit ? x * gain[c] + shift[c] : 0, where the
// channel of value i is c = (i / inner) % channels.
int64_t encke_positive_encode(const void* x, int64_t count);
int encke_positive_decode(const uint8_t* bits, int64_t size, void* out, int64_t count);
int encke_affine_where(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                       const float* shift, int64_t channels, int64_t inner, void* out,
                       int64_t count);

// The values whose bit is set, as x * gain[c] + shift[c], closed up; `chosen` is what
// encke_gated_count finds, and sums gets each channel's count, then sum, then sum of squares.
// Back: bit ? next * gain[c] + shift[c] : other[c].
int64_t encke_gated_count(const uint8_t* bits, int64_t size, int64_t count);
int encke_gated_close(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                      const float* shift, int64_t channels, int64_t inner, int64_t count,
                      void* out, int64_t chosen, double* sums);
int encke_gated_open(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
                     const float* gain, const float* shift, const float* other,
                     int64_t channels, int64_t inner, void* out, int64_t count);
// to += next * gain[c] + shift[c] where the bit is set.
int encke_gated_add(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
                    const float* gain, const float* shift, int64_t channels, int64_t inner,
                    void* to, int64_t count);

// The gradients of a batch norm in training: of its input, over x itself if dx is x, of its
// weight (null: one) and of its offset. Value i has channel (i / inner) % channels; `spread` is
// one over the deviation.
int encke_norm_backward(const void* dy, const void* x, const float* mean, const float* spread,
                        const float* weight, int64_t outer, int64_t channels, int64_t inner,
                        void* dx, float* weight_gradient, float* offset_gradient);

int64_t encke_index_encode(const void* x, int64_t count, int dtype);
int encke_index_decode(const uint8_t* payload, int64_t size, void* out, int64_t count,
                       int dtype);

void encke_take(void* destination);

// Tells the system that `bytes` of fresh memory at `memory` are about to be filled: where it
// can, it then hands them out in large pages, at a fraction of the cost.
void encke_expect(void* memory, int64_t bytes);

// "avx2", "portable"; encke_use returns 0 if that one cannot run here.
const char* encke_isa(void);
int encke_use(const char* isa);

#ifdef __cplusplus
}
#endif
#endif
