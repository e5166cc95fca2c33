// The entry points that every instruction set's build defines, once per namespace.
#pragma once

#include "encke.h"
#include "parts.hpp"

namespace encke::ENCKE_ISA {

int fixed_encode(const void* x, int64_t count, int dtype, const encke_quantiser& q, Parts& to);
int fixed_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype);

int entropy_encode(const void* x, const int64_t* shape, int ndim, int dtype,
                   const encke_quantiser& q, Parts& to);
int entropy_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype);

// Where `valid` is not null, a value is only where it is 1; what `out` has elsewhere is open.
int predict_encode(const void* x, const uint8_t* valid, const int64_t* shape, int ndim,
                   int dtype, const encke_quantiser& q, const int32_t* plan, int plan_size,
                   Parts& to);
int predict_decode(const uint8_t* payload, int64_t size, const uint8_t* valid, void* out,
                   const int64_t* shape, int ndim, int dtype);

// Truth values with their neighbours in mind; `domain` may be null, and elsewhere says where
// there are truth values at all.
int bitmap_encode(const void* x, const void* domain, const int64_t* shape, int ndim, Parts& to);
int bitmap_decode(const uint8_t* payload, int64_t size, const void* domain,
                  const int64_t* shape, int ndim, void* out);

// Holes: 1 where a value is finite and none of `fill` (numbers of the dtype), and how many
// those are; how many of every stride-th value are not finite; 1 and the bits of one if all
// holes have the same.
int64_t holes_mark(const void* x, int64_t count, int dtype, const double* fill, int fills,
                   uint8_t* valid);
int64_t holes_sample(const void* x, int64_t count, int dtype, int64_t stride);
int64_t holes_pattern(const void* x, const uint8_t* valid, int64_t count, int dtype,
                      uint8_t* out);
// Writes the bits wherever `where` is 1; how often that was.
int64_t holes_put(void* y, const uint8_t* where, int64_t count, int dtype, uint64_t bits);

int group_encode(const void* x, int64_t count, int dtype, int bits, int stochastic,
                 uint64_t seed, Parts& to);
int group_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype);

int mask_encode(const void* x, int64_t count, Parts& to);
int mask_decode(const uint8_t* payload, int64_t size, void* out, int64_t count);

// The sign of float32 values as bits (1: not <= 0), the bits as 1.0f and 0.0f, and
// bit ? x * gain[c] + shift[c] : 0 with c = (i / inner) % channels.
int positive_encode(const void* x, int64_t count, Parts& to);
int positive_decode(const uint8_t* bits, int64_t size, void* out, int64_t count);
int affine_where(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                 const float* shift, int64_t channels, int64_t inner, void* out, int64_t count);

// How many bits are set; the chosen values as x * gain[c] + shift[c], without gaps, with count,
// sum and sum of squares of each channel; and back: bit ? next * gain[c] + shift[c] : other[c].
// gated_add adds next * gain[c] + shift[c] where the bit is set.
int64_t gated_count(const uint8_t* bits, int64_t size, int64_t count);
int gated_close(const void* x, const uint8_t* bits, int64_t size, const float* gain,
                const float* shift, int64_t channels, int64_t inner, int64_t count, void* out,
                int64_t chosen, double* sums);
int gated_open(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
               const float* gain, const float* shift, const float* other, int64_t channels,
               int64_t inner, void* out, int64_t count);
int gated_add(const void* values, int64_t chosen, const uint8_t* bits, int64_t size,
              const float* gain, const float* shift, int64_t channels, int64_t inner, void* to,
              int64_t count);

// The gradients of a batch norm's input (x itself may be given for dx), weight and offset.
int norm_backward(const void* dy, const void* x, const float* mean, const float* spread,
                  const float* weight, int64_t outer, int64_t channels, int64_t inner, void* dx,
                  float* weight_gradient, float* offset_gradient);

int index_encode(const void* x, int64_t count, int dtype, Parts& to);
int index_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype);

// The entropy stage for a caller that has integer codes already (predict). `to` gets the
// tables, chunk lengths and chunks appended to part 0..; `parameters` are bytes 1..7 of the
// payload's parameter block, filled in for the caller. Codes stay within +-2^30. kind and
// seed choose the order of lanes.
int codes_encode(const int32_t* codes, int64_t count, int kind, uint64_t seed,
                 uint8_t parameters[8], Parts& to);
// The inverse; `payload` starts at the tables. Every code that the stream leaves open is 0.
int codes_decode(const uint8_t* payload, int64_t size, const uint8_t parameters[8], int kind,
                 uint64_t seed, int32_t* codes, int64_t count);

}  // namespace encke::ENCKE_ISA
