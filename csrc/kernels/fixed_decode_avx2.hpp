// Decodes chunks of `fixed` with AVX2: blocks of values that compute in float, codes of at
// most 16 bits. Whatever else a block is, the general path in fixed.cpp takes it.
#pragma once

#include "kernels/fixed_avx2.hpp"

namespace encke::ENCKE_ISA {

template <class T, int Kind>
class ChunkDecoder {
  public:
    using Value = typename T::Value;

    // Where a chunk's blocks are, and which are alike. `planned` blocks are known to leave
    // enough readable bytes behind their start; `at[planned]` is where the next one starts.
    struct Plan {
        const uint8_t* headers;
        const uint8_t* data;
        int planned;
        bool any_sparse;
        ClassLists lists;
        uint32_t at[kBlocks + 1];
        // A block has base + ceil(each * bits set in its bitmap / 8) bytes.
        alignas(32) uint8_t base[kBlocks], each[kBlocks];
    };

    // Plans the first `blocks` blocks, which are whole ones, of `Count` chunks at `from`.
    // Nothing at or behind `readable` is read; with several chunks there must be kAmple bytes.
    static constexpr ptrdiff_t kAmple = kBlocks * 129 + 96;
    template <int Count>
    static void plan(const uint8_t* const* from, int headers, int blocks,
                     const uint8_t* readable, Plan* plans) {
        bool any_sparse = false;
        for (int k = 0; k < Count; ++k) {
            plans[k].headers = from[k];
            plans[k].data = from[k] + headers;
            read_headers(from[k], blocks, plans[k]);
            any_sparse |= plans[k].any_sparse;
        }
        if (any_sparse)
            find_places<Count, true>(blocks, readable, plans);
        else
            find_places<Count, false>(blocks, readable, plans);
    }

    // The planned blocks of a chunk to `out`, but for those of class kGeneral.
    template <bool Streaming>
    static void decode(const Plan& plan, int64_t position, const Dither& dither,
                       const Scale<T>& scale, Value* out) {
        auto each = [&](Class kind, auto f) __attribute__((always_inline)) {
            for (int i = 0; i < plan.lists.count[kind]; ++i) {
                const int b = plan.lists.list[kind][i];
                const int head = plan.headers[b];
                f(head & 31, plan.data + plan.at[b],
                  Target<Streaming>(out + kBlock * b, position + kBlock * b, dither,
                                    scale.step[head >> 5 & 1]),
                  head & 128 ? 0 : (1 << (head & 31)) >> 1);
            }
        };
        each(kZero, [](int, const uint8_t*, const Target<Streaming>& target, int)
                        __attribute__((always_inline)) { target.clear(); });
        each(kDenseNarrow, [](int width, const uint8_t* from, const Target<Streaming>& target,
                              int sign) __attribute__((always_inline)) {
            const __m256i s = _mm256_set1_epi8(static_cast<char>(sign));
            __m256i bytes = planes_to_packed(load_planes(from, width));
            bytes = _mm256_sub_epi8(_mm256_xor_si256(bytes, s), s);
            for (int g = 0; g < 4; ++g) target.put(g, widened_bytes(bytes, g));
        });
        each(kDenseWide, [](int width, const uint8_t* from, const Target<Streaming>& target,
                            int sign) __attribute__((always_inline)) {
            const __m256i s = _mm256_set1_epi16(static_cast<short>(sign));
            const __m256i low = planes_to_packed(load32(from));
            const __m256i high = planes_to_packed(load_planes(from + 32, width - 8));
            const __m256i none = _mm256_setzero_si256();
            for (int h = 0; h < 2; ++h) {
                __m256i words =
                    h ? _mm256_unpackhi_epi8(low, high) : _mm256_unpacklo_epi8(low, high);
                words = _mm256_sub_epi16(_mm256_xor_si256(words, s), s);
                target.put(2 * h, _mm256_srai_epi32(_mm256_unpacklo_epi16(none, words), 16));
                target.put(2 * h + 1,
                           _mm256_srai_epi32(_mm256_unpackhi_epi16(none, words), 16));
            }
        });
        each(kSparseNarrow, [](int width, const uint8_t* from, const Target<Streaming>& target,
                               int sign) __attribute__((always_inline)) {
            const __m256i s = _mm256_set1_epi32(sign);
            const __m256i used = _mm256_set1_epi8(static_cast<char>((1 << width) - 1));
            const __m256i whole = spread_bits(read<uint32_t>(from));
            alignas(32) uint64_t masks[4], present[4];
            store32(masks, _mm256_and_si256(whole, used));
            if constexpr (Kind != ENCKE_PLAIN) store32(present, whole);
            from += 4;
            uint32_t bit = 0;
            for (int g = 0; g < 4; ++g) {
                const uint64_t bits = read<uint64_t>(from + (bit >> 3)) >> (bit & 7);
                bit += static_cast<uint32_t>(_mm_popcnt_u64(masks[g]));
                __m256i c = _mm256_cvtepu8_epi32(widen(_pdep_u64(bits, masks[g])));
                c = _mm256_sub_epi32(_mm256_xor_si256(c, s), s);
                if constexpr (Kind == ENCKE_PLAIN)
                    target.put(g, c);
                else
                    target.put(g, c, _mm256_cvtepi8_epi32(widen(present[g])));
            }
        });
        each(kSparseWide, [](int width, const uint8_t* from, const Target<Streaming>& target,
                             int sign) __attribute__((always_inline)) {
            const __m256i s = _mm256_set1_epi32(sign);
            const __m256i used = _mm256_set1_epi16(static_cast<short>((1 << width) - 1));
            const __m256i whole = spread_bits(read<uint32_t>(from));
            alignas(32) uint64_t masks[8], present[4];
            const __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(whole));
            const __m256i high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(whole, 1));
            store32(masks, _mm256_and_si256(low, used));
            store32(masks + 4, _mm256_and_si256(high, used));
            if constexpr (Kind != ENCKE_PLAIN) store32(present, whole);
            from += 4;
            uint32_t bit = 0;
            for (int g = 0; g < 4; ++g) {
                __m128i half[2];
                for (int h = 0; h < 2; ++h) {
                    const uint64_t bits = read<uint64_t>(from + (bit >> 3)) >> (bit & 7);
                    bit += static_cast<uint32_t>(_mm_popcnt_u64(masks[2 * g + h]));
                    half[h] = widen(_pdep_u64(bits, masks[2 * g + h]));
                }
                __m256i c = _mm256_cvtepu16_epi32(_mm_unpacklo_epi64(half[0], half[1]));
                c = _mm256_sub_epi32(_mm256_xor_si256(c, s), s);
                if constexpr (Kind == ENCKE_PLAIN)
                    target.put(g, c);
                else
                    target.put(g, c, _mm256_cvtepi8_epi32(widen(present[g])));
            }
        });
    }

  private:
    // What the headers say of their blocks: class and size.
    static void read_headers(const uint8_t* headers, int blocks, Plan& plan) {
        plan.lists.clear();
        plan.any_sparse = false;
        const __m256i none = _mm256_setzero_si256();
        auto most = [](__m256i v, int limit) __attribute__((always_inline)) {
            return _mm256_cmpgt_epi8(_mm256_set1_epi8(static_cast<char>(limit + 1)), v);
        };
        for (int b = 0; b < blocks; b += 32) {
            uint8_t padded[32] = {};
            const bool whole = blocks - b >= 32;
            if (!whole) std::memcpy(padded, headers + b, blocks - b);
            const uint32_t there = whole ? ~0u : (1u << (blocks - b)) - 1;
            const __m256i head = load32(whole ? headers + b : padded);
            const __m256i width = _mm256_and_si256(head, _mm256_set1_epi8(31));
            const __m256i is_unsigned = _mm256_cmpgt_epi8(none, head);
            const __m256i sparse =
                _mm256_cmpgt_epi8(none, _mm256_add_epi8(head, head));  // bit 6
            const __m256i raw = _mm256_cmpeq_epi8(head, _mm256_set1_epi8(-1));
            __m256i base = _mm256_slli_epi16(width, 2);
            base = _mm256_blendv_epi8(base, _mm256_set1_epi8(4), sparse);
            base = _mm256_blendv_epi8(
                base, _mm256_set1_epi8(static_cast<char>(kBlock * sizeof(Value))), raw);
            store32(plan.base + b, base);
            store32(plan.each + b, _mm256_andnot_si256(raw, _mm256_and_si256(width, sparse)));

            // Narrow codes fit in a signed byte, wide ones in a signed word; sparse ones are
            // read four or eight at a time from words of 64 bits.
            const __m256i digits = _mm256_sub_epi8(width, is_unsigned);
            const __m256i zero = _mm256_cmpeq_epi8(head, none);
            const __m256i usable = _mm256_or_si256(
                is_unsigned, _mm256_cmpgt_epi8(width, none));  // else zero, or not allowed
            const uint32_t is_sparse = bits_of(sparse), can = bits_of(usable) & there;
            const uint32_t of_class[kClasses] = {
                can & ~is_sparse & bits_of(most(digits, 8)),
                can & ~is_sparse & bits_of(most(digits, 16)) & ~bits_of(most(digits, 8)),
                can & is_sparse & bits_of(most(width, 8)),
                can & is_sparse & bits_of(most(width, 14)) & ~bits_of(most(width, 8)),
                bits_of(zero) & there,
                0,
            };
            plan.any_sparse |= (is_sparse & there) != 0;
            uint32_t general = there;
            for (int c = 0; c < kGeneral; ++c) {
                general &= ~of_class[c];
                add(plan.lists, c, b, of_class[c]);
            }
            add(plan.lists, kGeneral, b, general);
        }
    }

    static void add(ClassLists& lists, int kind, int block, uint32_t bits) {
        if (!bits) return;
        for (int i = 0; i < 32; i += 8) lists.add(kind, block + i, bits >> i & 255);
    }

    // The place of a block depends on the bitmaps of those before it: of several chunks these
    // waits overlap.
    template <int Count, bool Sparse>
    static void find_places(int blocks, const uint8_t* readable, Plan* plans) {
        uint32_t at[Count] = {};
        int b = 0;
        for (; b < blocks; ++b) {
            if (Count == 1 && readable - plans[0].data - at[0] < 96) break;
            for (int k = 0; k < Count; ++k) {
                plans[k].at[b] = at[k];
                uint32_t size = plans[k].base[b];
                if constexpr (Sparse) {
                    const auto bitmap = read<uint32_t>(plans[k].data + at[k]);
                    size += (plans[k].each[b] * _mm_popcnt_u32(bitmap) + 7) / 8;
                }
                at[k] += size;
            }
        }
        for (int k = 0; k < Count; ++k) {
            plans[k].planned = b;
            plans[k].at[b] = at[k];
            // A plan that ends early has listed blocks that are not in it.
            if (b < blocks)
                for (int c = 0; c < kClasses; ++c) {
                    int& n = plans[k].lists.count[c];
                    while (n > 0 && plans[k].lists.list[c][n - 1] >= b) --n;
                }
        }
    }

    static uint32_t bits_of(__m256i bytes) {
        return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
    }

    // Eight bytes of group g, in the order of packing, as ints: by way of the highest byte.
    static __m256i widened_bytes(__m256i packed, int g) {
        const __m256i top = _mm256_setr_epi32(0x00FFFFFF, 0x01FFFFFF, 0x02FFFFFF, 0x03FFFFFF,
                                              0x00FFFFFF, 0x01FFFFFF, 0x02FFFFFF, 0x03FFFFFF);
        const __m256i from = _mm256_add_epi32(top, _mm256_set1_epi32(g << 26));
        return _mm256_srai_epi32(_mm256_shuffle_epi8(packed, from), 24);
    }

    static __m128i widen(uint64_t low) { return _mm_cvtsi64_si128(static_cast<int64_t>(low)); }

    // Where a block's values go, and what turns codes into them.
    template <bool Streaming>
    struct Target {
        Value* out;
        __m256 step, u[4];

        [[gnu::always_inline]] Target(Value* to, int64_t position, const Dither& dither,
                                      float size)
            : out(to), step(_mm256_set1_ps(size)) {
            if constexpr (Kind != ENCKE_PLAIN)
                block_offsets<Kind>(position, dither, u);
            else
                (void)position, (void)dither;
        }

        // Eight codes; `keep` has all bits set where there is a value other than zero. In
        // kind plain a code of zero is one.
        [[gnu::always_inline]] void put(int g, __m256i codes,
                                        __m256i keep = _mm256_set1_epi32(-1)) const {
            __m256 y = _mm256_cvtepi32_ps(codes);
            if constexpr (Kind != ENCKE_PLAIN) y = _mm256_sub_ps(y, u[g]);
            store8<T, Kind>(out + 8 * g, _mm256_mul_ps(y, step), keep, Streaming);
        }

        [[gnu::always_inline]] void clear() const {
            for (int g = 0; g < 4; ++g)
                store8<T, ENCKE_PLAIN>(out + 8 * g, _mm256_setzero_ps(), _mm256_setzero_si256(),
                                       Streaming);
        }
    };
};

}  // namespace encke::ENCKE_ISA
