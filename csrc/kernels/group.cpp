// `group`: min-max quantisation, 256 values at a time (docs/format.md, section 9).
#include "kernels/chunks.hpp"
#include "kernels/dither.hpp"
#include "kernels/eights.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

constexpr int kGroup = 256;
constexpr int64_t kHeader = 8;
constexpr int64_t kUnit = 256;  // groups that one thread takes at a time: a page of rounding

template <class Real>
struct Range;  // between these the products of section 9 neither overflow nor underflow
template <>
struct Range<float> {
    static constexpr float kLeast = 0x1p-118f, kMost = 0x1p120f;
};
template <>
struct Range<double> {
    static constexpr double kLeast = 0x1p-1000, kMost = 0x1p1000;
};

// Below this a value rounds to a finite one of the dtype.
constexpr double ceiling(F32) { return __builtin_inf(); }
constexpr double ceiling(F64) { return __builtin_inf(); }
constexpr double ceiling(F16) { return 65520.0; }
constexpr double ceiling(BF16) { return 0x1.FFp127; }

// Where the parts of a payload lie.
template <class Float>
struct Layout {
    using Real = typename Float::Real;
    int64_t count, groups, bitmap, parameters;

    explicit Layout(int64_t n)
        : count(n),
          groups(n / kGroup + (n % kGroup != 0)),
          bitmap(groups / 8 + (groups % 8 != 0)),
          parameters(groups * 2 * static_cast<int64_t>(sizeof(Real))) {}

    int64_t units() const { return (groups + kUnit - 1) / kUnit; }
    int values(int64_t g) const {
        int64_t rest = count - g * kGroup;
        return static_cast<int>(rest < kGroup ? rest : kGroup);
    }
    static int code_bytes(int values, int bits) { return (values * bits + 7) / 8; }
};

template <class Real>
struct Extent {
    Real low, high;
    bool finite;
};

// Sixteen lanes, each with its own smallest and largest, so that the compiler may use
// vectors without changing a result.
template <class Real>
Extent<Real> extent(const Real* x) {
    constexpr int kLanes = 16;
    Real low[kLanes], high[kLanes], sum[kLanes];
    for (int l = 0; l < kLanes; ++l) low[l] = high[l] = x[l], sum[l] = 0;
    for (int i = 0; i < kGroup; i += kLanes)
        for (int l = 0; l < kLanes; ++l) {
            const Real v = x[i + l];
            low[l] = v < low[l] ? v : low[l];
            high[l] = v > high[l] ? v : high[l];
            sum[l] += v * 0;  // NaN if v is not finite, and stays NaN
        }
    Extent<Real> e{low[0], high[0], true};
    for (int l = 0; l < kLanes; ++l) {
        e.low = low[l] < e.low ? low[l] : e.low;
        e.high = high[l] > e.high ? high[l] : e.high;
        e.finite = e.finite && sum[l] == 0;
    }
    return e;
}

// The rounding's u of 256 positions from `start` on.
template <class Real>
void thresholds(uint64_t seed, int64_t start, Real* u) {
    const Dither page(seed, start);
    const uint32_t first = static_cast<uint32_t>(start) & 65535;
#ifdef __AVX2__
    alignas(32) float eight[8];
    // The dither lies around 0, the rounding's u around 1/2; both are exact in binary32.
    for (uint32_t i = 0; i < kGroup; i += 8) {
        _mm256_store_ps(eight, _mm256_add_ps(page.offsets8(first + i), _mm256_set1_ps(0.5f)));
        for (uint32_t l = 0; l < 8; ++l) u[i + l] = static_cast<Real>(eight[l]);
    }
#else
    for (uint32_t i = 0; i < kGroup; ++i) {
        const Real m = static_cast<Real>(static_cast<int32_t>(page.level(first + i)));
        u[i] = (m + Real(0.5)) * Real(0x1p-16);
    }
#endif
}

template <class Real>
void quantise(const Real* x, const Real* u, Real low, Real inverse, int levels,
              uint8_t* codes) {
    int32_t wide[kGroup];
    for (int i = 0; i < kGroup; ++i) {
        const int32_t c = static_cast<int32_t>((x[i] - low) * inverse + u[i]);
        wide[i] = c < levels ? c : levels;
    }
    for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(wide[i]);
}

// A group's values, converted; a short one is filled up with its first value.
template <class Float>
void load_group(const typename Float::Value* x, int n, typename Float::Real* values) {
    for (int i = 0; i < n; ++i) values[i] = Float::load(x[i]);
    for (int i = n; i < kGroup; ++i) values[i] = values[0];
}

template <class Float>
void store_group(const uint8_t* codes, int n, typename Float::Real low,
                 typename Float::Real step, typename Float::Value* y) {
    using Real = typename Float::Real;
    for (int i = 0; i < n; ++i) y[i] = Float::store(low + static_cast<Real>(codes[i]) * step);
}

#ifdef __AVX2__
Extent<float> extent(const float* x) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256 low[2], high[2];
    __m256i bits[2];
    for (int k = 0; k < 2; ++k) {
        low[k] = high[k] = _mm256_load_ps(x + 8 * k);
        bits[k] = _mm256_setzero_si256();
    }
    for (int i = 0; i < kGroup; i += 16)
        for (int k = 0; k < 2; ++k) {
            const __m256 v = _mm256_load_ps(x + i + 8 * k);
            low[k] = _mm256_min_ps(v, low[k]);
            high[k] = _mm256_max_ps(v, high[k]);
            const __m256i b = _mm256_and_si256(_mm256_castps_si256(v), magnitude);
            bits[k] = _mm256_max_epi32(b, bits[k]);
        }
    alignas(32) float lows[8], highs[8];
    alignas(32) int32_t largest[8];
    _mm256_store_ps(lows, _mm256_min_ps(low[0], low[1]));
    _mm256_store_ps(highs, _mm256_max_ps(high[0], high[1]));
    _mm256_store_si256(reinterpret_cast<__m256i*>(largest), _mm256_max_epi32(bits[0], bits[1]));
    Extent<float> e{lows[0], highs[0], true};
    for (int l = 0; l < 8; ++l) {
        e.low = lows[l] < e.low ? lows[l] : e.low;
        e.high = highs[l] > e.high ? highs[l] : e.high;
        e.finite = e.finite && largest[l] < 0x7F800000;
    }
    return e;
}

void quantise(const float* x, const float* u, float low, float inverse, int levels,
              uint8_t* codes) {
    const __m256 lows = _mm256_set1_ps(low), inverses = _mm256_set1_ps(inverse);
    const __m256i most = _mm256_set1_epi32(levels);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int i = 0; i < kGroup; i += 32) {
        __m256i c[4];
        for (int k = 0; k < 4; ++k) {
            const int at = i + 8 * k;
            const __m256 scaled =
                _mm256_mul_ps(_mm256_sub_ps(_mm256_load_ps(x + at), lows), inverses);
            c[k] = _mm256_min_epi32(
                _mm256_cvttps_epi32(_mm256_add_ps(scaled, _mm256_load_ps(u + at))), most);
        }
        const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(c[0], c[1]),
                                                  _mm256_packus_epi32(c[2], c[3]));
        _mm256_store_si256(reinterpret_cast<__m256i*>(codes + i),
                           _mm256_permutevar8x32_epi32(bytes, order));
    }
}

template <>
void load_group<F16>(const uint16_t* x, int n, float* values) {
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            values + i,
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
    for (; i < n; ++i) values[i] = F16::load(x[i]);
    for (; i < kGroup; ++i) values[i] = values[0];
}

template <>
void store_group<F16>(const uint8_t* codes, int n, float low, float step, uint16_t* y) {
    const __m256 lows = _mm256_set1_ps(low), steps = _mm256_set1_ps(step);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i c =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
        const __m256 v = _mm256_add_ps(lows, _mm256_mul_ps(_mm256_cvtepi32_ps(c), steps));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                         _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; ++i) y[i] = F16::store(low + static_cast<float>(codes[i]) * step);
}
#endif

template <class Float>
int encode(const typename Float::Value* x, int64_t count, int bits, bool stochastic,
           uint64_t seed, Parts& to) {
    using Real = typename Float::Real;
    const Layout<Float> at(count);
    const int levels = (1 << bits) - 1;
    const int64_t units = at.units();
    int threads = thread_count(units, count);
    if (threads > (Parts::kMost - 1) / 2) threads = (Parts::kMost - 1) / 2;
    to.start(1 + 2 * threads);
    const size_t head_size = static_cast<size_t>(kHeader + at.bitmap + at.parameters);
    uint8_t* head = to[0].reserve(head_size);
    if (!head) return ENCKE_NO_MEMORY;
    to[0].advance(head_size);
    std::memset(head, 0, head_size);
    head[0] = static_cast<uint8_t>(bits);
    head[1] = stochastic;
    uint8_t* raw_flags = head + kHeader;
    uint8_t* parameters = raw_flags + at.bitmap;

    return for_ranges(units, threads, [&](int64_t first, int64_t last, int thread) -> int {
        Bytes& codes_part = to[1 + thread];
        Bytes& raw_part = to[1 + threads + thread];
        alignas(32) Real values[kGroup], u[kGroup];
        alignas(32) uint8_t codes[kGroup];
        for (Real& half : u) half = Real(0.5);
        const int64_t end = last * kUnit < at.groups ? last * kUnit : at.groups;
        for (int64_t g = first * kUnit; g < end; ++g) {
            const int n = at.values(g);
            const auto* source = x + g * kGroup;
            load_group<Float>(source, n, values);
            const Extent<Real> e = extent(values);
            const Real range = e.high - e.low;
            if (!e.finite || !(range <= Range<Real>::kMost)) {
                raw_flags[g / 8] = static_cast<uint8_t>(raw_flags[g / 8] | 1 << g % 8);
                const size_t size = static_cast<size_t>(n) * sizeof *source;
                uint8_t* out = raw_part.reserve(size);
                if (!out) return ENCKE_NO_MEMORY;
                std::memcpy(out, source, size);
                raw_part.advance(size);
                continue;
            }
            const Real low = e.low + Real(0);  // -0 becomes +0
            const bool coded = range >= Range<Real>::kLeast;
            write<Real>(parameters + g * 2 * sizeof(Real), low);
            write<Real>(parameters + (g * 2 + 1) * sizeof(Real),
                        coded ? range / levels : range);
            uint8_t* out = codes_part.reserve(kGroup + 8);
            if (!out) return ENCKE_NO_MEMORY;
            if (coded) {
                if (stochastic) thresholds(seed, g * kGroup, u);
                quantise(values, u, low, levels / range, levels, codes);
                for (int i = n; i < kGroup; ++i) codes[i] = 0;
                for (int i = 0; i < kGroup / 8; ++i)
                    write<uint64_t>(out + i * bits,
                                    squeeze8(read<uint64_t>(codes + 8 * i), bits));
            } else {
                std::memset(out, 0, kGroup);
            }
            codes_part.advance(static_cast<size_t>(at.code_bytes(n, bits)));
        }
        return ENCKE_OK;
    });
}

// Reads eight bytes behind the codes of a whole group.
template <class Float>
void decode_group(const uint8_t* from, int n, int bits, typename Float::Real low,
                  typename Float::Real step, typename Float::Value* y) {
    alignas(32) uint8_t codes[kGroup];
    for (int i = 0; i < kGroup / 8; ++i)
        write<uint64_t>(codes + 8 * i, spread8(read<uint64_t>(from + i * bits), bits));
    if (n == kGroup)
        store_group<Float>(codes, kGroup, low, step, y);
    else
        store_group<Float>(codes, n, low, step, y);
}

template <class Float>
bool parameters_fit(const uint8_t* parameters, int64_t groups, int levels) {
    using Real = typename Float::Real;
    const double most = ceiling(Float{});
    for (int64_t g = 0; g < groups; ++g) {
        const Real low = read<Real>(parameters + g * 2 * sizeof(Real));
        const Real step = read<Real>(parameters + (g * 2 + 1) * sizeof(Real));
        const Real high = low + static_cast<Real>(levels) * step;
        // Written so that NaN fails every comparison.
        if (!(step >= 0 && low > -most && low < most && high < most)) return false;
    }
    return true;
}

int64_t flagged(const uint8_t* flags, int64_t groups) {
    int64_t total = 0, g = 0;
    for (; g + 8 <= groups; g += 8) total += __builtin_popcount(flags[g / 8]);
    if (g < groups) total += __builtin_popcount(flags[g / 8] & ((1 << (groups - g)) - 1));
    return total;
}

template <class Float>
int decode(const uint8_t* payload, int64_t size, typename Float::Value* y, int64_t count) {
    using Real = typename Float::Real;
    using Value = typename Float::Value;
    const Layout<Float> at(count);
    const int64_t head = kHeader + at.bitmap + at.parameters;
    if (size < head) return ENCKE_CORRUPT;
    const int bits = payload[0];
    if ((bits != 1 && bits != 2 && bits != 4 && bits != 8) || payload[1] > 1)
        return ENCKE_CORRUPT;
    for (int i = 2; i < kHeader; ++i)
        if (payload[i]) return ENCKE_CORRUPT;
    const uint8_t* flags = payload + kHeader;
    const uint8_t* parameters = flags + at.bitmap;
    if (at.groups % 8 && flags[at.bitmap - 1] >> at.groups % 8) return ENCKE_CORRUPT;
    if (!parameters_fit<Float>(parameters, at.groups, (1 << bits) - 1)) return ENCKE_CORRUPT;

    const int64_t whole_codes = Layout<Float>::code_bytes(kGroup, bits);
    const int64_t whole_raw = kGroup * static_cast<int64_t>(sizeof(Value));
    const int64_t raw_groups = flagged(flags, at.groups);
    int64_t codes_size = (at.groups - raw_groups) * whole_codes;
    int64_t raw_size = raw_groups * whole_raw;
    if (at.groups) {
        // The last group may be shorter, whichever kind it is.
        const int64_t g = at.groups - 1;
        const int n = at.values(g);
        const bool raw = flags[g / 8] >> g % 8 & 1;
        if (raw)
            raw_size -= whole_raw - n * static_cast<int64_t>(sizeof(Value));
        else
            codes_size -= whole_codes - Layout<Float>::code_bytes(n, bits);
        if (size != head + codes_size + raw_size) return ENCKE_CORRUPT;
        if (!raw && n * bits % 8 && payload[head + codes_size - 1] >> n * bits % 8)
            return ENCKE_CORRUPT;
    } else if (size != head) {
        return ENCKE_CORRUPT;
    }
    const uint8_t* end = payload + size;
    const int64_t units = at.units();
    return for_ranges(
        units, thread_count(units, count), [&](int64_t first, int64_t last, int) -> int {
            const int64_t begin = first * kUnit;
            const int64_t raw_before = flagged(flags, begin);
            const uint8_t* codes = payload + head + (begin - raw_before) * whole_codes;
            const uint8_t* raw = payload + head + codes_size + raw_before * whole_raw;
            const int64_t stop = last * kUnit < at.groups ? last * kUnit : at.groups;
            for (int64_t g = begin; g < stop; ++g) {
                const int n = at.values(g);
                Value* to = y + g * kGroup;
                if (flags[g / 8] >> g % 8 & 1) {
                    std::memcpy(to, raw, static_cast<size_t>(n) * sizeof(Value));
                    raw += static_cast<size_t>(n) * sizeof(Value);
                    continue;
                }
                const Real low = read<Real>(parameters + g * 2 * sizeof(Real));
                const Real step = read<Real>(parameters + (g * 2 + 1) * sizeof(Real));
                const int64_t bytes = Layout<Float>::code_bytes(n, bits);
                if (end - codes >= whole_codes + 8) {
                    decode_group<Float>(codes, n, bits, low, step, to);
                } else {
                    uint8_t tail[kGroup + 8] = {};
                    std::memcpy(tail, codes, static_cast<size_t>(bytes));
                    decode_group<Float>(tail, n, bits, low, step, to);
                }
                codes += bytes;
            }
            return ENCKE_OK;
        });
}

}  // namespace

int group_encode(const void* x, int64_t count, int dtype, int bits, int stochastic,
                 uint64_t seed, Parts& to) {
    if (bits != 1 && bits != 2 && bits != 4 && bits != 8) return ENCKE_BAD_ARGUMENT;
    return with_float(dtype, [&](auto type) {
        using Float = decltype(type);
        return encode<Float>(static_cast<const typename Float::Value*>(x), count, bits,
                             stochastic != 0, seed, to);
    });
}

int group_decode(const uint8_t* payload, int64_t size, void* out, int64_t count, int dtype) {
    return with_float(dtype, [&](auto type) {
        using Float = decltype(type);
        return decode<Float>(payload, size, static_cast<typename Float::Value*>(out), count);
    });
}

}  // namespace encke::ENCKE_ISA
