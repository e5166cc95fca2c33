// `entropy`: quantised codes through the entropy stage (docs/format.md, sections 6 and 7).
#include "kernels/entries.hpp"
#include "kernels/float8.hpp"
#include "kernels/lanes.hpp"
#include "kernels/quantise.hpp"
#include "kernels/stage.hpp"

namespace encke::ENCKE_ISA {

namespace {

// Values in memory to codes in lane order and back, for one type and kind.
template <class T, int Kind>
class ValueCodes {
  public:
    using Value = typename T::Value;
    using Real = typename T::Real;
    using Bits = typename T::Bits;

    ValueCodes(const encke_quantiser& q, uint64_t center)
        : seed_(q.seed), center_(center), scale_(q) {}

    // How many values exceed the limit of each tier (or are not finite), and the largest
    // magnitude's bits.
    void survey(const Value* x, int64_t n, int64_t over[2], bool& all_zero) const {
        over[0] = over[1] = 0;
        Bits any = 0;
        const Bits limit0 = bit_cast<Bits>(scale_.limit[0]);
        const Bits limit1 = bit_cast<Bits>(scale_.limit[1]);
        int64_t i = 0;
#ifdef __AVX2__
        if constexpr (sizeof(Real) == 4) {
            __m256i most = _mm256_setzero_si256();
            const __m256i unsign = _mm256_set1_epi32(0x7FFFFFFF);
            for (; i + 8 <= n; i += 8)
                most = _mm256_max_epi32(
                    most, _mm256_and_si256(_mm256_castps_si256(load8<T>(x + i)), unsign));
            alignas(32) uint32_t lanes[8];
            _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), most);
            Bits top = 0;
            for (uint32_t lane : lanes) top = lane > top ? lane : top;
            any = top;
            if (top > limit0) i = 0;  // rare: count them one by one below
        }
#endif
        for (; i < n; ++i) {
            Bits bits = bit_cast<Bits>(T::load(x[i])) & (~Bits{0} >> 1);
            any |= bits;
            over[0] += bits > limit0;
            over[1] += bits > limit1;
        }
        all_zero = any == 0;
    }

    // Codes of n <= 65,536 values of one page; the last group is filled up with kAfter.
    void fill(const Value* x, int64_t n, int64_t position, int tier, int32_t* codes) const {
        LaneOrder order(Kind, seed_, position);
        const uint32_t start = static_cast<uint32_t>(position) & ((1u << kPageBits) - 1);
        int64_t i = 0;
#ifdef __AVX2__
        if constexpr (sizeof(Real) == 4 && Kind != ENCKE_POINTWISE) {
            const __m256 inverse = _mm256_set1_ps(scale_.inverse[tier]);
            const __m256i limit = _mm256_set1_epi32(bit_cast<int32_t>(scale_.limit[tier]));
            const __m256i unsign = _mm256_set1_epi32(0x7FFFFFFF);
            [[maybe_unused]] const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            [[maybe_unused]] __m256i hashes{};
            for (; i + 8 <= n; i += 8, codes += 8) {
                __m256 v = load8<T>(x + i);
                __m256 t = _mm256_mul_ps(v, inverse);
                __m256i lane_of{};
                if constexpr (Kind == ENCKE_DITHER) {
                    __m256i rotation;
                    if (!(i & 8))
                        hashes = order.dither().hash16(start + static_cast<uint32_t>(i));
                    t = _mm256_add_ps(t, i & 8 ? Dither::offsets8<1>(hashes, rotation)
                                               : Dither::offsets8<0>(hashes, rotation));
                    lane_of = _mm256_sub_epi32(lanes, rotation);  // its three low bits count
                } else if constexpr (Kind == ENCKE_HALF) {
                    t = _mm256_add_ps(t, _mm256_set1_ps(0.5f));
                }
                __m256i c = _mm256_cvtps_epi32(t);
                __m256i over =
                    _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(v), unsign), limit);
                c = _mm256_blendv_epi8(c, _mm256_set1_epi32(kVerbatim), over);
                if constexpr (Kind != ENCKE_PLAIN) {
                    __m256 zero = _mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_EQ_OQ);
                    c = _mm256_blendv_epi8(c, _mm256_set1_epi32(kZero),
                                           _mm256_castps_si256(zero));
                }
                if constexpr (Kind == ENCKE_DITHER) c = _mm256_permutevar8x32_epi32(c, lane_of);
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), c);
            }
        }
#endif
        for (; i < n; i += 8, codes += 8) {
            int32_t group[8];
            uint32_t j = start + static_cast<uint32_t>(i);
            for (int p = 0; p < 8; ++p)
                group[p] = i + p < n ? code(x[i + p], order.dither(), j + p, tier) : kAfter;
            order.to_lanes(j, group, codes);
        }
    }

    // The inverse, for n values; verbatim ones come from `raw`. False if there are too few.
    bool restore(const int32_t* codes, int64_t n, int64_t position, int tier,
                 const uint8_t*& raw, const uint8_t* raw_end, Value* out,
                 bool streaming) const {
        LaneOrder order(Kind, seed_, position);
        const uint32_t start = static_cast<uint32_t>(position) & ((1u << kPageBits) - 1);
#ifdef __AVX2__
        [[maybe_unused]] const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        [[maybe_unused]] __m256i hashes{};
#endif
        for (int64_t i = 0; i < n; i += 8, codes += 8) {
            uint32_t j = start + static_cast<uint32_t>(i);
#ifdef __AVX2__
            if constexpr (sizeof(Real) == 4 && Kind != ENCKE_POINTWISE) {
                __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
                __m256i verbatim = _mm256_cmpeq_epi32(c, _mm256_set1_epi32(kVerbatim));
                if (Kind == ENCKE_DITHER && !(j & 8)) hashes = order.dither().hash16(j);
                if (i + 8 <= n && _mm256_testz_si256(verbatim, verbatim)) {
                    __m256 u = _mm256_set1_ps(0.5f);
                    if constexpr (Kind == ENCKE_DITHER) {
                        __m256i rotation;
                        u = j & 8 ? Dither::offsets8<1>(hashes, rotation)
                                  : Dither::offsets8<0>(hashes, rotation);
                        c = _mm256_permutevar8x32_epi32(c, _mm256_add_epi32(lanes, rotation));
                    }
                    __m256i zero = _mm256_cmpeq_epi32(c, _mm256_set1_epi32(kZero));
                    __m256 y = _mm256_cvtepi32_ps(_mm256_andnot_si256(zero, c));
                    if constexpr (Kind != ENCKE_PLAIN) y = _mm256_sub_ps(y, u);
                    y = _mm256_mul_ps(y, _mm256_set1_ps(scale_.step[tier]));
                    store8<T, Kind>(out + i, y, _mm256_xor_si256(zero, _mm256_set1_epi32(-1)),
                                    streaming);
                    continue;
                }
            }
#else
            (void)streaming;
#endif
            int32_t group[8];
            order.to_memory(j, codes, group);
            for (int p = 0; p < 8 && i + p < n; ++p) {
                if (Kind == ENCKE_POINTWISE && below_zero(group[p])) return false;
                if (group[p] == kVerbatim) {
                    if (raw_end - raw < static_cast<ptrdiff_t>(sizeof(Value))) return false;
                    out[i + p] = read<Value>(raw);
                    raw += sizeof(Value);
                } else {
                    out[i + p] = value(group[p], order.dither(), j + p, tier);
                }
            }
        }
        return true;
    }

  private:
    uint64_t seed_, center_;
    Scale<T> scale_;

    // Whether a pointwise code counts from the centre to before the first pattern.
    bool below_zero(int32_t c) const {
        return c > kAfter && c < 0 &&
               center_ < static_cast<uint64_t>(-static_cast<int64_t>(c >> 1));
    }

    int32_t code(Value v, const Dither& dither, uint32_t j, int tier) const {
        if constexpr (Kind == ENCKE_POINTWISE) {
            using Pattern = typename T::Pattern;
            Pattern bits = bit_cast<Pattern>(v);
            uint64_t b = bits & static_cast<Pattern>(~T::kSign);
            if (b == 0) return kZero;
            if (b < uint64_t{1} << T::kMantissa || b >= T::kInfinity) return kVerbatim;
            int64_t k = static_cast<int64_t>((b + seed_ / 2) / seed_ - center_);
            if (k >= 1 << 29 || k <= -(1 << 29)) return kVerbatim;
            return static_cast<int32_t>(2 * k + ((bits & T::kSign) != 0));
        } else {
            Real x = T::load(v);
            Bits bits = bit_cast<Bits>(x) & (~Bits{0} >> 1);
            if (bits > bit_cast<Bits>(scale_.limit[tier])) return kVerbatim;
            if (Kind != ENCKE_PLAIN && bits == 0) return kZero;
            Real t = x * scale_.inverse[tier];
            if constexpr (Kind == ENCKE_DITHER)
                t = t + dither_offset<Real>(dither.level(j));
            else if constexpr (Kind == ENCKE_HALF)
                t = t + Real(0.5);
            return nearest(t);
        }
    }

    Value value(int32_t c, const Dither& dither, uint32_t j, int tier) const {
        if (c == kZero) return Value{};
        if constexpr (Kind == ENCKE_POINTWISE) {
            using Pattern = typename T::Pattern;
            // Written as a shift so that negative codes round down, as the format says.
            const uint64_t distance = static_cast<uint64_t>(static_cast<int64_t>(c >> 1));
            uint64_t k = center_ + distance, b;
            bool beyond = c >= 0 && k < center_;
            if (beyond || __builtin_mul_overflow(k, seed_, &b) || b >= T::kInfinity)
                b = T::kInfinity - 1;
            Pattern bits = static_cast<Pattern>(b);
            if (c & 1) bits = static_cast<Pattern>(bits | T::kSign);
            return bit_cast<Value>(bits);
        } else {
            Real y = static_cast<Real>(c);
            if constexpr (Kind == ENCKE_PLAIN) return T::store(y * scale_.step[tier]);
            if constexpr (Kind == ENCKE_DITHER)
                y = y - dither_offset<Real>(dither.level(j));
            else
                y = y - Real(0.5);
            return T::store_nonzero(y * scale_.step[tier]);
        }
    }
};

// How many of `count` values are looked at before coding: all of a small tensor, a quarter
// and less of a larger one.
int64_t sample_size(int64_t count) {
    if (count <= kSample / 4) return count;
    return count < kSample ? kSample / 4 : count < 4 * kSample ? count / 4 : kSample;
}

// Room for the codes of a sample.
size_t sample_bytes(int64_t count) {
    return 4 * static_cast<size_t>(sample_size(count) + kSampleRun);
}

// Makes a sample of one group that is not full look full: of the codes that it has.
int64_t fill_up(int32_t* group) {
    int32_t some = kAfter;
    for (int l = 0; l < kLanes; ++l)
        if (group[l] != kAfter) some = group[l];
    for (int l = 0; l < kLanes; ++l)
        if (group[l] == kAfter) group[l] = some;
    return 1;
}

// Short runs of values at even distances, each moved at random within its stretch: evenly
// spaced ones would meet the same few channels again and again. Calls f(first, length).
template <class F>
void for_sample(int64_t count, F f) {
    if (sample_size(count) == count) {
        for (int64_t first = 0; first + 8 <= count; first += kSampleRun) {
            int64_t left = (count - first) & ~int64_t{7};
            f(first, left < kSampleRun ? left : kSampleRun);
        }
        return;
    }
    const int64_t runs = sample_size(count) / kSampleRun;
    for (int64_t r = 0; r < runs; ++r) {
        int64_t begin = count / runs * r, room = count / runs - kSampleRun;
        uint64_t h = (static_cast<uint64_t>(r) + 1) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
        int64_t first =
            (begin + static_cast<int64_t>((h >> 33) % static_cast<uint64_t>(room + 1))) &
            ~int64_t{15};
        // Not across the end of a dither page.
        int64_t over = (first & ((1 << kPageBits) - 1)) + kSampleRun - (1 << kPageBits);
        f(over > 0 ? first - over : first, int64_t{kSampleRun});
    }
}

template <class T>
uint64_t pointwise_center(const typename T::Value* x, int64_t count, uint64_t divisor) {
    using Pattern = typename T::Pattern;
    unsigned __int128 sum = 0;
    uint64_t seen = 0;
    for_sample(count, [&](int64_t first, int64_t n) {
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
    for_sample(count, [&](int64_t first, int64_t n) {
        int64_t over[2];
        bool all_zero;
        source.survey(x + first, n, over, all_zero);
        source.fill(x + first, n, first, !kPointwise && over[0] - over[1] > n / 64,
                    sample + 8 * groups);
        groups += n / 8;
    });
    if (groups == 0) {  // fewer than eight values
        source.fill(x, count, 0, 0, sample);
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
        for (; chunk < last; ++chunk) {
            int64_t first = chunk * kStageChunk;
            int64_t n = count - first < kStageChunk ? count - first : kStageChunk;
            const Value* values = x + first;
            int64_t whole = n * static_cast<int64_t>(sizeof(Value));
            uint8_t* start = part.reserve(StageEncoder::most((n + 7) / 8) + whole);
            if (!start) return static_cast<int>(ENCKE_NO_MEMORY);
            int64_t over[2] = {0, 0};
            bool all_zero;
            source.survey(values, n, over, all_zero);
            if (kPointwise) over[0] = over[1] = 0;
            int tier = over[0] - over[1] > n / 64 ? 1 : 0;
            uint8_t* end = start + 4;
            ChunkMode mode = all_zero             ? kZeroChunk
                             : over[tier] > n / 4 ? kVerbatimChunk
                                                  : static_cast<ChunkMode>(tier);
            if (mode == kTier0 || mode == kTier1) {
                source.fill(values, n, first, tier, scratch->codes);
                end = encoder.encode(*scratch, (n + 7) / 8, mode, start);
                if (kPointwise || over[tier]) {
                    // Verbatim values follow in the order of memory.
                    LaneOrder order(Kind, q.seed, first);
                    for (int64_t i = 0; i < n; i += 8) {
                        uint32_t r = order.rotation(static_cast<uint32_t>(i));
                        for (int p = 0; p < 8 && i + p < n; ++p) {
                            if (scratch->codes[i + ((p + r) & 7)] != kVerbatim) continue;
                            write<Value>(end, values[i + p]);
                            end += sizeof(Value);
                        }
                    }
                }
                if (end - start > whole + 4) mode = kVerbatimChunk;
            }
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
                    auto sink = [&](int64_t group, int64_t groups, const int32_t* codes) {
                        int64_t here = n - 8 * group < 8 * groups ? n - 8 * group : 8 * groups;
                        return target.restore(codes, here, first + 8 * group,
                                              static_cast<int>(mode), raw, stop,
                                              values + 8 * group, streaming);
                    };
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
    for_sample(count, [&](int64_t first, int64_t n) {
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
                lane_order(first, n, scratch->codes);
                end = encoder.encode(*scratch, (n + 7) / 8, kTier0, start);
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
                    auto sink = [&](int64_t group, int64_t groups, const int32_t* lanes) {
                        for (int64_t g = group; g < group + groups; ++g, lanes += 8) {
                            int32_t eight[8];
                            order.to_memory(static_cast<uint32_t>(8 * g), lanes, eight);
                            for (int64_t p = 0; p < 8 && 8 * g + p < n; ++p) {
                                if (eight[p] <= kZero) return false;
                                codes[first + 8 * g + p] = eight[p];
                            }
                        }
                        return true;
                    };
                    good = decoder.decode(begin, stop, n, order.after(n), sink, rest) &&
                           rest == stop;
                }
                if (!good) return static_cast<int>(ENCKE_CORRUPT);
            }
            return static_cast<int>(ENCKE_OK);
        });
}

}  // namespace encke::ENCKE_ISA
