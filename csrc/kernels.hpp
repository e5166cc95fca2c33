// What one instruction set's build of the kernels offers to the dispatcher.
#pragma once

#include "encke.h"
#include "parts.hpp"

namespace encke {

struct Kernels {
    int (*fixed_encode)(const void*, int64_t, int, const encke_quantiser&, Parts&);
    int (*fixed_decode)(const uint8_t*, int64_t, void*, int64_t, int);
    int (*entropy_encode)(const void*, const int64_t*, int, int, const encke_quantiser&,
                          Parts&);
    int (*entropy_decode)(const uint8_t*, int64_t, void*, int64_t, int);
    int (*predict_encode)(const void*, const uint8_t*, const int64_t*, int, int,
                          const encke_quantiser&, const int32_t*, int, Parts&);
    int (*predict_decode)(const uint8_t*, int64_t, const uint8_t*, void*, const int64_t*, int,
                          int);
    int (*group_encode)(const void*, int64_t, int, int, int, uint64_t, Parts&);
    int (*group_decode)(const uint8_t*, int64_t, void*, int64_t, int);
    int (*mask_encode)(const void*, int64_t, Parts&);
    int (*mask_decode)(const uint8_t*, int64_t, void*, int64_t);
    int (*index_encode)(const void*, int64_t, int, Parts&);
    int (*index_decode)(const uint8_t*, int64_t, void*, int64_t, int);
    int (*positive_encode)(const void*, int64_t, Parts&);
    int (*positive_decode)(const uint8_t*, int64_t, void*, int64_t);
    int (*affine_where)(const void*, const uint8_t*, int64_t, const float*, const float*,
                        int64_t, int64_t, void*, int64_t);
    int64_t (*gated_count)(const uint8_t*, int64_t, int64_t);
    int (*gated_close)(const void*, const uint8_t*, int64_t, const float*, const float*,
                       int64_t, int64_t, int64_t, void*, int64_t, double*);
    int (*gated_open)(const void*, int64_t, const uint8_t*, int64_t, const float*, const float*,
                      const float*, int64_t, int64_t, void*, int64_t);
    int (*gated_add)(const void*, int64_t, const uint8_t*, int64_t, const float*, const float*,
                     int64_t, int64_t, void*, int64_t);
    int (*norm_backward)(const void*, const void*, const float*, const float*, const float*,
                         int64_t, int64_t, int64_t, void*, float*, float*);
    int (*bitmap_encode)(const void*, const void*, const int64_t*, int, Parts&);
    int (*bitmap_decode)(const uint8_t*, int64_t, const void*, const int64_t*, int, void*);
    int64_t (*holes_mark)(const void*, int64_t, int, const double*, int, uint8_t*);
    int64_t (*holes_sample)(const void*, int64_t, int, int64_t);
    int64_t (*holes_pattern)(const void*, const uint8_t*, int64_t, int, uint8_t*);
    int64_t (*holes_put)(void*, const uint8_t*, int64_t, int, uint64_t);
};

}  // namespace encke
