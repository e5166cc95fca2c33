// The entropy stage for codes that exist already: `predict` codes what its models leave over
// (docs/format.md, section 6).
#include "kernels/entries.hpp"
#include "kernels/lanes.hpp"
#include "kernels/sampling.hpp"
#include "kernels/stage.hpp"

namespace encke::ENCKE_ISA {

namespace {

// Where a chunk's decoded rows go; see RowDecoder.
struct CodeSink {
    const LaneOrder& order;
    const Plan& plan;
    int64_t n;
    int32_t* out;

    bool codes(int64_t group, int64_t groups, const int32_t* lanes) {
        for (int64_t g = group; g < group + groups; ++g, lanes += kLanes) {
            int32_t eight[kLanes];
            order.to_memory(static_cast<uint32_t>(kLanes * g), lanes, eight);
            for (int64_t p = 0; p < kLanes && kLanes * g + p < n; ++p) {
                if (eight[p] <= kZero) return false;
                out[kLanes * g + p] = eight[p];
            }
        }
        return true;
    }

#ifdef __AVX2__
    template <int D, bool Raw>
    int64_t rows(int64_t row, int64_t rows, const uint32_t* slots, const uint32_t* raws) const {
        constexpr int64_t kCount = 8 / D;
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i base = _mm256_set1_epi32(plan.base);
        int64_t at = kLanes * kCount * row;
        for (int64_t t = 0; t < rows; ++t) {
            __m256i c[kCount], none[kCount], raw{};
            if constexpr (Raw)
                raw = _mm256_load_si256(reinterpret_cast<const __m256i*>(raws + kLanes * t));
            __m256i slot =
                _mm256_load_si256(reinterpret_cast<const __m256i*>(slots + kLanes * t));
            __m256i escapes = codes8<D, Raw>(slot, raw, c, none);
            if (!_mm256_testz_si256(escapes, escapes)) return t;
            for (int i = 0; i < kCount; ++i, at += kLanes) {
                int r = static_cast<int>(order.rotation(static_cast<uint32_t>(at)));
                __m256i from = _mm256_add_epi32(lanes, _mm256_set1_epi32(r));
                __m256i code = _mm256_add_epi32(c[i], base);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at),
                                    _mm256_permutevar8x32_epi32(code, from));
            }
        }
        return rows;
    }
#endif
};

}  // namespace

int codes_encode(const int32_t* codes, int64_t count, int kind, uint64_t seed,
                 uint8_t parameters[8], Parts& to) {
    if (count == 0) {
        to.start(1);
        Plan().write_to(parameters);
        return ENCKE_OK;
    }
    auto lane_order = [&](int64_t first, int64_t n, int32_t* lanes) {
        if (kind != ENCKE_DITHER) {  // lanes are positions
            std::memcpy(lanes, codes + first, static_cast<size_t>(n) * sizeof *codes);
            for (int64_t i = n; i & 7; ++i) lanes[i] = kAfter;
            return;
        }
        int64_t page = first >> kPageBits << kPageBits;
        LaneOrder order(kind, seed, page);
        for (int64_t i = 0; i < n; i += 8, lanes += 8) {
            int32_t group[8];
            for (int p = 0; p < 8; ++p) group[p] = i + p < n ? codes[first + i + p] : kAfter;
            order.to_lanes(static_cast<uint32_t>(first - page + i), group, lanes);
        }
    };
    Bytes memory;
    uint8_t* room = memory.reserve(sample_bytes(count));
    if (!room) return ENCKE_NO_MEMORY;
    int32_t* sample = reinterpret_cast<int32_t*>(room);
    int64_t groups = 0;
    for_sample(codes, sizeof *codes, count, [&](int64_t first, int64_t n) {
        lane_order(first, n, sample + 8 * groups);
        groups += n / 8;
    });
    if (groups == 0) {
        lane_order(0, count, sample);
        groups = fill_up(sample);
    }
    const Coding coding = Planner(sample, groups, count, kind).choose();
    const StageEncoder encoder(coding);
    encoder.plan().write_to(parameters);

    int64_t chunks = (count + kStageChunk - 1) / kStageChunk;
    int threads = thread_count(chunks, count);
    to.start(threads + 1);
    uint8_t* head = to[0].reserve(encoder.table_bytes() + 4 * chunks);
    if (!head) return ENCKE_NO_MEMORY;
    uint8_t* lengths = encoder.write_tables(head);
    to[0].advance(static_cast<size_t>(lengths - head) + 4 * chunks);
    return for_ranges(chunks, threads, [&](int64_t chunk, int64_t last, int thread) {
        ChunkScratch* scratch = ChunkScratch::get();
        if (!scratch) return static_cast<int>(ENCKE_NO_MEMORY);
        Bytes& part = to[thread + 1];
        for (; chunk < last; ++chunk) {
            int64_t first = chunk * kStageChunk;
            int64_t n = count - first < kStageChunk ? count - first : kStageChunk;
            uint8_t* start = part.reserve(StageEncoder::most((n + 7) / 8));
            if (!start) return static_cast<int>(ENCKE_NO_MEMORY);
            int32_t any = 0;
            for (int64_t i = first; i < first + n; ++i) any |= codes[i];
            uint8_t* end = start + 4;
            if (any) {
                auto stretch = [&](int64_t group, int64_t groups, int32_t* lanes) {
                    int64_t left = n - kLanes * group;
                    lane_order(first + kLanes * group,
                               left < kLanes * groups ? left : kLanes * groups, lanes);
                };
                end = encoder.encode(*scratch, stretch, (n + 7) / 8, kTier0, start);
            } else {
                write<uint32_t>(start, kZeroChunk);
            }
            part.advance(static_cast<size_t>(end - start));
            write<uint32_t>(lengths + 4 * chunk, static_cast<uint32_t>(end - start));
        }
        return static_cast<int>(ENCKE_OK);
    });
}

int codes_decode(const uint8_t* payload, int64_t size, const uint8_t parameters[8], int kind,
                 uint64_t seed, int32_t* codes, int64_t count) {
    const uint8_t* end = payload + size;
    Plan plan;
    if (!plan.read_from(parameters, kind) || plan.zero) return ENCKE_CORRUPT;
    if (count == 0) return size == 0 ? ENCKE_OK : ENCKE_CORRUPT;
    StageDecoder decoder;
    if (!decoder.read_tables(plan, payload, end)) return ENCKE_CORRUPT;
    int64_t chunks = (count + kStageChunk - 1) / kStageChunk;
    if ((end - payload) / 4 < chunks) return ENCKE_CORRUPT;
    const uint8_t* lengths = payload;
    const uint8_t* body = payload + 4 * chunks;
    if (!ChunkTable::check(lengths, chunks, end - body)) return ENCKE_CORRUPT;
    return for_ranges(
        chunks, thread_count(chunks, count), [&](int64_t chunk, int64_t last, int) {
            ChunkTable table(lengths, body);
            for (; chunk < last; ++chunk) {
                const uint8_t *begin, *stop, *rest;
                table.locate(chunk, begin, stop);
                int64_t first = chunk * kStageChunk;
                int64_t n = count - first < kStageChunk ? count - first : kStageChunk;
                if (stop - begin < 4) return static_cast<int>(ENCKE_CORRUPT);
                uint32_t mode = read<uint32_t>(begin);
                begin += 4;
                bool good = false;
                if (mode == kZeroChunk) {
                    std::memset(codes + first, 0, static_cast<size_t>(n) * 4);
                    good = begin == stop;
                } else if (mode == kTier0) {
                    LaneOrder order(kind, seed, first);
                    CodeSink sink{order, plan, n, codes + first};
                    good = decoder.decode(begin, stop, n, order.after(n), sink, rest) &&
                           rest == stop;
                }
                if (!good) return static_cast<int>(ENCKE_CORRUPT);
            }
            return static_cast<int>(ENCKE_OK);
        });
}
}  // namespace encke::ENCKE_ISA
