// Encodes chunks of `fixed` with AVX2: blocks of 32 values that compute in float, in tier 0.
// Whatever else a block is, the general path in fixed.cpp takes it.
#pragma once

#include "kernels/fixed_avx2.hpp"

namespace encke::ENCKE_ISA {

// One for each thread: it remembers how wide the codes of the last chunk were.
template <class T, int Kind>
class ChunkEncoder {
  public:
    using Value = typename T::Value;

    explicit ChunkEncoder(const Scale<T>& scale) : scale_(scale) {
        // A code that stays this far below the limit's is within tier 0 whatever its value
        // was: the rounding and an offset move it by less than two.
        double codes = scale.step[0] > 0 ? double(scale.limit[0]) / scale.step[0] - 2 : -1;
        // Up to 14 bits, four codes and the rest of a byte fit in a word of 64.
        certain_ = static_cast<int>(codes > 8191 ? 8191 : codes > -1 ? codes : -1);
    }

    // Writes a chunk to `to` and returns where it ends; may write 64 bytes more.
    // general(block, to) writes one block, moves `to` behind it, and returns its header.
    template <class General>
    uint8_t* encode(const Value* x, int count, int64_t position, const Dither& dither,
                    uint8_t* to, General general) {
        const int blocks = (count + kBlock - 1) / kBlock;
        ahead_ = reinterpret_cast<const char*>(x + count);
        headers_ = to;
        data_ = to + blocks;
        if (certain_ < 127) wide_ = true;
        if (!wide_ && !prepare<false>(x, count / kBlock, position, dither, general))
            wide_ = true;
        if (wide_) {
            prepare<true>(x, count / kBlock, position, dither, general);
            write_all<true>();
            wide_ = certain_ < 127 || most_ > 126;
        } else {
            write_all<false>();
        }
        uint8_t* end = data_ + at_[count / kBlock];
        if (count % kBlock) headers_[blocks - 1] = general(blocks - 1, end);
        return end;
    }

  private:
    // Codes, headers and places of all whole blocks; false if codes are to be narrow and one
    // is not.
    template <bool Wide, class General>
    bool prepare(const Value* x, int blocks, int64_t position, const Dither& dither,
                 General general) {
        quantise_all<Wide>(x, blocks, position, dither);
        for (int b = 0; b < blocks; b += 8) find_largest<Wide>(b);
        lists_.clear();
        most_ = 0;
        __m256i most_seen = _mm256_setzero_si256(), at = _mm256_setzero_si256();
        const __m256i most_allowed = _mm256_set1_epi32(Wide ? certain_ : 126);
        uint8_t* aside = aside_;
        for (int b = 0; b < blocks; b += 8) {
            const uint32_t there = blocks - b < 8 ? (1u << (blocks - b)) - 1 : 255;
            const __m256i most = load32(largest_ + b);
            uint32_t beyond = lanes_of(_mm256_cmpgt_epi32(most, most_allowed)) & there;
            if (!Wide && beyond) return false;
            most_seen = _mm256_max_epi32(most_seen, most);

            const __m256i none = _mm256_setzero_si256(), ones = _mm256_set1_epi32(-1);
            const __m256i mask = load32(masks_ + b);
            const __m256i empty = _mm256_cmpeq_epi32(mask, none);
            const __m256i positive = _mm256_cmpeq_epi32(load32(negative_ + b), none);
            // -1 where a code is negative, to add its sign to the width.
            const __m256i width =
                _mm256_sub_epi32(bit_lengths(most), _mm256_xor_si256(positive, ones));
            const __m256i dense = _mm256_slli_epi32(width, 2);
            __m256i sparse = _mm256_mullo_epi16(width, bit_counts(mask));
            sparse = _mm256_srli_epi32(_mm256_add_epi32(sparse, _mm256_set1_epi32(7)), 3);
            sparse = _mm256_add_epi32(sparse, _mm256_set1_epi32(4));
            const __m256i is_sparse =
                Kind == ENCKE_PLAIN
                    ? _mm256_cmpgt_epi32(dense, sparse)
                    : _mm256_xor_si256(_mm256_or_si256(empty, _mm256_cmpeq_epi32(mask, ones)),
                                       ones);
            __m256i head =
                _mm256_or_si256(width, _mm256_and_si256(is_sparse, _mm256_set1_epi32(64)));
            head = _mm256_or_si256(head, _mm256_and_si256(positive, _mm256_set1_epi32(128)));
            head = _mm256_andnot_si256(empty, head);
            write<uint64_t>(heads_ + b, low_byte_of_each(head));

            __m256i size = _mm256_blendv_epi8(dense, sparse, is_sparse);
            if (beyond) [[unlikely]] {
                alignas(32) uint32_t sizes[8];
                store32(sizes, size);
                for (uint32_t rest = beyond; rest; rest &= rest - 1) {
                    const int i = __builtin_ctz(rest);
                    uint8_t* end = aside;
                    heads_[b + i] = general(b + i, end);
                    sizes[i] = static_cast<uint32_t>(end - aside);
                    aside = end;
                }
                size = load32(sizes);
                lists_.add(kGeneral, b, beyond);
            }
            const __m256i after = running_sum(size);
            store32(at_ + b, _mm256_add_epi32(at, _mm256_sub_epi32(after, size)));
            at = _mm256_add_epi32(at, _mm256_permutevar8x32_epi32(after, _mm256_set1_epi32(7)));

            const uint32_t ours = there & ~beyond, sparsely = lanes_of(is_sparse);
            if constexpr (Wide) {
                const uint32_t wide = lanes_of(_mm256_cmpgt_epi32(width, _mm256_set1_epi32(8)));
                lists_.add(kDenseNarrow, b, ours & ~sparsely & ~wide);
                lists_.add(kDenseWide, b, ours & ~sparsely & wide);
                const uint32_t byte = lanes_of(_mm256_cmpeq_epi32(width, _mm256_set1_epi32(8)));
                lists_.add(kSparseByte, b, ours & sparsely & byte);
                lists_.add(kSparseNarrow, b, ours & sparsely & ~byte & ~wide);
                lists_.add(kSparseWide, b, ours & sparsely & wide);
            } else {
                lists_.add(kDenseNarrow, b, ours & ~sparsely);
                const uint32_t longer =
                    lanes_of(_mm256_cmpgt_epi32(width, _mm256_set1_epi32(4)));
                lists_.add(kSparseShort, b, ours & sparsely & ~longer);
                lists_.add(kSparseNarrow, b, ours & sparsely & longer);
            }
        }
        at_[blocks] = static_cast<uint32_t>(_mm_cvtsi128_si32(_mm256_castsi256_si128(at)));
        alignas(32) uint32_t seen[8];
        store32(seen, most_seen);
        for (uint32_t most : seen) most_ = most > most_ ? most : most_;
        std::memcpy(headers_, heads_, blocks);
        return true;
    }

    // Codes of all blocks, and zeros up to a multiple of eight blocks: narrow ones as bytes,
    // wide ones as words, both in the order of packing. Packing saturates: what is too large,
    // or not finite, shows as the extremes.
    template <bool Wide>
    void quantise_all(const Value* x, int blocks, int64_t position, const Dither& dither) {
        const __m256 inverse = _mm256_set1_ps(scale_.inverse[0]);
        for (int b = 0; b < blocks; ++b) {
            __m256 v[4], u[4];
            for (int g = 0; g < 4; ++g) v[g] = load8<T>(x + kBlock * b + 8 * g);
            if constexpr (Kind != ENCKE_PLAIN)
                block_offsets<Kind>(position + kBlock * b, dither, u);
            __m256i c[4];
            for (int g = 0; g < 4; ++g) {
                __m256 t = _mm256_mul_ps(v[g], inverse);
                if constexpr (Kind != ENCKE_PLAIN) t = _mm256_add_ps(t, u[g]);
                c[g] = _mm256_cvtps_epi32(t);
            }
            __m256i codes[2] = {_mm256_packs_epi32(c[0], c[1]), _mm256_packs_epi32(c[2], c[3])};
            if constexpr (Kind != ENCKE_PLAIN) {
                const __m256 zero = _mm256_setzero_ps();
                __m256i z[4], keep[2];
                for (int g = 0; g < 4; ++g)
                    z[g] = _mm256_castps_si256(_mm256_cmp_ps(v[g], zero, _CMP_NEQ_UQ));
                for (int h = 0; h < 2; ++h) {
                    keep[h] = _mm256_packs_epi32(z[2 * h], z[2 * h + 1]);
                    codes[h] = _mm256_and_si256(codes[h], keep[h]);
                }
                masks_[b] = bits_of(packed(keep));
            }
            if constexpr (Wide) {
                store32(codes_[2 * b], codes[0]);
                store32(codes_[2 * b + 1], codes[1]);
            } else {
                store32(codes_[b], packed(codes));
            }
        }
        for (; blocks % 8; ++blocks) {
            masks_[blocks] = 0;
            for (int h = 0; h <= Wide; ++h)
                store32(codes_[(1 + Wide) * blocks + h], _mm256_setzero_si256());
        }
    }

    // Notes the largest code of each of eight blocks, negative ones as their complement, which
    // codes are negative and, in kind plain, which are not zero.
    template <bool Wide>
    void find_largest(int b) {
        const __m256i zero = _mm256_setzero_si256();
        __m256i m[8];
        for (int i = 0; i < 8; ++i) {
            if constexpr (Wide) {
                const __m256i c[2] = {load32(codes_[2 * (b + i)]),
                                      load32(codes_[2 * (b + i) + 1])};
                const __m256i s[2] = {_mm256_srai_epi16(c[0], 15), _mm256_srai_epi16(c[1], 15)};
                m[i] = _mm256_max_epi16(_mm256_xor_si256(c[0], s[0]),
                                        _mm256_xor_si256(c[1], s[1]));
                negative_[b + i] = bits_of(_mm256_or_si256(s[0], s[1]));
                if constexpr (Kind == ENCKE_PLAIN) {
                    const __m256i z[2] = {_mm256_cmpeq_epi16(c[0], zero),
                                          _mm256_cmpeq_epi16(c[1], zero)};
                    masks_[b + i] = ~bits_of(packed(z));
                }
            } else {
                const __m256i c = load32(codes_[b + i]);
                m[i] = _mm256_xor_si256(c, _mm256_cmpgt_epi8(zero, c));
                negative_[b + i] = bits_of(c);
                if constexpr (Kind == ENCKE_PLAIN)
                    masks_[b + i] = ~bits_of(_mm256_cmpeq_epi8(c, zero));
            }
        }
        auto larger = [](__m256i a, __m256i c) __attribute__((always_inline)) {
            return Wide ? _mm256_max_epi16(a, c) : _mm256_max_epu8(a, c);
        };
        for (int i = 0; i < 4; ++i)
            m[i] = larger(_mm256_unpacklo_epi64(m[2 * i], m[2 * i + 1]),
                          _mm256_unpackhi_epi64(m[2 * i], m[2 * i + 1]));
        auto fours = [&](__m256i a, __m256i c) __attribute__((always_inline)) {
            const __m256 fa = _mm256_castsi256_ps(a), fc = _mm256_castsi256_ps(c);
            return larger(_mm256_castps_si256(_mm256_shuffle_ps(fa, fc, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(fa, fc, 0xDD)));
        };
        const __m256i low = fours(m[0], m[1]), high = fours(m[2], m[3]);
        __m256i all = larger(_mm256_permute2x128_si256(low, high, 0x20),
                             _mm256_permute2x128_si256(low, high, 0x31));
        all = larger(all, _mm256_srli_epi32(all, 16));
        if constexpr (!Wide) all = larger(all, _mm256_srli_epi32(all, 8));
        store32(largest_ + b, _mm256_and_si256(all, _mm256_set1_epi32(Wide ? 0xFFFF : 255)));
    }

    // Each loop may write beyond its blocks, so the ones after the first put back what they
    // found behind each.
    template <bool Wide>
    void write_all() {
        each(kDenseNarrow, [&](int b, uint8_t* to) {
            store32(to, packed_to_planes(Wide ? low_bytes(b) : load32(codes_[b])));
        });
        if constexpr (Wide) {
            each(kDenseWide, [&](int b, uint8_t* to) {
                uint8_t* end = data_ + at_[b + 1];
                const __m256i behind = load32(end);
                store32(to, packed_to_planes(low_bytes(b)));
                store32(to + 32, packed_to_planes(high_bytes(b)));
                store32(end, behind);
            });
        }
        if constexpr (!Wide) {
            read_behind(kSparseShort);
            each(kSparseShort, [&](int b, uint8_t* to) { write_short(b, to); });
        }
        read_behind(kSparseNarrow);
        each(kSparseNarrow, [&](int b, uint8_t* to) {
            const int width = headers_[b] & 31;
            const uint32_t mask = in_order(masks_[b]);
            const __m256i used = _mm256_set1_epi8(static_cast<char>((1 << width) - 1));
            alignas(32) uint64_t words[4], masks[4];
            store32(masks, _mm256_and_si256(spread_bits(mask), used));
            store32(words, in_order(Wide ? low_bytes(b) : load32(codes_[b])));
            write_sparse(b, mask, words, masks, 4, to);
        });
        if constexpr (Wide) {
            read_behind(kSparseByte);
            each(kSparseByte, [&](int b, uint8_t* to) { write_byte_codes(b, to); });
            read_behind(kSparseWide);
            each(kSparseWide, [&](int b, uint8_t* to) {
                const int width = headers_[b] & 31;
                const uint32_t mask = in_order(masks_[b]);
                const __m256i used = _mm256_set1_epi16(static_cast<short>((1 << width) - 1));
                const __m256i whole = spread_bits(mask);
                alignas(32) uint64_t words[8], masks[8];
                for (int h = 0; h < 2; ++h) {
                    __m128i half =
                        h ? _mm256_extracti128_si256(whole, 1) : _mm256_castsi256_si128(whole);
                    store32(masks + 4 * h, _mm256_and_si256(_mm256_cvtepi8_epi16(half), used));
                    store32(words + 4 * h,
                            _mm256_permute4x64_epi64(load32(codes_[2 * b + h]), 0xD8));
                }
                write_sparse(b, mask, words, masks, 8, to);
            });
        }
        const uint8_t* aside = aside_;
        each(kGeneral, [&](int b, uint8_t* to) {
            const uint32_t bytes = at_[b + 1] - at_[b];
            std::memcpy(to, aside, bytes);
            aside += bytes;
        });
    }

    // Done before any block of a list is written: a read that a store in flight covers in part
    // waits for it.
    void read_behind(Class kind) {
        for (int i = 0; i < lists_.count[kind]; ++i) {
            const int b = lists_.list[kind][i];
            _mm_store_si128(behind_ + b, load16(data_ + at_[b + 1]));
        }
    }

    // Calls f for each block of a list, and fetches the values of as many blocks of the next
    // chunk: while blocks are written, none are read.
    template <class F>
    [[gnu::always_inline]] void each(Class kind, F f) {
        for (int i = 0; i < lists_.count[kind]; ++i) {
            const int b = lists_.list[kind][i];
            _mm_prefetch(ahead_, _MM_HINT_T1);
            _mm_prefetch(ahead_ + 64, _MM_HINT_T1);
            ahead_ += 128;
            f(b, data_ + at_[b]);
        }
    }

    // The bits of `words` that are set in `masks`, one after the other, behind the bitmap: one
    // pext drops the zeros and the unused bits of the other codes. At most 57 bits a word, or
    // a multiple of eight.
    [[gnu::always_inline]] void write_sparse(int b, uint32_t bitmap, const uint64_t* words,
                                             const uint64_t* masks, int count, uint8_t* to) {
        write<uint32_t>(to, bitmap);
        to += 4;
        uint64_t pending = 0;
        uint32_t filled = 0;
        for (int g = 0; g < count; ++g) {
            pending |= _pext_u64(words[g], masks[g]) << filled;
            write<uint64_t>(to, pending);
            filled += static_cast<uint32_t>(_mm_popcnt_u64(masks[g]));
            const uint32_t bytes = filled >> 3;
            to += bytes;
            pending = pending >> 4 * bytes >> 4 * bytes;  // by at most 64, in two steps
            filled &= 7;
        }
        put_behind(b);
    }

    // The same for codes of at most four bits: sixteen of them fit in a word.
    [[gnu::always_inline]] void write_short(int b, uint8_t* to) {
        const uint64_t used = (1u << (headers_[b] & 31)) - 1;
        const uint32_t bitmap = in_order(masks_[b]);
        const uint64_t low_mask = _pdep_u64(bitmap & 0xFFFF, 0x1111111111111111u) * used;
        const uint64_t high_mask = _pdep_u64(bitmap >> 16, 0x1111111111111111u) * used;
        // Pairs of codes to bytes, then these to the order of the values.
        const __m256i pairs =
            _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1, 0, 2, 4,
                             6, 8, 10, 12, 14, -1, -1, -1, -1, -1, -1, -1, -1);
        __m256i v = _mm256_and_si256(load32(codes_[b]), _mm256_set1_epi8(15));
        v = _mm256_shuffle_epi8(_mm256_or_si256(v, _mm256_srli_epi16(v, 4)), pairs);
        const __m128i codes =
            _mm_unpacklo_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        const uint64_t low =
            _pext_u64(static_cast<uint64_t>(_mm_cvtsi128_si64(codes)), low_mask);
        const uint64_t high =
            _pext_u64(static_cast<uint64_t>(_mm_extract_epi64(codes, 1)), high_mask);
        const uint32_t bits = static_cast<uint32_t>(_mm_popcnt_u64(low_mask));
        const uint32_t bytes = bits / 8, shift = bits % 8;
        write<uint32_t>(to, bitmap);
        write<uint64_t>(to + 4, low);
        to += 4 + bytes;
        write<uint64_t>(to, low >> 4 * bytes >> 4 * bytes | high << shift);
        to[8] = static_cast<uint8_t>(high >> 1 >> (63 - shift));
        put_behind(b);
    }

    // The same for wide codes of eight bits: none of them is split.
    [[gnu::always_inline]] void write_byte_codes(int b, uint8_t* to) {
        const uint32_t bitmap = in_order(masks_[b]);
        alignas(32) uint64_t words[4], masks[4];
        store32(masks, spread_bits(bitmap));
        store32(words, in_order(low_bytes(b)));
        write<uint32_t>(to, bitmap);
        for (uint32_t g = 0; g < 4; ++g) {
            const auto before = static_cast<uint32_t>(_mm_popcnt_u32(_bzhi_u32(bitmap, 8 * g)));
            write<uint64_t>(to + 4 + before, _pext_u64(words[g], masks[g]));
        }
        put_behind(b);
    }

    void put_behind(int b) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(data_ + at_[b + 1]), behind_[b]);
    }
    static __m128i load16(const uint8_t* from) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    }

    // From the order of packing to that of the values: bytes, and bits.
    static __m256i in_order(__m256i bytes) {
        return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    static uint32_t in_order(uint32_t bits) {
        return _pdep_u32(bits, 0x0F0F0F0F) | _pdep_u32(bits >> 16, 0xF0F0F0F0);
    }
    static __m256i packed(const __m256i* words) {
        return _mm256_packs_epi16(words[0], words[1]);
    }
    static uint32_t bits_of(__m256i bytes) {
        return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
    }

    __m256i low_bytes(int b) const {
        const __m256i low = _mm256_set1_epi16(255);
        return _mm256_packus_epi16(_mm256_and_si256(load32(codes_[2 * b]), low),
                                   _mm256_and_si256(load32(codes_[2 * b + 1]), low));
    }
    __m256i high_bytes(int b) const {
        return _mm256_packus_epi16(_mm256_srli_epi16(load32(codes_[2 * b]), 8),
                                   _mm256_srli_epi16(load32(codes_[2 * b + 1]), 8));
    }

    // Of eight numbers below 2^24: how many bits each has.
    static __m256i bit_lengths(__m256i v) {
        const __m256i exponent =
            _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(v)), 23);
        return _mm256_max_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(126)),
                                _mm256_setzero_si256());
    }

    // How many bits of each of eight numbers are set.
    static __m256i bit_counts(__m256i v) {
        const __m256i counts = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,
                                                0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
        const __m256i nibble = _mm256_set1_epi8(15);
        __m256i low = _mm256_shuffle_epi8(counts, _mm256_and_si256(v, nibble));
        __m256i high =
            _mm256_shuffle_epi8(counts, _mm256_and_si256(_mm256_srli_epi32(v, 4), nibble));
        __m256i pairs = _mm256_maddubs_epi16(_mm256_add_epi8(low, high), _mm256_set1_epi8(1));
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }

    // The sum of each number and all before it.
    static __m256i running_sum(__m256i v) {
        v = _mm256_add_epi32(v, _mm256_slli_si256(v, 4));
        v = _mm256_add_epi32(v, _mm256_slli_si256(v, 8));
        __m256i low = _mm256_permute2x128_si256(v, v, 0x08);  // nothing, then the low lane
        return _mm256_add_epi32(v, _mm256_shuffle_epi32(low, 0xFF));
    }

    static uint32_t lanes_of(__m256i v) {
        return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(v)));
    }

    static uint64_t low_byte_of_each(__m256i v) {
        __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_packus_epi16(words, words)));
    }

    const Scale<T>& scale_;
    int certain_;
    bool wide_ = false;
    uint32_t most_ = 0;
    uint8_t *headers_, *data_;
    ClassLists lists_;
    const char* ahead_;
    uint8_t heads_[kBlocks];
    alignas(32) uint32_t masks_[kBlocks], negative_[kBlocks], largest_[kBlocks];
    alignas(32) uint32_t at_[kBlocks + 8];
    alignas(32) uint8_t codes_[2 * kBlocks][32];
    __m128i behind_[kBlocks];
    uint8_t aside_[kBlocks * (4 * kBlock + 8)];
};

}  // namespace encke::ENCKE_ISA
