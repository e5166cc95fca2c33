// The Python face of the C interface: integers for pointers, so that a call costs a
// fraction of a microsecond and no tensor library is linked. The GIL is released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "encke.h"

namespace nb = nanobind;

namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;

const void* in(uintptr_t address) { return reinterpret_cast<const void*>(address); }
const uint8_t* bytes(uintptr_t address) { return reinterpret_cast<const uint8_t*>(address); }
void* out(uintptr_t address) { return reinterpret_cast<void*>(address); }

encke_quantiser quantiser(int kind, double step0, double step1, double limit0, double limit1,
                          uint64_t seed, double error) {
    return {kind, {step0, step1}, {limit0, limit1}, seed, error};
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native kernels; see csrc/encke.h. Pointers are integers.";
    m.attr("CORRUPT") = static_cast<int>(ENCKE_CORRUPT);
    m.attr("NO_MEMORY") = static_cast<int>(ENCKE_NO_MEMORY);
    m.attr("BAD_ARGUMENT") = static_cast<int>(ENCKE_BAD_ARGUMENT);

    m.def(
        "fixed_encode",
        [](uintptr_t x, int64_t count, int dtype, int kind, double s0, double s1, double l0,
           double l1, uint64_t seed, double error) {
            encke_quantiser q = quantiser(kind, s0, s1, l0, l1, seed, error);
            return encke_fixed_encode(in(x), count, dtype, &q);
        },
        Release());
    m.def(
        "fixed_decode",
        [](uintptr_t p, int64_t size, uintptr_t y, int64_t count, int dtype) {
            return encke_fixed_decode(bytes(p), size, out(y), count, dtype);
        },
        Release());
    m.def(
        "entropy_encode",
        [](uintptr_t x, const std::vector<int64_t>& shape, int dtype, int kind, double s0,
           double s1, double l0, double l1, uint64_t seed, double error) {
            encke_quantiser q = quantiser(kind, s0, s1, l0, l1, seed, error);
            return encke_entropy_encode(in(x), shape.data(), static_cast<int>(shape.size()),
                                        dtype, &q);
        },
        Release());
    m.def(
        "entropy_decode",
        [](uintptr_t p, int64_t size, uintptr_t y, int64_t count, int dtype) {
            return encke_entropy_decode(bytes(p), size, out(y), count, dtype);
        },
        Release());
    m.def(
        "predict_encode",
        [](uintptr_t x, uintptr_t valid, const std::vector<int64_t>& shape, int dtype, int kind,
           double s0, double s1, double l0, double l1, uint64_t seed, double error,
           const std::vector<int32_t>& plan) {
            encke_quantiser q = quantiser(kind, s0, s1, l0, l1, seed, error);
            return encke_predict_encode(in(x), bytes(valid), shape.data(),
                                        static_cast<int>(shape.size()), dtype, &q, plan.data(),
                                        static_cast<int>(plan.size()));
        },
        Release());
    m.def(
        "predict_decode",
        [](uintptr_t p, int64_t size, uintptr_t valid, uintptr_t y,
           const std::vector<int64_t>& shape, int dtype) {
            return encke_predict_decode(bytes(p), size, bytes(valid), out(y), shape.data(),
                                        static_cast<int>(shape.size()), dtype);
        },
        Release());
    m.def(
        "bitmap_encode",
        [](uintptr_t x, uintptr_t domain, const std::vector<int64_t>& shape) {
            return encke_bitmap_encode(in(x), in(domain), shape.data(),
                                       static_cast<int>(shape.size()));
        },
        Release());
    m.def(
        "bitmap_decode",
        [](uintptr_t p, int64_t size, uintptr_t domain, const std::vector<int64_t>& shape,
           uintptr_t y) {
            return encke_bitmap_decode(bytes(p), size, in(domain), shape.data(),
                                       static_cast<int>(shape.size()), out(y));
        },
        Release());
    m.def(
        "holes_mark",
        [](uintptr_t x, int64_t count, int dtype, const std::vector<double>& fill,
           uintptr_t valid) {
            return encke_holes_mark(in(x), count, dtype, fill.data(),
                                    static_cast<int>(fill.size()),
                                    static_cast<uint8_t*>(out(valid)));
        },
        Release());
    m.def(
        "holes_sample",
        [](uintptr_t x, int64_t count, int dtype, int64_t stride) {
            return encke_holes_sample(in(x), count, dtype, stride);
        },
        Release());
    m.def(
        "holes_pattern",
        [](uintptr_t x, uintptr_t valid, int64_t count, int dtype, uintptr_t y) {
            return encke_holes_pattern(in(x), bytes(valid), count, dtype,
                                       static_cast<uint8_t*>(out(y)));
        },
        Release());
    m.def(
        "holes_put",
        [](uintptr_t y, uintptr_t where, int64_t count, int dtype, uint64_t bits) {
            return encke_holes_put(out(y), bytes(where), count, dtype, bits);
        },
        Release());
    m.def(
        "group_encode",
        [](uintptr_t x, int64_t count, int dtype, int bits, bool stochastic, uint64_t seed) {
            return encke_group_encode(in(x), count, dtype, bits, stochastic, seed);
        },
        Release());
    m.def(
        "group_decode",
        [](uintptr_t p, int64_t size, uintptr_t y, int64_t count, int dtype) {
            return encke_group_decode(bytes(p), size, out(y), count, dtype);
        },
        Release());
    m.def(
        "mask_encode",
        [](uintptr_t x, int64_t count) { return encke_mask_encode(in(x), count); }, Release());
    m.def(
        "mask_decode",
        [](uintptr_t p, int64_t size, uintptr_t y, int64_t count) {
            return encke_mask_decode(bytes(p), size, out(y), count);
        },
        Release());
    m.def(
        "positive_encode",
        [](uintptr_t x, int64_t count) { return encke_positive_encode(in(x), count); },
        Release());
    m.def(
        "positive_decode",
        [](uintptr_t p, int64_t size, uintptr_t y, int64_t count) {
            return encke_positive_decode(bytes(p), size, out(y), count);
        },
        Release());
    m.def(
        "affine_where",
        [](uintptr_t x, uintptr_t p, int64_t size, uintptr_t gain, uintptr_t shift,
           int64_t channels, int64_t inner, uintptr_t y, int64_t count) {
            return encke_affine_where(
                in(x), bytes(p), size, static_cast<const float*>(in(gain)),
                static_cast<const float*>(in(shift)), channels, inner, out(y), count);
        },
        Release());
    m.def(
        "gated_count",
        [](uintptr_t p, int64_t size, int64_t count) {
            return encke_gated_count(bytes(p), size, count);
        },
        Release());
    m.def(
        "gated_close",
        [](uintptr_t x, uintptr_t p, int64_t size, uintptr_t gain, uintptr_t shift,
           int64_t channels, int64_t inner, int64_t count, uintptr_t y, int64_t chosen,
           uintptr_t sums) {
            return encke_gated_close(in(x), bytes(p), size, static_cast<const float*>(in(gain)),
                                     static_cast<const float*>(in(shift)), channels, inner,
                                     count, out(y), chosen, static_cast<double*>(out(sums)));
        },
        Release());
    m.def(
        "gated_open",
        [](uintptr_t v, int64_t chosen, uintptr_t p, int64_t size, uintptr_t gain,
           uintptr_t shift, uintptr_t other, int64_t channels, int64_t inner, uintptr_t y,
           int64_t count) {
            return encke_gated_open(
                in(v), chosen, bytes(p), size, static_cast<const float*>(in(gain)),
                static_cast<const float*>(in(shift)), static_cast<const float*>(in(other)),
                channels, inner, out(y), count);
        },
        Release());
    m.def(
        "gated_add",
        [](uintptr_t v, int64_t chosen, uintptr_t p, int64_t size, uintptr_t gain,
           uintptr_t shift, int64_t channels, int64_t inner, uintptr_t y, int64_t count) {
            return encke_gated_add(
                in(v), chosen, bytes(p), size, static_cast<const float*>(in(gain)),
                static_cast<const float*>(in(shift)), channels, inner, out(y), count);
        },
        Release());
    m.def(
        "norm_backward",
        [](uintptr_t dy, uintptr_t x, uintptr_t mean, uintptr_t spread, uintptr_t weight,
           int64_t outer, int64_t channels, int64_t inner, uintptr_t dx,
           uintptr_t weight_gradient, uintptr_t offset_gradient) {
            return encke_norm_backward(
                in(dy), in(x), static_cast<const float*>(in(mean)),
                static_cast<const float*>(in(spread)), static_cast<const float*>(in(weight)),
                outer, channels, inner, out(dx), static_cast<float*>(out(weight_gradient)),
                static_cast<float*>(out(offset_gradient)));
        },
        Release());
    m.def(
        "index_encode",
        [](uintptr_t x, int64_t count, int dtype) {
            return encke_index_encode(in(x), count, dtype);
        },
        Release());
    m.def(
        "index_decode",
        [](uintptr_t p, int64_t size, uintptr_t y, int64_t count, int dtype) {
            return encke_index_decode(bytes(p), size, out(y), count, dtype);
        },
        Release());
    m.def("take", [](uintptr_t y) { encke_take(out(y)); }, Release());
    m.def("expect", [](uintptr_t y, int64_t bytes) { encke_expect(out(y), bytes); });
    m.def("isa", [] { return std::string(encke_isa()); });
    m.def("use", [](const std::string& isa) { return encke_use(isa.c_str()) != 0; });
}
