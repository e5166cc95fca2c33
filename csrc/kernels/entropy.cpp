// `entropy`: quantised codes through the entropy stage (docs/format.md, sections 6 and 7).
#include "kernels/entries.hpp"
#include "kernels/entropy_direct.hpp"
#include "kernels/entropy_lagged.hpp"
#include "kernels/lag_choice.hpp"
#include "kernels/sampling.hpp"

namespace encke::ENCKE_ISA {

namespace {

// Whether values may be predicted: neither where half the precision is lost on the way, nor
// where codes are not on a line.
template <class T, int Kind>
constexpr bool kPredicts = sizeof(typename T::Value) >= 4 && Kind != ENCKE_POINTWISE;

// Codes on which predicting is tried, and what share of the bits it may leave.
constexpr int64_t kTrial = int64_t{1} << 15;
constexpr double kEnough = 0.97;
// Bits a value that need no trial.
constexpr double kClear = 0.3;

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

// `Source` makes codes of values: it has `kFlags` for parameter byte 7, `kExtra` bytes behind
// the parameters, codes for a `sample`, and `Chunks`, of which each thread has one.
template <class Source>
int encode_all(const Source& source, const typename Source::Value* x, int64_t count, int kind,
               const encke_quantiser& q, Parts& to) {
    using Value = typename Source::Value;
    int64_t chunks = (count + kStageChunk - 1) / kStageChunk;

    Bytes memory;
    uint8_t* room = memory.reserve(sample_bytes(count));
    if (!room) return ENCKE_NO_MEMORY;
    int32_t* sample = reinterpret_cast<int32_t*>(room);
    int64_t groups = 0;
    for_sample(
        x, sizeof *x, count,
        [&](int64_t first, int64_t n) {
            source.sample(x, first, n, sample + 8 * groups);
            groups += n / 8;
        },
        source.lag(), Source::kThin);
    if (groups == 0) {  // fewer than eight values
        source.sample(x, 0, count, sample);
        groups = fill_up(sample);
    }
    const Coding coding = Planner(sample, groups, count, kind).choose();
    const StageEncoder encoder(coding);

    int threads = thread_count(chunks, count);
    to.start(threads + 1);
    uint8_t* head =
        to[0].reserve(kParameters + Source::kExtra + encoder.table_bytes() + 4 * chunks);
    if (!head) return ENCKE_NO_MEMORY;
    write_parameters(q, head);
    encoder.plan().write_to(head);
    head[7] |= Source::kFlags;
    source.write_extra(head + kParameters);
    uint8_t* lengths = encoder.write_tables(head + kParameters + Source::kExtra);
    to[0].advance(static_cast<size_t>(lengths - head) + 4 * chunks);

    return for_ranges(chunks, threads, [&](int64_t chunk, int64_t last, int thread) {
        ChunkScratch* scratch = ChunkScratch::get();
        typename Source::Chunks coder(source);
        if (!scratch || !coder.reserve()) return static_cast<int>(ENCKE_NO_MEMORY);
        Bytes& part = to[thread + 1];
        for (; chunk < last; ++chunk) {
            int64_t first = chunk * kStageChunk;
            int64_t n = count - first < kStageChunk ? count - first : kStageChunk;
            const Value* values = x + first;
            int64_t whole = n * static_cast<int64_t>(sizeof(Value));
            uint8_t* start = part.reserve(StageEncoder::most((n + 7) / 8) + whole);
            if (!start) return static_cast<int>(ENCKE_NO_MEMORY);
            ChunkMode mode;
            uint8_t* end = coder.encode(encoder, *scratch, values, first, n, start, mode);
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

// Bits that a tensor of many values would take, from a part of the usual sample.
template <class Source>
double trial(const Source& source, const typename Source::Value* x, int64_t count, int kind,
             int32_t* codes) {
    const int64_t thin = (sample_size(count) + kTrial - 1) / kTrial;
    int64_t groups = 0;
    for_sample(
        x, sizeof *x, count,
        [&](int64_t first, int64_t n) {
            if (groups * kLanes + n > kTrial) return;
            source.sample(x, first, n, codes + 8 * groups);
            groups += n / 8;
        },
        source.lag(), thin);
    return Planner(codes, groups, count, kind).choose().cost;
}

template <class T, int Kind>
int encode_kind(const typename T::Value* x, const int64_t* shape, int ndim,
                const encke_quantiser& q, Parts& to) {
    int64_t count = 1;
    for (int d = 0; d < ndim; ++d) count *= shape[d];
    if (count == 0) {
        to.start(1);
        uint8_t* head = to[0].reserve(kParameters);
        if (!head) return ENCKE_NO_MEMORY;
        write_parameters(q, head);
        Plan().write_to(head);
        to[0].advance(kParameters);
        return ENCKE_OK;
    }
    if constexpr (kPredicts<T, Kind>) {
        double gain = 0;
        const Lag lag = LagChoice(x, count, q).choose(shape, ndim, gain);
        if (lag.distance) {
            const LaggedSource<T, Kind> lagged(q, lag);
            Bytes memory;
            uint8_t* room = memory.reserve(4 * (kTrial + 2 * kSampleRun));
            if (!room) return ENCKE_NO_MEMORY;
            int32_t* codes = reinterpret_cast<int32_t*>(room);
            // With dither the errors are as the estimate takes them to be.
            if ((Kind == ENCKE_DITHER && gain > kClear) ||
                trial(lagged, x, count, Kind, codes) <
                    kEnough * trial(DirectSource<T, Kind>(q, 0), x, count, Kind, codes))
                return encode_all(lagged, x, count, Kind, q, to);
        }
    }
    uint64_t center = 0;
    if constexpr (Kind == ENCKE_POINTWISE) center = pointwise_center<T>(x, count, q.seed);
    return encode_all(DirectSource<T, Kind>(q, center), x, count, Kind, q, to);
}

// The chunks from `from` on; each thread has a `Sink` for them, made of `how`.
template <class T, int Kind, class Sink, class... How>
int decode_chunks(const uint8_t* from, const uint8_t* end, const Plan& plan,
                  typename T::Value* out, int64_t count, uint64_t seed, const How&... how) {
    using Value = typename T::Value;
    StageDecoder decoder;
    if (!decoder.read_tables(plan, from, end)) return ENCKE_CORRUPT;
    int64_t chunks = (count + kStageChunk - 1) / kStageChunk;
    if ((end - from) / 4 < chunks) return ENCKE_CORRUPT;
    const uint8_t* lengths = from;
    const uint8_t* body = from + 4 * chunks;
    if (!ChunkTable::check(lengths, chunks, end - body)) return ENCKE_CORRUPT;
    const bool streaming =
        count * sizeof(Value) >= kStreaming && reinterpret_cast<uintptr_t>(out) % 32 == 0;

    return for_ranges(
        chunks, thread_count(chunks, count), [&](int64_t chunk, int64_t last, int) {
            ChunkTable table(lengths, body);
            Sink sink(how...);
            if (!sink.reserve()) return static_cast<int>(ENCKE_NO_MEMORY);
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
                    LaneOrder order(Kind, seed, first);
                    sink.start(first, order, plan, static_cast<int>(mode), n, raw, stop, values,
                               streaming);
                    // The verbatim values start where the exceptions end, which `decode` says
                    // before it hands on the first codes.
                    good = decoder.decode(begin, stop, n, order.after(n), sink, raw) &&
                           raw == stop;
                    if (good) sink.finish();
                }
                if (!good) return static_cast<int>(ENCKE_CORRUPT);
            }
#ifdef __AVX2__
            if (streaming) _mm_sfence();
#endif
            return static_cast<int>(ENCKE_OK);
        });
}

template <class T, int Kind>
int decode_kind(const uint8_t* payload, int64_t size, typename T::Value* out, int64_t count,
                const encke_quantiser& q) {
    const uint8_t* end = payload + size;
    const uint8_t* from = payload + kParameters;
    const bool lagged = payload[7] & Lag::kFlag;
    Plan plan;
    if (!plan.read_from(payload, Kind, kPredicts<T, Kind> ? Lag::kFlag : 0) ||
        (plan.zero && Kind == ENCKE_PLAIN && !lagged))
        return ENCKE_CORRUPT;
    if (count == 0) return size == kParameters && !lagged ? ENCKE_OK : ENCKE_CORRUPT;
    if constexpr (kPredicts<T, Kind>) {
        if (lagged) {
            Lag lag;
            if (end - from < Lag::kBytes || !lag.read_from(from)) return ENCKE_CORRUPT;
            const LaggedCodes<T, Kind> target(q, lag);
            return decode_chunks<T, Kind, LaggedSink<T, Kind>>(from + Lag::kBytes, end, plan,
                                                               out, count, q.seed, target, lag);
        }
    }
    uint64_t center = 0;
    if constexpr (Kind == ENCKE_POINTWISE) {
        if (end - from < 8) return ENCKE_CORRUPT;
        center = read<uint64_t>(from);
        from += 8;
    }
    const ValueCodes<T, Kind> target(q, center);
    return decode_chunks<T, Kind, ValueSink<T, Kind>>(from, end, plan, out, count, q.seed,
                                                      target);
}

}  // namespace

int entropy_encode(const void* x, const int64_t* shape, int ndim, int dtype,
                   const encke_quantiser& q, Parts& to) {
    return with_float(dtype, [&](auto type) {
        return with_kind(q.kind, [&](auto kind) {
            using T = decltype(type);
            return encode_kind<T, kind()>(static_cast<const typename T::Value*>(x), shape, ndim,
                                          q, to);
        });
    });
}

int entropy_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype) {
    encke_quantiser q{};
    if (size < kParameters || !read_parameters(payload, dtype, q)) return ENCKE_CORRUPT;
    return with_float(dtype, [&](auto type) {
        return with_kind(q.kind, [&](auto kind) {
            using T = decltype(type);
            return decode_kind<T, kind()>(payload, size, static_cast<typename T::Value*>(out),
                                          count, q);
        });
    });
}

}  // namespace encke::ENCKE_ISA
