// Independent chunks over the threads that torch has: same bytes for any number of them.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/numeric.hpp"
#include "parts.hpp"

namespace encke::ENCKE_ISA {

// Results from this size on do not stay in the caches: they are written past them.
constexpr size_t kStreaming = size_t{16} << 20;

inline int thread_count(int64_t chunks, int64_t values) {
#ifdef _OPENMP
    if (values < 65536 || chunks < 2 || omp_in_parallel()) return 1;
    int64_t most = omp_get_max_threads();
    if (most > Parts::kMost - 1) most = Parts::kMost - 1;
    return static_cast<int>(most < chunks ? most : chunks);
#else
    (void)chunks, (void)values;
    return 1;
#endif
}

// Runs f(first, last, thread) on as many contiguous ranges of chunks as there are threads.
// f returns a status; the worst one is returned.
template <class F>
inline int for_ranges(int64_t chunks, int threads, F f) {
    if (threads <= 1) return f(int64_t{0}, chunks, 0);
    int worst = ENCKE_OK;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) reduction(min : worst)
    {
        int64_t t = omp_get_thread_num(), n = omp_get_num_threads();
        worst = f(chunks * t / n, chunks * (t + 1) / n, static_cast<int>(t));
    }
#endif
    return worst;
}

// Runs f(begin, end) on ranges of values for kernels with one bit a value. Ranges are whole
// bytes of bits, so threads never share one.
template <class F>
inline int for_values(int64_t count, F f) {
    constexpr int64_t kChunk = 65536;
    int64_t chunks = (count + kChunk - 1) / kChunk;
    return for_ranges(chunks, thread_count(chunks, count),
                      [&](int64_t first, int64_t last, int) -> int {
                          int64_t begin = first * kChunk, end = last * kChunk;
                          f(begin, end < count ? end : count);
                          return ENCKE_OK;
                      });
}

// Where each chunk of a payload lies. Reads the table of u32 lengths at `table` and
// checks that the chunks fill [body, end) exactly.
class ChunkTable {
  public:
    static bool check(const uint8_t* table, int64_t chunks, int64_t body_size) {
        uint64_t total = 0;
        for (int64_t c = 0; c < chunks; ++c) total += read<uint32_t>(table + 4 * c);
        return body_size >= 0 && total == static_cast<uint64_t>(body_size);
    }

    // A cursor for a thread whose first chunk is the first it is asked for.
    ChunkTable(const uint8_t* table, const uint8_t* body) : table_(table), at_(body) {}

    void locate(int64_t chunk, const uint8_t*& begin, const uint8_t*& end) {
        for (; next_ < chunk; ++next_) at_ += read<uint32_t>(table_ + 4 * next_);
        begin = at_;
        end = at_ + read<uint32_t>(table_ + 4 * chunk);
    }

  private:
    const uint8_t* table_;
    const uint8_t* at_;
    int64_t next_ = 0;
};

}  // namespace encke::ENCKE_ISA
