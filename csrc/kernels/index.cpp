// `index`: integers as their distance from a chunk's smallest (docs/format.md, section 11).
#include <type_traits>

#include "kernels/chunks.hpp"
#include "kernels/eights.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

constexpr int64_t kChunk = 8192;
constexpr int64_t kEntry = 9;   // a chunk's base and width in the table
constexpr int64_t kSlack = 16;  // what packing may touch behind the packed bytes

int64_t chunk_count(int64_t count) { return count / kChunk + (count % kChunk != 0); }
int64_t chunk_values(int64_t chunk, int64_t count) {
    int64_t rest = count - chunk * kChunk;
    return rest < kChunk ? rest : kChunk;
}
int64_t packed_bytes(int64_t values, int width) { return (values * width + 7) / 8; }

template <class T>
void extent(const T* x, int64_t n, T& low, T& high) {
    T lo = x[0], hi = x[0];
    for (int64_t i = 1; i < n; ++i) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    low = lo;
    high = hi;
}

// The codes of one chunk, narrowed to Code and padded with zeros to a multiple of eight.
template <class Code, class T>
void narrow(const T* x, int64_t n, T base, Code* codes) {
    using U = std::make_unsigned_t<T>;
    for (int64_t i = 0; i < n; ++i)
        codes[i] =
            static_cast<Code>(static_cast<U>(static_cast<U>(x[i]) - static_cast<U>(base)));
    for (int64_t i = n; i % 8; ++i) codes[i] = 0;
}

template <class T>
void pack(const T* x, int64_t n, T base, int width, uint8_t* to) {
    using U = std::make_unsigned_t<T>;
    if (width <= 8) {
        alignas(32) uint8_t codes[kChunk];
        narrow(x, n, base, codes);
        for (int64_t i = 0; i < n; i += 8, to += width)
            write<uint64_t>(to, squeeze8(read<uint64_t>(codes + i), width));
    } else if (width <= 16) {
        alignas(32) uint16_t codes[kChunk];
        narrow(x, n, base, codes);
        const uint8_t* bytes = reinterpret_cast<const uint8_t*>(codes);
        const int half = 4 * width;  // bits of four codes, 36 to 64
        for (int64_t i = 0; i < n; i += 8, to += width) {
            uint64_t a = squeeze4(read<uint64_t>(bytes + 2 * i), width);
            uint64_t b = squeeze4(read<uint64_t>(bytes + 2 * i + 8), width);
            write<uint64_t>(to, half < 64 ? a | b << half : a);
            write<uint64_t>(to + 8, half < 64 ? b >> (64 - half) : b);
        }
    } else {
        uint64_t pending = 0;
        int filled = 0;
        for (int64_t i = 0; i < n; ++i) {
            uint64_t code = static_cast<U>(static_cast<U>(x[i]) - static_cast<U>(base));
            pending |= code << filled;
            filled += width;
            if (filled >= 64) {
                write<uint64_t>(to, pending);
                to += 8;
                filled -= 64;
                pending = filled ? code >> (width - filled) : 0;
            }
        }
        if (filled) write<uint64_t>(to, pending);
    }
}

// Reads up to kSlack bytes behind the chunk's own.
template <class T>
void unpack(const uint8_t* from, int64_t n, T base, int width, T* y) {
    using U = std::make_unsigned_t<T>;
    const U least = static_cast<U>(base);
    if (width == 0) {
        for (int64_t i = 0; i < n; ++i) y[i] = base;
    } else if (width <= 8) {
        alignas(32) uint8_t codes[kChunk];
        for (int64_t i = 0; i < n; i += 8, from += width)
            write<uint64_t>(codes + i, spread8(read<uint64_t>(from), width));
        for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(static_cast<U>(codes[i] + least));
    } else if (width <= 16) {
        alignas(32) uint16_t codes[kChunk];
        uint8_t* bytes = reinterpret_cast<uint8_t*>(codes);
        const int half = 4 * width;
        for (int64_t i = 0; i < n; i += 8, from += width) {
            uint64_t a = read<uint64_t>(from), b = read<uint64_t>(from + 8);
            if (half < 64) b = a >> half | b << (64 - half);
            write<uint64_t>(bytes + 2 * i, spread4(a, width));
            write<uint64_t>(bytes + 2 * i + 8, spread4(b, width));
        }
        for (int64_t i = 0; i < n; ++i) y[i] = static_cast<T>(static_cast<U>(codes[i] + least));
    } else {
        const uint64_t mask = ~uint64_t{0} >> (64 - width);
        uint64_t bit = 0;
        for (int64_t i = 0; i < n; ++i, bit += static_cast<uint64_t>(width)) {
            const uint8_t* at = from + (bit >> 3);
            const int skip = static_cast<int>(bit & 7);
            uint64_t code = read<uint64_t>(at) >> skip;
            // Beyond 57 bits a code may reach into a ninth byte.
            if (width > 57 && skip) code |= static_cast<uint64_t>(at[8]) << (64 - skip);
            y[i] = static_cast<T>(static_cast<U>(static_cast<U>(code & mask) + least));
        }
    }
}

template <class T>
int encode(const T* x, int64_t count, Parts& to) {
    const int64_t chunks = chunk_count(count);
    const int threads = thread_count(chunks, count);
    to.start(threads + 1);
    uint8_t* table = to[0].reserve(static_cast<size_t>(kEntry * chunks));
    if (chunks && !table) return ENCKE_NO_MEMORY;
    to[0].advance(static_cast<size_t>(kEntry * chunks));
    return for_ranges(chunks, threads, [&](int64_t first, int64_t last, int thread) -> int {
        Bytes& part = to[thread + 1];
        for (int64_t c = first; c < last; ++c) {
            const int64_t n = chunk_values(c, count);
            const T* values = x + c * kChunk;
            T low, high;
            extent(values, n, low, high);
            const uint64_t distance = static_cast<uint64_t>(static_cast<int64_t>(high)) -
                                      static_cast<uint64_t>(static_cast<int64_t>(low));
            const int width = distance ? 64 - __builtin_clzll(distance) : 0;
            write<int64_t>(table + 8 * c, static_cast<int64_t>(low));
            table[8 * chunks + c] = static_cast<uint8_t>(width);
            if (width == 0) continue;
            const int64_t size = packed_bytes(n, width);
            uint8_t* out = part.reserve(static_cast<size_t>(size + width + kSlack));
            if (!out) return ENCKE_NO_MEMORY;
            pack(values, n, low, width, out);
            part.advance(static_cast<size_t>(size));
        }
        return ENCKE_OK;
    });
}

template <class T>
bool entry_fits(const uint8_t* table, int64_t chunks, int64_t c) {
    const int64_t base = read<int64_t>(table + 8 * c);
    return static_cast<int64_t>(static_cast<T>(base)) == base &&
           table[8 * chunks + c] <= 8 * sizeof(T);
}

template <class T>
int decode(const uint8_t* payload, int64_t size, T* y, int64_t count) {
    const int64_t chunks = chunk_count(count);
    if (size / kEntry < chunks) return ENCKE_CORRUPT;
    const uint8_t* widths = payload + 8 * chunks;
    const uint8_t* body = payload + kEntry * chunks;
    const uint8_t* end = payload + size;
    int64_t total = kEntry * chunks;
    for (int64_t c = 0; c < chunks; ++c) {
        if (!entry_fits<T>(payload, chunks, c)) return ENCKE_CORRUPT;
        total += packed_bytes(chunk_values(c, count), widths[c]);
    }
    if (total != size) return ENCKE_CORRUPT;
    if (chunks) {
        // Only the last chunk may end inside a byte; what is left of it is zero.
        const int64_t bits = chunk_values(chunks - 1, count) * widths[chunks - 1];
        if (bits % 8 && end[-1] >> bits % 8) return ENCKE_CORRUPT;
    }
    return for_ranges(
        chunks, thread_count(chunks, count), [&](int64_t first, int64_t last, int) -> int {
            alignas(32) uint8_t tail[kChunk * sizeof(T) + 8 + kSlack];
            const uint8_t* from = body;
            for (int64_t c = 0; c < first; ++c) from += packed_bytes(kChunk, widths[c]);
            for (int64_t c = first; c < last; ++c) {
                const int64_t n = chunk_values(c, count), bytes = packed_bytes(n, widths[c]);
                const T base = static_cast<T>(read<int64_t>(payload + 8 * c));
                const uint8_t* source = from;
                // Near the payload's end, unpack from a copy that may be read beyond.
                if (end - from < bytes + widths[c] + kSlack) {
                    std::memcpy(tail, from, static_cast<size_t>(bytes));
                    std::memset(tail + bytes, 0, static_cast<size_t>(kSlack));
                    source = tail;
                }
                unpack(source, n, base, widths[c], y + c * kChunk);
                from += bytes;
            }
            return ENCKE_OK;
        });
}

template <class F>
int with_integer(int dtype, F f) {
    switch (dtype) {
        case ENCKE_U8:
            return f(uint8_t{});
        case ENCKE_I8:
            return f(int8_t{});
        case ENCKE_I16:
            return f(int16_t{});
        case ENCKE_I32:
            return f(int32_t{});
        case ENCKE_I64:
            return f(int64_t{});
        default:
            return ENCKE_BAD_ARGUMENT;
    }
}

}  // namespace

int index_encode(const void* x, int64_t count, int dtype, Parts& to) {
    return with_integer(dtype, [&](auto zero) {
        return encode(static_cast<const decltype(zero)*>(x), count, to);
    });
}

int index_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype) {
    return with_integer(dtype, [&](auto zero) {
        return decode(payload, size, static_cast<decltype(zero)*>(out), count);
    });
}

}  // namespace encke::ENCKE_ISA
