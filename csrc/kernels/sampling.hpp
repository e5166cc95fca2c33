// Which codes the planner looks at before anything is coded.
#pragma once

#include <cstddef>

#include "kernels/digits.hpp"
#include "kernels/dither.hpp"

namespace encke::ENCKE_ISA {

constexpr int64_t kSample = int64_t{1} << 18;
constexpr int kSampleRun = 128;

// How many of `count` values are looked at before coding: all of a small tensor, a quarter
// and less of a larger one.
inline int64_t sample_size(int64_t count) {
    if (count <= kSample / 4) return count;
    return count < kSample ? kSample / 4 : count < 4 * kSample ? count / 4 : kSample;
}

// Room for the codes of a sample.
inline size_t sample_bytes(int64_t count) {
    return 4 * static_cast<size_t>(sample_size(count) + kSampleRun);
}

// Makes a sample of one group that is not full look full: of the codes that it has.
inline int64_t fill_up(int32_t* group) {
    int32_t some = kAfter;
    for (int l = 0; l < kLanes; ++l)
        if (group[l] != kAfter) some = group[l];
    for (int l = 0; l < kLanes; ++l)
        if (group[l] == kAfter) group[l] = some;
    return 1;
}

// Where run r of a sample's `runs` runs starts.
inline int64_t run_start(int64_t count, int64_t runs, int64_t r) {
    int64_t begin = count / runs * r, room = count / runs - kSampleRun;
    uint64_t h = (static_cast<uint64_t>(r) + 1) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    int64_t first =
        (begin + static_cast<int64_t>((h >> 33) % static_cast<uint64_t>(room + 1))) &
        ~int64_t{15};
    // Not across the end of a dither page.
    int64_t over = (first & ((1 << kPageBits) - 1)) + kSampleRun - (1 << kPageBits);
    return over > 0 ? first - over : first;
}

// Short runs of values at even distances, each moved at random within its stretch: evenly
// spaced ones would meet the same few channels again and again. Calls f(first, length).
// `x` are the values, `each` bytes long: what comes soon is fetched ahead, and what lies `lag`
// values before it. Of a large tensor, only one run in `thin` is taken.
template <class F>
void for_sample(const void* x, size_t each, int64_t count, F f, int64_t lag = 0,
                int64_t thin = 1) {
    if (sample_size(count) == count) {
        for (int64_t first = 0; first + 8 <= count; first += kSampleRun) {
            int64_t left = (count - first) & ~int64_t{7};
            f(first, left < kSampleRun ? left : kSampleRun);
        }
        return;
    }
    constexpr int64_t kAhead = 4;
    const int64_t runs = sample_size(count) / kSampleRun / thin;
    int64_t starts[kAhead];
    auto expect = [&](int64_t r) {
        starts[r % kAhead] = run_start(count, runs, r);
        const char* from =
            static_cast<const char*>(x) + static_cast<size_t>(starts[r % kAhead]) * each;
        for (size_t i = 0; i < kSampleRun * each; i += 64) __builtin_prefetch(from + i);
        if (lag && starts[r % kAhead] >= lag)
            for (size_t i = 0; i < kSampleRun * each; i += 64)
                __builtin_prefetch(from - static_cast<size_t>(lag) * each + i);
    };
    for (int64_t r = 0; r < kAhead && r < runs; ++r) expect(r);
    for (int64_t r = 0; r < runs; ++r) {
        const int64_t first = starts[r % kAhead];
        if (r + kAhead < runs) expect(r + kAhead);
        f(first, int64_t{kSampleRun});
    }
}

}  // namespace encke::ENCKE_ISA
