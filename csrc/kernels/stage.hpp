// The entropy stage around the coder: tables, chunks and their lists (docs/format.md,
// section 6). Where codes come from and go to is the caller's.
#pragma once

#include "kernels/chunks.hpp"
#include "kernels/planning.hpp"

namespace encke::ENCKE_ISA {

constexpr int64_t kStageChunk = 65536;

enum ChunkMode : uint8_t { kTier0 = 0, kTier1 = 1, kVerbatimChunk = 2, kZeroChunk = 3 };

// Room for one chunk's words and exceptions; one for each thread, kept between calls.
class ChunkScratch {
  public:
    static constexpr size_t kExceptions = kStageChunk + 64;
    static constexpr size_t kWords = 2 * kStageChunk + 64;

    // Null if there is no memory.
    static ChunkScratch* get() {
        thread_local Bytes memory;
        memory.clear();
        uint8_t* at = memory.reserve(sizeof(ChunkScratch) + 64);
        if (!at) return nullptr;
        at += 64 - reinterpret_cast<uintptr_t>(at) % 64;
        return reinterpret_cast<ChunkScratch*>(at);
    }

    alignas(64) uint16_t words[kWords];
    uint32_t exceptions[kExceptions];
    alignas(64) int32_t codes[kStageChunk + 64];  // of a chunk, for callers that need them all
};

// Everything the encoder of one tensor shares among its chunks.
class StageEncoder {
  public:
    explicit StageEncoder(const Coding& coding) : coding_(coding) {
        for (int i = 0; i < coding.plan.tables; ++i) {
            tables_[i].build(coding.tables[i], coding.plan);
            raw_ |= coding.tables[i].raw_bits();
        }
    }

    const Plan& plan() const { return coding_.plan; }

    size_t table_bytes() const { return coding_.plan.tables * (2 + 3 * 256); }
    uint8_t* write_tables(uint8_t* to) const {
        for (int i = 0; i < coding_.plan.tables; ++i) to = coding_.tables[i].write_to(to);
        return to;
    }

    // Writes a chunk of `groups` groups of codes; verbatim values are left to the caller.
    // source(group, groups, codes) gives a stretch of them in lane order, what is after the
    // end as kAfter; it is called from the last stretch to the first. The length is known
    // beforehand only as a bound: most(groups).
    static size_t most(int64_t groups) { return 12 + 4 * kMostStates + groups * 8 * (4 + 4); }

    template <class Source>
    uint8_t* encode(ChunkScratch& scratch, const Source& source, int64_t groups, ChunkMode mode,
                    uint8_t* to) const {
        const int64_t k = coding_.plan.per_symbol();
        alignas(32) int32_t codes[4 * RowEncoder::kStretch * kLanes];
        auto rows = [&](int64_t first, int64_t last) {
            const int64_t have = groups < last * k ? groups - first * k : (last - first) * k;
            source(first * k, have, codes);
            for (int64_t i = have * kLanes; i < (last - first) * k * kLanes; ++i)
                codes[i] = kAfter;
            return static_cast<const int32_t*>(codes);
        };
        return encode_rows(scratch, rows, groups, mode, to);
    }

    // The same for the codes that are in `scratch` already.
    uint8_t* encode(ChunkScratch& scratch, int64_t groups, ChunkMode mode, uint8_t* to) const {
        const int64_t k = coding_.plan.per_symbol();
        for (int64_t i = groups; i % k; ++i)
            for (int l = 0; l < kLanes; ++l) scratch.codes[kLanes * i + l] = kAfter;
        auto rows = [&](int64_t first, int64_t) {
            return static_cast<const int32_t*>(scratch.codes + first * k * kLanes);
        };
        return encode_rows(scratch, rows, groups, mode, to);
    }

  private:
    const Coding& coding_;
    EncoderTable tables_[8];
    bool raw_ = false;

    template <class Rows>
    uint8_t* encode_rows(ChunkScratch& scratch, const Rows& rows, int64_t groups,
                         ChunkMode mode, uint8_t* to) const {
        const Plan& plan = coding_.plan;
        const int64_t k = plan.per_symbol(), stretch = RowEncoder::kStretch;
        uint16_t* words_end = scratch.words + ChunkScratch::kWords;
        uint32_t* exceptions_end = scratch.exceptions + ChunkScratch::kExceptions;
        RowEncoder rows_encoder(plan, tables_, raw_, words_end, exceptions_end);
        for (int64_t last = (groups + k - 1) / k; last > 0;) {
            const int64_t first = (last - 1) / stretch * stretch;
            rows_encoder.encode(rows(first, last), last - first);
            last = first;
        }
        size_t words = static_cast<size_t>(words_end - rows_encoder.words);
        size_t exceptions = static_cast<size_t>(exceptions_end - rows_encoder.exceptions);
        write<uint32_t>(to, mode);
        write<uint32_t>(to + 4, static_cast<uint32_t>(words));
        write<uint32_t>(to + 8, static_cast<uint32_t>(exceptions));
        to += 12;
        size_t states = 4 * kLanes * static_cast<size_t>(plan.rows());
        std::memcpy(to, rows_encoder.states, states);
        to += states;
        std::memcpy(to, rows_encoder.words, 2 * words);
        to += 2 * words;
        std::memcpy(to, rows_encoder.exceptions, 4 * exceptions);
        return to + 4 * exceptions;
    }
};

// The decoder's tables, read and checked once for a tensor.
class StageDecoder {
  public:
    // `from` is moved behind the tables.
    bool read_tables(const Plan& plan, const uint8_t*& from, const uint8_t* end) {
        plan_ = plan;
        uint8_t* memory = slots_.reserve(4 * (size_t(plan.tables) << plan.precision));
        if (!memory) return false;
        uint32_t* slots = reinterpret_cast<uint32_t*>(memory);
        for (int i = 0; i < plan.tables; ++i) {
            Frequencies table;
            if (!table.read_from(from, end, plan.precision)) return false;
            if (plan.digit_bits == 8) {
                if (table.f[254] && !plan.zero) return false;
                for (int s = 239; s < 254; ++s)
                    if (table.f[s]) return false;
            }
            raw_ |= table.raw_bits();
            build_slots(table, slots + (size_t(i) << plan.precision));
        }
        return true;
    }

    // Decodes a coded chunk (without its mode word) of n codes; `sink` and `after` as in
    // RowDecoder. `rest` is set to what follows the exceptions, before the sink is called.
    template <class Sink>
    bool decode(const uint8_t* from, const uint8_t* end, int64_t n, uint32_t after, Sink& sink,
                const uint8_t*& rest) const {
        int states = kLanes * plan_.rows();
        if (end - from < 8 + 4 * states) return false;
        uint64_t words = read<uint32_t>(from), exceptions = read<uint32_t>(from + 4);
        const uint8_t* first_state = from + 8;
        const uint8_t* first_word = first_state + 4 * states;
        if (2 * words + 4 * exceptions > static_cast<uint64_t>(end - first_word)) return false;
        const uint8_t* first_exception = first_word + 2 * words;
        rest = first_exception + 4 * exceptions;
        RowDecoder decoder(plan_, reinterpret_cast<const uint32_t*>(slots_.data()), raw_,
                           first_word, first_exception, rest, end);
        for (int i = 0; i < states; ++i) {
            decoder.states[i] = read<uint32_t>(first_state + 4 * i);
            if (decoder.states[i] < kLowest || decoder.states[i] >> 31) return false;
        }
        return decoder.decode((n + kLanes - 1) / kLanes, after, sink) && decoder.finished();
    }

    const Plan& plan() const { return plan_; }

  private:
    Plan plan_;
    Bytes slots_;
    bool raw_ = false;
};

}  // namespace encke::ENCKE_ISA
