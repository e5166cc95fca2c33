// Which positions of a tensor have no value, and what is there instead.
#include <algorithm>

#include "kernels/chunks.hpp"
#include "kernels/entries.hpp"
#include "kernels/quantise.hpp"

namespace encke::ENCKE_ISA {

namespace {

constexpr int64_t kStretch = 4096;

template <class T>
bool is_finite(typename T::Value v) {
    using Pattern = typename T::Pattern;
    constexpr Pattern infinite =
        static_cast<Pattern>(T::kDtype == ENCKE_F64   ? 0x7FF0000000000000u
                             : T::kDtype == ENCKE_F32 ? 0x7F800000u
                             : T::kDtype == ENCKE_F16 ? 0x7C00u
                                                      : 0x7F80u);
    return static_cast<Pattern>(bit_cast<Pattern>(v) & static_cast<Pattern>(~T::kSign)) <
           infinite;
}

template <class T>
int64_t mark(const typename T::Value* x, int64_t count, const double* fill, int fills,
             uint8_t* valid) {
    int64_t values = 0;
    for (int64_t at = 0; at < count; at += kStretch) {
        const int64_t n = std::min(kStretch, count - at);
        const typename T::Value* from = x + at;
        uint8_t* to = valid + at;
        for (int64_t i = 0; i < n; ++i) to[i] = is_finite<T>(from[i]);
        for (int k = 0; k < fills; ++k) {
            const auto number = static_cast<typename T::Real>(fill[k]);
            for (int64_t i = 0; i < n; ++i) to[i] &= T::load(from[i]) != number;
        }
        int32_t here = 0;
        for (int64_t i = 0; i < n; ++i) here += to[i];
        values += here;
    }
    return values;
}

// 1 and the pattern if all holes share it, else 0.
template <class T>
int64_t pattern(const typename T::Value* x, const uint8_t* valid, int64_t count, uint8_t* out) {
    using Pattern = typename T::Pattern;
    const auto* found = static_cast<const uint8_t*>(
        count ? std::memchr(valid, 0, static_cast<size_t>(count)) : nullptr);
    if (!found) return 0;
    int64_t at = found - valid;
    const Pattern first = bit_cast<Pattern>(x[at]);
    while (at < count) {
        const int64_t stop = std::min(at + kStretch, count);
        Pattern differs = 0;
        for (; at < stop; ++at)
            differs =
                static_cast<Pattern>(differs | ((bit_cast<Pattern>(x[at]) ^ first) &
                                                static_cast<Pattern>(valid[at] - Pattern{1})));
        if (differs) return 0;
    }
    write<Pattern>(out, first);
    return 1;
}

// How many of `where` are 1; the values there become the pattern.
template <class T>
int64_t put(typename T::Value* y, const uint8_t* where, int64_t count, uint64_t bits) {
    using Pattern = typename T::Pattern;
    const Pattern filler = static_cast<Pattern>(bits);
    int64_t many = 0;
    for (int64_t at = 0; at < count; at += kStretch) {
        const int64_t stop = std::min(at + kStretch, count);
        int32_t here = 0;
        for (int64_t i = at; i < stop; ++i) here += where[i];
        many += here;
        if (here == 0) continue;
        for (int64_t i = at; i < stop; ++i) {
            const Pattern own = bit_cast<Pattern>(y[i]);
            const Pattern mask = static_cast<Pattern>(Pattern{0} - where[i]);
            y[i] = bit_cast<typename T::Value>(
                static_cast<Pattern>((own & static_cast<Pattern>(~mask)) | (filler & mask)));
        }
    }
    return many;
}

}  // namespace

int64_t holes_put(void* y, const uint8_t* where, int64_t count, int dtype, uint64_t bits) {
    int64_t many = 0;
    int status = with_float(dtype, [&](auto t) {
        using T = decltype(t);
        many = put<T>(static_cast<typename T::Value*>(y), where, count, bits);
        return static_cast<int>(ENCKE_OK);
    });
    return status == ENCKE_OK ? many : status;
}

int64_t holes_mark(const void* x, int64_t count, int dtype, const double* fill, int fills,
                   uint8_t* valid) {
    int64_t values = 0;
    int status = with_float(dtype, [&](auto t) {
        using T = decltype(t);
        values = mark<T>(static_cast<const typename T::Value*>(x), count, fill, fills, valid);
        return static_cast<int>(ENCKE_OK);
    });
    return status == ENCKE_OK ? values : status;
}

int64_t holes_sample(const void* x, int64_t count, int dtype, int64_t stride) {
    int64_t found = 0;
    int status = with_float(dtype, [&](auto t) {
        using T = decltype(t);
        const auto* values = static_cast<const typename T::Value*>(x);
        for (int64_t i = 0; i < count; i += stride) found += !is_finite<T>(values[i]);
        return static_cast<int>(ENCKE_OK);
    });
    return status == ENCKE_OK ? found : status;
}

int64_t holes_pattern(const void* x, const uint8_t* valid, int64_t count, int dtype,
                      uint8_t* out) {
    int64_t shared = 0;
    int status = with_float(dtype, [&](auto t) {
        using T = decltype(t);
        shared = pattern<T>(static_cast<const typename T::Value*>(x), valid, count, out);
        return static_cast<int>(ENCKE_OK);
    });
    return status == ENCKE_OK ? shared : status;
}

}  // namespace encke::ENCKE_ISA
