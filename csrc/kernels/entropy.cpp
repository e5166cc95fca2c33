// `entropy`: quantised codes through the entropy stage (docs/format.md, sections 6 and 7).
#include "kernels/entries.hpp"
#include "kernels/sampling.hpp"
#include "kernels/stage.hpp"
#include "kernels/values.hpp"

namespace encke::ENCKE_ISA {

namespace {

template <class T>
uint64_t pointwise_center(const typename T::Value* x, int64_t count, uint64_t divisor) {
    using Pattern = typename T::Pattern;
    unsigned __int128 sum = 0;
    uint64_t seen = 0;
    for_sample(x, sizeof *x, count, [&](int64_t first, int64_t n) {
        for (int64_t i = first; i < first + n; ++i) {
            uint64_t b = bit_cast<Pattern>(x[i]) & static_cast<Pattern>(~T::kSign);
            if (b < uint64_t{1} << T::kMantissa || b >= T::kInfinity) continue;
            sum += b;
            ++seen;
        }
    });
    return seen ? static_cast<uint64_t>(sum / seen) / divisor : 0;
}

template <class T, int Kind>
int encode_all(const typename T::Value* x, int64_t count, const encke_quantiser& q, Parts& to) {
    using Value = typename T::Value;
    constexpr bool kPointwise = Kind == ENCKE_POINTWISE;
    if (count == 0) {
        to.start(1);
        uint8_t* head = to[0].reserve(kParameters);
        if (!head) return ENCKE_NO_MEMORY;
        write_parameters(q, head);
        Plan().write_to(head);
        to[0].advance(kParameters);
        return ENCKE_OK;
    }
    const uint64_t center = kPointwise ? pointwise_center<T>(x, count, q.seed) : 0;
    const ValueCodes<T, Kind> source(q, center);
    int64_t chunks = (count + kStageChunk - 1) / kStageChunk;

    Bytes memory;
    uint8_t* room = memory.reserve(sample_bytes(count));
    if (!room) return ENCKE_NO_MEMORY;
    int32_t* sample = reinterpret_cast<int32_t*>(room);
    int64_t groups = 0;
    for_sample(x, sizeof *x, count, [&](int64_t first, int64_t n) {
        int64_t over[2];
        bool all_zero;
        source.survey(x + first, n, over, all_zero);
        source.fill(x + first, n, LaneOrder(Kind, q.seed, first),
                    static_cast<uint32_t>(first) & ((1u << kPageBits) - 1),
                    !kPointwise && over[0] - over[1] > n / 64, sample + 8 * groups);
        groups += n / 8;
    });
    if (groups == 0) {  // fewer than eight values
        source.fill(x, count, LaneOrder(Kind, q.seed, 0), 0, 0, sample);
        groups = fill_up(sample);
    }
    const Coding coding = Planner(sample, groups, count, Kind).choose();
    const StageEncoder encoder(coding);

    int threads = thread_count(chunks, count);
    to.start(threads + 1);
    size_t extra = kPointwise ? 8 : 0;
    uint8_t* head = to[0].reserve(kParameters + extra + encoder.table_bytes() + 4 * chunks);
    if (!head) return ENCKE_NO_MEMORY;
    write_parameters(q, head);
    encoder.plan().write_to(head);
    if (kPointwise) write<uint64_t>(head + kParameters, center);
    uint8_t* lengths = encoder.write_tables(head + kParameters + extra);
    to[0].advance(static_cast<size_t>(lengths - head) + 4 * chunks);

    return for_ranges(chunks, threads, [&](int64_t chunk, int64_t last, int thread) {
        ChunkScratch* scratch = ChunkScratch::get();
        if (!scratch) return static_cast<int>(ENCKE_NO_MEMORY);
        Bytes& part = to[thread + 1];
        // Most chunks have no value beyond tier 0: they are coded as if that were known, and
        // looked at beforehand only if the last one was different.
        bool calm = source.kCalm;
        for (; chunk < last; ++chunk) {
            int64_t first = chunk * kStageChunk;
            int64_t n = count - first < kStageChunk ? count - first : kStageChunk;
            const Value* values = x + first;
            int64_t whole = n * static_cast<int64_t>(sizeof(Value));
            uint8_t* start = part.reserve(StageEncoder::most((n + 7) / 8) + whole);
            if (!start) return static_cast<int>(ENCKE_NO_MEMORY);
            const LaneOrder order(Kind, q.seed, first);
            uint8_t* end = start + 4;
            ChunkMode mode = kTier0;
            auto encode = [&](auto fill) {
                auto stretch = [&](int64_t group, int64_t groups, int32_t* codes) {
                    int64_t left = n - kLanes * group;
                    fill(values + kLanes * group,
                         left < kLanes * groups ? left : kLanes * groups,
                         static_cast<uint32_t>(kLanes * group), codes);
                };
                end = encoder.encode(*scratch, stretch, (n + 7) / 8, mode, start);
            };
            // A chunk that starts with zeros may have nothing else.
            bool some = false;
            for (int64_t i = 0; calm && i < n && i < 64; ++i) some |= values[i] != Value{};
            if (calm && some) {
                typename ValueCodes<T, Kind>::Most most;
                encode([&](const Value* from, int64_t here, uint32_t j, int32_t* codes) {
                    source.fill_calm(from, here, order, j, codes, most);
                });
                calm = source.within(most);
            } else {
                calm = false;
            }
            if (!calm) {
                int64_t over[2] = {0, 0};
                bool all_zero;
                source.survey(values, n, over, all_zero);
                calm = source.kCalm && over[0] == 0;
                if (kPointwise) over[0] = over[1] = 0;
                int tier = over[0] - over[1] > n / 64 ? 1 : 0;
                mode = all_zero             ? kZeroChunk
                       : over[tier] > n / 4 ? kVerbatimChunk
                                            : static_cast<ChunkMode>(tier);
                end = start + 4;
                if (mode == kTier0 || mode == kTier1) {
                    encode([&](const Value* from, int64_t here, uint32_t j, int32_t* codes) {
                        source.fill(from, here, order, j, tier, codes);
                    });
                    // Verbatim values follow in the order of memory.
                    for (int64_t i = 0; (kPointwise || over[tier]) && i < n; ++i) {
                        if (!source.verbatim(values[i], tier)) continue;
                        write<Value>(end, values[i]);
                        end += sizeof(Value);
                    }
                }
            }
            if (end - start > whole + 4) mode = kVerbatimChunk;
            if (mode == kVerbatimChunk) {
                std::memcpy(start + 4, values, static_cast<size_t>(whole));
                end = start + 4 + whole;
            }
            write<uint32_t>(start, mode);
            part.advance(static_cast<size_t>(end - start));
            write<uint32_t>(lengths + 4 * chunk, static_cast<uint32_t>(end - start));
        }
        return static_cast<int>(ENCKE_OK);
    });
}

// Where a chunk's decoded rows go; see RowDecoder.
template <class T, int Kind>
struct ValueSink {
    const ValueCodes<T, Kind>& target;
    const LaneOrder& order;
    const Plan& plan;
    int tier;
    int64_t n;            // values in the chunk
    const uint8_t*& raw;  // the next verbatim one
    const uint8_t* raw_end;
    typename T::Value* out;
    bool streaming;

    bool codes(int64_t group, int64_t groups, const int32_t* lanes) {
        int64_t left = n - kLanes * group;
        return target.restore(lanes, left < kLanes * groups ? left : kLanes * groups, order,
                              static_cast<uint32_t>(kLanes * group), tier, raw, raw_end,
                              out + kLanes * group, streaming);
    }

#ifdef __AVX2__
    template <int D, bool Raw>
    int64_t rows(int64_t row, int64_t rows, const uint32_t* slots, const uint32_t* raws) const {
        return ValueRows<T, Kind>(target.step(tier), order.dither(), plan, out, streaming)
            .template take<D, Raw>(row, rows, slots, raws);
    }
#endif
};

template <class T, int Kind>
int decode_all(const uint8_t* payload, int64_t size, typename T::Value* out, int64_t count,
               const encke_quantiser& q) {
    using Value = typename T::Value;
    const uint8_t* end = payload + size;
    const uint8_t* from = payload + kParameters;
    Plan plan;
    if (!plan.read_from(payload, Kind) || (plan.zero && Kind == ENCKE_PLAIN))
        return ENCKE_CORRUPT;
    if (count == 0) return size == kParameters ? ENCKE_OK : ENCKE_CORRUPT;
    uint64_t center = 0;
    if constexpr (Kind == ENCKE_POINTWISE) {
        if (end - from < 8) return ENCKE_CORRUPT;
        center = read<uint64_t>(from);
        from += 8;
    }
    StageDecoder decoder;
    if (!decoder.read_tables(plan, from, end)) return ENCKE_CORRUPT;
    int64_t chunks = (count + kStageChunk - 1) / kStageChunk;
    if ((end - from) / 4 < chunks) return ENCKE_CORRUPT;
    const uint8_t* lengths = from;
    const uint8_t* body = from + 4 * chunks;
    if (!ChunkTable::check(lengths, chunks, end - body)) return ENCKE_CORRUPT;
    const ValueCodes<T, Kind> target(q, center);
    const bool streaming =
        count * sizeof(Value) >= kStreaming && reinterpret_cast<uintptr_t>(out) % 32 == 0;

    return for_ranges(
        chunks, thread_count(chunks, count), [&](int64_t chunk, int64_t last, int) {
            ChunkTable table(lengths, body);
            for (; chunk < last; ++chunk) {
                const uint8_t *begin, *stop;
                table.locate(chunk, begin, stop);
                int64_t first = chunk * kStageChunk;
                int64_t n = count - first < kStageChunk ? count - first : kStageChunk;
                Value* values = out + first;
                size_t whole = static_cast<size_t>(n) * sizeof(Value);
                if (stop - begin < 4) return static_cast<int>(ENCKE_CORRUPT);
                uint32_t mode = read<uint32_t>(begin);
                begin += 4;
                bool good = false;
                if (mode == kZeroChunk) {
                    std::memset(values, 0, whole);
                    good = begin == stop;
                } else if (mode == kVerbatimChunk) {
                    good = static_cast<size_t>(stop - begin) == whole;
                    if (good) std::memcpy(values, begin, whole);
                } else if (mode <= kTier1) {
                    const uint8_t* raw = stop;
                    LaneOrder order(Kind, q.seed, first);
                    ValueSink<T, Kind> sink{target,   order, plan, static_cast<int>(mode),
                                            n,        raw,   stop, values,
                                            streaming};
                    // The verbatim values start where the exceptions end, which `decode` says
                    // before it hands on the first codes.
                    good = decoder.decode(begin, stop, n, order.after(n), sink, raw) &&
                           raw == stop;
                }
                if (!good) return static_cast<int>(ENCKE_CORRUPT);
            }
#ifdef __AVX2__
            if (streaming) _mm_sfence();
#endif
            return static_cast<int>(ENCKE_OK);
        });
}

}  // namespace

int entropy_encode(const void* x, int64_t count, int dtype, const encke_quantiser& q,
                   Parts& to) {
    return with_float(dtype, [&](auto type) {
        return with_kind(q.kind, [&](auto kind) {
            using T = decltype(type);
            return encode_all<T, kind()>(static_cast<const typename T::Value*>(x), count, q,
                                         to);
        });
    });
}

int entropy_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype) {
    encke_quantiser q{};
    if (size < kParameters || !read_parameters(payload, dtype, q)) return ENCKE_CORRUPT;
    return with_float(dtype, [&](auto type) {
        return with_kind(q.kind, [&](auto kind) {
            using T = decltype(type);
            return decode_all<T, kind()>(payload, size, static_cast<typename T::Value*>(out),
                                         count, q);
        });
    });
}

}  // namespace encke::ENCKE_ISA
