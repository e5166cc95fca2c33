// `fixed`: blocks of 32 codes, each as wide as its largest (docs/format.md, section 5).
#include <type_traits>

#include "kernels/chunks.hpp"
#include "kernels/entries.hpp"
#include "kernels/planes.hpp"
#include "kernels/quantise.hpp"
#ifdef __AVX2__
#include "kernels/fixed_decode_avx2.hpp"
#include "kernels/fixed_encode_avx2.hpp"
#endif

namespace encke::ENCKE_ISA {

namespace {

constexpr int64_t kChunk = 8192;
constexpr uint8_t kRaw = 0xFF;
constexpr int kWidest = 30;
#ifdef __AVX2__
static_assert(kChunk == kBlocks * kBlock);
#endif

constexpr uint8_t header(int width, int tier, bool sparse, bool is_unsigned) {
    return static_cast<uint8_t>(width | tier << 5 | sparse << 6 | is_unsigned << 7);
}

// The codes at the positions of `mask`, w bits each, as one bit string.
uint8_t* write_sparse(const int32_t* codes, int width, uint32_t mask, uint8_t* to) {
    write<uint32_t>(to, mask);
    to += 4;
    const uint64_t low = (uint64_t{1} << width) - 1;
    uint64_t pending = 0;
    int filled = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        pending |= (static_cast<uint64_t>(codes[__builtin_ctz(rest)]) & low) << filled;
        filled += width;
        if (filled >= 32) {
            write<uint32_t>(to, static_cast<uint32_t>(pending));
            to += 4;
            pending >>= 32;
            filled -= 32;
        }
    }
    for (; filled > 0; filled -= 8, pending >>= 8) *to++ = static_cast<uint8_t>(pending);
    return to;
}

// Codes to a header byte and data at `to`, which is moved behind them.
uint8_t write_codes(const int32_t* codes, uint32_t mask, int tier, bool plain, uint8_t*& to) {
    uint32_t any = 0, negative = 0;
    for (int i = 0; i < kBlock; ++i) {
        int32_t c = (mask >> i & 1) ? codes[i] : 0;
        any |= static_cast<uint32_t>(c ^ c >> 31);
        negative |= static_cast<uint32_t>(c) >> 31;
    }
    int width = bit_length(any) + static_cast<int>(negative);
    if (plain) {
        mask = 0;
        for (int i = 0; i < kBlock; ++i) mask |= static_cast<uint32_t>(codes[i] != 0) << i;
    }
    bool sparse =
        plain ? 4 + (width * __builtin_popcount(mask) + 7) / 8 < 4 * width : mask != ~0u;
    if (sparse) {
        to = write_sparse(codes, width, mask, to);
    } else {
        uint32_t planes[32];
        split_planes(codes, width, planes);
        std::memcpy(to, planes, 4 * width);
        to += 4 * width;
    }
    return header(width, tier, sparse, !negative);
}

uint8_t write_raw(const void* x, size_t bytes, uint8_t*& to) {
    std::memcpy(to, x, bytes);
    to += bytes;
    return kRaw;
}

template <class T, int Kind>
uint8_t encode_block(const typename T::Value* x, int count, int64_t position, uint64_t seed,
                     const Scale<T>& scale, uint8_t*& to) {
    using Real = typename T::Real;
    Real values[kBlock];
    for (int i = 0; i < kBlock; ++i) values[i] = i < count ? T::load(x[i]) : Real(0);
    int tier = tier_of<T>(magnitude<T>(values), scale);
    if (tier < 0) return write_raw(x, count * sizeof *x, to);
    uint32_t mask = Kind == ENCKE_PLAIN ? ~0u : nonzeros<T>(values);
    if (!mask) return 0;
    int32_t codes[kBlock];
    Offsets<T, Kind> offsets(seed, position);
    quantise<T, Kind>(values, offsets.u, scale.inverse[tier], codes);
    if (Kind == ENCKE_PLAIN) {
        int32_t any = 0;
        for (int i = 0; i < kBlock; ++i) any |= codes[i];
        if (!any) return 0;
    }
    return write_codes(codes, mask, tier, Kind == ENCKE_PLAIN, to);
}

// Codes of the bit pattern itself, relative to the block's smallest.
template <class T>
uint8_t encode_pointwise(const typename T::Value* x, int count, uint64_t divisor,
                         uint8_t*& to) {
    using Pattern = typename T::Pattern;
    constexpr uint64_t kNormal = uint64_t{1} << T::kMantissa;
    uint64_t k[kBlock] = {}, low = ~uint64_t{0}, high = 0;
    uint32_t mask = 0, signs = 0;
    for (int i = 0; i < count; ++i) {
        Pattern bits = bit_cast<Pattern>(x[i]);
        uint64_t b = bits & static_cast<Pattern>(~T::kSign);
        if (b == 0) continue;
        if (b < kNormal || b >= T::kInfinity) return write_raw(x, count * sizeof *x, to);
        k[i] = (b + divisor / 2) / divisor;
        low = k[i] < low ? k[i] : low;
        high = k[i] > high ? k[i] : high;
        mask |= 1u << i;
        signs |= static_cast<uint32_t>((bits & T::kSign) != 0) << i;
    }
    if (!mask) return 0;
    if (2 * (high - low) + 1 >= uint64_t{1} << kWidest)
        return write_raw(x, count * sizeof *x, to);
    int32_t codes[kBlock] = {};
    for (int i = 0; i < kBlock; ++i)
        if (mask >> i & 1) codes[i] = static_cast<int32_t>(2 * (k[i] - low) + (signs >> i & 1));
    write<uint64_t>(to, low);
    to += 8;
    return write_codes(codes, mask, 0, false, to);
}

// Encodes the chunks of one thread.
template <class T, int Kind>
class Encoder {
  public:
    using Value = typename T::Value;

    Encoder(const encke_quantiser& q, const Scale<T>& scale)
        : q_(q),
          scale_(scale)
#ifdef __AVX2__
          ,
          fast_(scale)
#endif
    {
    }

    // Writes a chunk of `count` values to `to` and returns where it ends.
    uint8_t* encode(const Value* x, int count, int64_t position, uint8_t* to) {
        auto general = [&](int b, uint8_t*& end) {
            const int first = b * kBlock, n = count - first < kBlock ? count - first : kBlock;
            if constexpr (Kind == ENCKE_POINTWISE)
                return encode_pointwise<T>(x + first, n, q_.seed, end);
            else
                return encode_block<T, Kind>(x + first, n, position + first, q_.seed, scale_,
                                             end);
        };
#ifdef __AVX2__
        if constexpr (kFast<T, Kind>)
            return fast_.encode(x, count, position, Dither(q_.seed, position), to, general);
#endif
        const int blocks = (count + kBlock - 1) / kBlock;
        uint8_t *headers = to, *end = to + blocks;
        for (int b = 0; b < blocks; ++b) {
            // A copy, so that the compiler need not keep `end` in memory.
            uint8_t* next = end;
            headers[b] = general(b, next);
            end = next;
        }
        return end;
    }

  private:
    const encke_quantiser& q_;
    const Scale<T>& scale_;
#ifdef __AVX2__
    struct Nothing {
        explicit Nothing(const Scale<T>&) {}
    };
    std::conditional_t<kFast<T, Kind>, ChunkEncoder<T, Kind>, Nothing> fast_;
#endif
};

// Reads one block's codes and mask; false if the bytes do not hold them.
bool read_codes(uint8_t head, const uint8_t*& from, const uint8_t* end, int32_t* codes,
                uint32_t& mask) {
    int width = head & 31;
    bool sparse = head & 64, is_unsigned = head & 128;
    if (width > kWidest || (width == 0 && !is_unsigned)) return false;
    if (!sparse) {
        if (end - from < 4 * width) return false;
        uint32_t planes[32];
        std::memcpy(planes, from, 4 * width);
        from += 4 * width;
        mask = ~0u;
        join_planes(planes, width, is_unsigned, codes);
        return true;
    }
    if (end - from < 4) return false;
    mask = read<uint32_t>(from);
    int bytes = (width * __builtin_popcount(mask) + 7) / 8;
    from += 4;
    if (end - from < bytes) return false;
    uint8_t padded[4 * 32 + 8] = {};
    std::memcpy(padded, from, bytes);
    from += bytes;
    const uint32_t low = (uint32_t{1} << width) - 1;
    const uint32_t sign = is_unsigned ? 0 : uint32_t{1} << (width - 1);
    std::memset(codes, 0, kBlock * sizeof *codes);
    int bit = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1, bit += width) {
        uint32_t c = static_cast<uint32_t>(read<uint64_t>(padded + bit / 8) >> bit % 8) & low;
        codes[__builtin_ctz(rest)] = static_cast<int32_t>((c ^ sign) - sign);
    }
    return true;
}

template <class T, int Kind>
bool decode_block(uint8_t head, const uint8_t*& from, const uint8_t* end, int64_t position,
                  uint64_t seed, const Scale<T>& scale, typename T::Value* out) {
    int32_t codes[kBlock];
    uint32_t mask;
    if constexpr (Kind == ENCKE_POINTWISE) {
        using Pattern = typename T::Pattern;
        if (end - from < 8) return false;
        uint64_t base = read<uint64_t>(from);
        from += 8;
        if (!read_codes(head, from, end, codes, mask) || !(head & 128)) return false;
        for (int i = 0; i < kBlock; ++i) {
            uint64_t k, b;
            bool beyond =
                __builtin_add_overflow(base, static_cast<uint32_t>(codes[i]) >> 1, &k);
            if (beyond || __builtin_mul_overflow(k, seed, &b) || b >= T::kInfinity)
                b = T::kInfinity - 1;
            Pattern bits = static_cast<Pattern>(b);
            if (codes[i] & 1) bits = static_cast<Pattern>(bits | T::kSign);
            out[i] = bit_cast<typename T::Value>((mask >> i & 1) ? bits : Pattern{0});
        }
        return true;
    } else {
        if (!read_codes(head, from, end, codes, mask)) return false;
        Offsets<T, Kind> offsets(seed, position);
        dequantise<T, Kind>(codes, offsets.u, scale.step[head >> 5 & 1], mask, out);
        return true;
    }
}

// Decodes one block of `n` values, whatever it is, and moves `from` behind it.
template <class T, int Kind>
bool decode_any(uint8_t head, const uint8_t*& from, const uint8_t* end, int64_t position,
                uint64_t seed, const Scale<T>& scale, typename T::Value* out, int n) {
    const size_t bytes = n * sizeof *out;
    if (head == kRaw) {
        if (end - from < static_cast<ptrdiff_t>(bytes)) return false;
        std::memcpy(out, from, bytes);
        from += bytes;
        return true;
    }
    if (head == 0) {
        std::memset(out, 0, bytes);
        return true;
    }
    typename T::Value block[kBlock];
    if (!decode_block<T, Kind>(head, from, end, position, seed, scale, block)) return false;
    std::memcpy(out, block, bytes);
    return true;
}

// Decodes a chunk's blocks from number b on, whose data start at `from`.
template <class T, int Kind>
int decode_blocks(const uint8_t* headers, int b, const uint8_t* from, const uint8_t* end,
                  int64_t position, uint64_t seed, const Scale<T>& scale,
                  typename T::Value* out, int count) {
    for (int first = b * kBlock; first < count; first += kBlock) {
        const int n = count - first < kBlock ? count - first : kBlock;
        // A copy, so that the compiler need not keep `from` in memory.
        const uint8_t* next = from;
        if (!decode_any<T, Kind>(headers[first / kBlock], next, end, position + first, seed,
                                 scale, out + first, n))
            return ENCKE_CORRUPT;
        from = next;
    }
    return from == end ? ENCKE_OK : ENCKE_CORRUPT;
}

#ifdef __AVX2__
// Decodes a chunk that is planned up to some block, the rest in the general way.
template <class T, int Kind>
int decode_planned(const typename ChunkDecoder<T, Kind>::Plan& plan, const uint8_t* end,
                   int64_t position, uint64_t seed, const Scale<T>& scale,
                   typename T::Value* out, int count, bool streaming) {
    const uint8_t* rest = plan.data + plan.at[plan.planned];
    if (rest > end) return ENCKE_CORRUPT;
    const Dither dither(seed, position);
    if (streaming)
        ChunkDecoder<T, Kind>::template decode<true>(plan, position, dither, scale, out);
    else
        ChunkDecoder<T, Kind>::template decode<false>(plan, position, dither, scale, out);
    for (int i = 0; i < plan.lists.count[kGeneral]; ++i) {
        const int b = plan.lists.list[kGeneral][i];
        const uint8_t* from = plan.data + plan.at[b];
        if (!decode_any<T, Kind>(plan.headers[b], from, end, position + kBlock * b, seed, scale,
                                 out + kBlock * b, kBlock))
            return ENCKE_CORRUPT;
    }
    return decode_blocks<T, Kind>(plan.headers, plan.planned, rest, end, position, seed, scale,
                                  out, count);
}
#endif

// Decodes a range of chunks; `out` and `count` are those of the whole tensor. Nothing at or
// behind `readable` is read. `streaming`: write past the caches, where there is a way.
template <class T, int Kind>
int decode_range(ChunkTable table, int64_t chunk, int64_t last,
                 [[maybe_unused]] const uint8_t* readable, uint64_t seed, const Scale<T>& scale,
                 typename T::Value* out, int64_t count, [[maybe_unused]] bool streaming) {
    constexpr int kTogether = 4;
    const uint8_t *begin[kTogether], *end[kTogether];
    for (int together; chunk < last; chunk += together) {
        const int64_t left = count - chunk * kChunk;
        together = last - chunk >= kTogether && left >= kTogether * kChunk ? kTogether : 1;
        const int each = static_cast<int>(left < kChunk ? left : kChunk);
        const int headers = (each + kBlock - 1) / kBlock;
        for (int k = 0; k < together; ++k) {
            table.locate(chunk + k, begin[k], end[k]);
            if (end[k] - begin[k] < headers) return ENCKE_CORRUPT;
        }
#ifdef __AVX2__
        if constexpr (kFast<T, Kind>) {
            using Fast = ChunkDecoder<T, Kind>;
            typename Fast::Plan plans[kTogether];
            if (together == kTogether && readable - begin[kTogether - 1] >= Fast::kAmple)
                Fast::template plan<kTogether>(begin, headers, headers, readable, plans);
            else
                for (int k = 0; k < together; ++k)
                    Fast::template plan<1>(begin + k, headers, each / kBlock, readable,
                                           plans + k);
            for (int k = 0; k < together; ++k) {
                const int64_t first = (chunk + k) * kChunk;
                int status = decode_planned<T, Kind>(plans[k], end[k], first, seed, scale,
                                                     out + first, each, streaming);
                if (status != ENCKE_OK) return status;
            }
            continue;
        }
#endif
        for (int k = 0; k < together; ++k) {
            const int64_t first = (chunk + k) * kChunk;
            int status = decode_blocks<T, Kind>(begin[k], 0, begin[k] + headers, end[k], first,
                                                seed, scale, out + first, each);
            if (status != ENCKE_OK) return status;
        }
    }
    return ENCKE_OK;
}

template <class T, int Kind>
int encode_all(const typename T::Value* x, int64_t count, const encke_quantiser& q, Parts& to) {
    const Scale<T> scale(q);
    int64_t chunks = (count + kChunk - 1) / kChunk;
    int threads = thread_count(chunks, count);
    to.start(threads + 1);
    uint8_t* head = to[0].reserve(kParameters + 4 * chunks);
    if (!head) return ENCKE_NO_MEMORY;
    write_parameters(q, head);
    to[0].advance(kParameters + 4 * chunks);
    uint8_t* lengths = head + kParameters;
    return for_ranges(chunks, threads, [&](int64_t chunk, int64_t last, int thread) {
        Bytes& part = to[thread + 1];
        Encoder<T, Kind> encoder(q, scale);
        for (; chunk < last; ++chunk) {
            int64_t first = chunk * kChunk, n = count - first < kChunk ? count - first : kChunk;
            // The worst block is verbatim, or pointwise with its base and bitmap; the fast
            // path may write a few bytes beyond what it keeps.
            size_t worst = (n + kBlock - 1) / kBlock * (1 + kBlock * sizeof(*x) + 32) + 64;
            uint8_t* start = part.reserve(worst);
            if (!start) return static_cast<int>(ENCKE_NO_MEMORY);
            uint8_t* end = encoder.encode(x + first, static_cast<int>(n), first, start);
            part.advance(end - start);
            write<uint32_t>(lengths + 4 * chunk, static_cast<uint32_t>(end - start));
        }
        return static_cast<int>(ENCKE_OK);
    });
}

template <class T, int Kind>
int decode_all(const uint8_t* payload, int64_t size, typename T::Value* out, int64_t count,
               const encke_quantiser& q) {
    const Scale<T> scale(q);
    int64_t chunks = (count + kChunk - 1) / kChunk;
    const uint8_t* lengths = payload + kParameters;
    const uint8_t* body = lengths + 4 * chunks;
    if (!ChunkTable::check(lengths, chunks, payload + size - body)) return ENCKE_CORRUPT;
    // Results larger than the caches go past them: the lines they fill need no reading.
    bool streaming =
        count * sizeof(*out) >= kStreaming && reinterpret_cast<uintptr_t>(out) % 32 == 0;
    auto decode = [&](int64_t chunk, int64_t last, int) {
        int status =
            decode_range<T, Kind>(ChunkTable(lengths, body), chunk, last, payload + size,
                                  q.seed, scale, out, count, streaming);
#ifdef __AVX2__
        if (streaming) _mm_sfence();
#endif
        return status;
    };
    return for_ranges(chunks, thread_count(chunks, count), decode);
}

}  // namespace

int fixed_encode(const void* x, int64_t count, int dtype, const encke_quantiser& q, Parts& to) {
    return with_float(dtype, [&](auto type) {
        return with_kind(q.kind, [&](auto kind) {
            using T = decltype(type);
            return encode_all<T, kind()>(static_cast<const typename T::Value*>(x), count, q,
                                         to);
        });
    });
}

int fixed_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype) {
    int64_t chunks = (count + kChunk - 1) / kChunk;
    if (size < kParameters || (size - kParameters) / 4 < chunks) return ENCKE_CORRUPT;
    encke_quantiser q{};
    if (!read_parameters(payload, dtype, q)) return ENCKE_CORRUPT;
    for (int i = 1; i < 8; ++i)
        if (payload[i]) return ENCKE_CORRUPT;
    return with_float(dtype, [&](auto type) {
        return with_kind(q.kind, [&](auto kind) {
            using T = decltype(type);
            return decode_all<T, kind()>(payload, size, static_cast<typename T::Value*>(out),
                                         count, q);
        });
    });
}

}  // namespace encke::ENCKE_ISA
