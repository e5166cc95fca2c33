// Chunks of `entropy` whose values are predicted from decoded ones.
#pragma once

#include "kernels/lagged.hpp"
#include "kernels/stage.hpp"
#include "kernels/values.hpp"

namespace encke::ENCKE_ISA {

// The encoder's side; see encode_all in entropy.cpp for what one has to have.
template <class T, int Kind>
class LaggedSource {
  public:
    using Value = typename T::Value;

    LaggedSource(const encke_quantiser& q, const Lag& lag)
        : seed_(q.seed), lag_(lag), codes_(q, lag) {}

    static constexpr uint8_t kFlags = Lag::kFlag;
    static constexpr int kExtra = Lag::kBytes;
    void write_extra(uint8_t* to) const { lag_.write_to(to); }

    // Codes of the n values, at most kMost, that x has from `first` on, about as they will be:
    // what decoding does to the values that predict them is imitated by noise.
    void sample(const Value* x, int64_t first, int64_t n, int32_t* codes) const {
        constexpr int64_t kMost = 128;
        static_assert(kMost % kBlock == 0);
        const int64_t in_chunk = first % kStageChunk, in_period = first % lag_.period;
        Value before[kMost] = {}, after[kMost];
        int64_t begin = lag_.distance - in_chunk;
        if (lag_.distance - in_period > begin) begin = lag_.distance - in_period;
        for (int64_t block = 0; block < n; block += kBlock) {
            const Offsets<T, ENCKE_DITHER> noise(~seed_, in_chunk + block);
            const int64_t last = n < block + kBlock ? n : block + kBlock;
            for (int64_t k = begin > block ? begin : block; k < last; ++k) {
                const Value v = x[first + k - lag_.distance];
                const bool predicts = v != 0 && v - v == 0;
                before[k] = predicts ? v + noise.u[k - block] * codes_.step(0) : Value(0);
            }
        }
        // From the end of a period on there is nothing to predict from again.
        for (int64_t next = lag_.period - in_period; next < n; next += lag_.period)
            for (int64_t k = next; k < n && k < next + lag_.distance; ++k) before[k] = 0;
        typename LaggedCodes<T, Kind>::Seen seen;
        codes_.code(x + first, n, LaneOrder(Kind, seed_, first),
                    static_cast<uint32_t>(in_chunk), 0, before, after, codes, seen);
    }

    // Encodes one chunk after the other.
    class Chunks {
      public:
        explicit Chunks(const LaggedSource& source) : source_(source), trail_(source.lag_) {}
        bool reserve() { return trail_.reserve(); }

        // The chunk of n values that starts at `first`, to `start`; sets its mode and returns
        // its end, unless it is verbatim.
        uint8_t* encode(const StageEncoder& encoder, ChunkScratch& scratch, const Value* values,
                        int64_t first, int64_t n, uint8_t* start, ChunkMode& mode) {
            const LaneOrder order(Kind, source_.seed_, first);
            int tier = 0;
            Seen seen = code(order, values, first, n, tier, scratch.codes);
            if (seen.verbatim > n / 64) {
                const Seen fine = code(order, values, first, n, 1, scratch.codes);
                tier = fine.verbatim < seen.verbatim;
                seen = tier ? fine : code(order, values, first, n, 0, scratch.codes);
            }
            mode = !seen.some              ? kZeroChunk
                   : seen.verbatim > n / 4 ? kVerbatimChunk
                                           : static_cast<ChunkMode>(tier);
            if (mode != kTier0 && mode != kTier1) return start + 4;
            uint8_t* end = encoder.encode(scratch, (n + 7) / 8, mode, start);
            // Verbatim values follow in the order of memory.
            for (int64_t i = 0; seen.verbatim && i < n; i += kLanes) {
                int32_t group[kLanes];
                order.to_memory(static_cast<uint32_t>(i), scratch.codes + i, group);
                for (int p = 0; p < kLanes; ++p) {
                    if (group[p] != kVerbatim) continue;
                    write<Value>(end, values[i + p]);
                    end += sizeof(Value);
                }
            }
            return end;
        }

      private:
        using Seen = typename LaggedCodes<T, Kind>::Seen;

        const LaggedSource& source_;
        Trail<Value> trail_;

        Seen code(const LaneOrder& order, const Value* values, int64_t first, int64_t n,
                  int tier, int32_t* codes) {
            Seen seen;
            trail_.start(first);
            for (int64_t i = 0; i < n; i += trail_.kMost) {
                trail_.along(
                    i, n - i < trail_.kMost ? n - i : trail_.kMost,
                    [&](int64_t offset, int64_t count, const Value* before, Value* after) {
                        const int64_t at = i + offset;
                        source_.codes_.code(values + at, count, order,
                                            static_cast<uint32_t>(at), tier, before, after,
                                            codes + at, seen);
                    });
            }
            return seen;
        }
    };

  private:
    uint64_t seed_;
    Lag lag_;
    LaggedCodes<T, Kind> codes_;
};

// The decoder's: where a chunk's rows go; see RowDecoder.
template <class T, int Kind>
struct LaggedSink {
    using Value = typename T::Value;

    const LaggedCodes<T, Kind>& target;
    Trail<Value>& trail;
    const LaneOrder& order;
    const Plan& plan;
    int tier;
    int64_t n;            // values in the chunk
    const uint8_t*& raw;  // the next verbatim one
    const uint8_t* raw_end;
    Value* out;
    bool streaming;

    bool codes(int64_t group, int64_t groups, const int32_t* lanes) {
        alignas(32) Value residuals[4 * kLanes];
        const int64_t first = kLanes * group, left = n - first;
        const int64_t here = left < kLanes * groups ? left : kLanes * groups;
        const bool verbatim =
            target.residuals(lanes, here, order, static_cast<uint32_t>(first), tier, residuals);
        add(first, here, residuals, streaming && !verbatim);
        for (int64_t i = 0; verbatim && i < here; i += kLanes) {
            int32_t eight[kLanes];
            order.to_memory(static_cast<uint32_t>(first + i), lanes + i, eight);
            for (int64_t p = 0; p < kLanes && i + p < here; ++p) {
                if (eight[p] != kVerbatim) continue;
                if (raw_end - raw < static_cast<ptrdiff_t>(sizeof(Value))) return false;
                out[first + i + p] = read<Value>(raw);
                raw += sizeof(Value);
            }
        }
        return true;
    }

#ifdef __AVX2__
    template <int D, bool Raw>
    int64_t rows(int64_t row, int64_t rows, const uint32_t* slots, const uint32_t* raws) const {
        if constexpr (sizeof(Value) != 4) {
            return 0;
        } else {
            constexpr int64_t kStride = kLanes * (8 / D);
            alignas(32) Value residuals[Trail<Value>::kMost];
            const int64_t taken = ValueRows<T, Kind, true>(target.step(tier), order.dither(),
                                                           plan, residuals, false)
                                      .template take<D, Raw>(row, rows, slots, raws);
            add(kStride * row, kStride * taken, residuals, streaming);
            return taken;
        }
    }
#endif

  private:
    void add(int64_t first, int64_t count, const Value* residuals, bool past_caches) const {
        trail.along(first, count,
                    [&](int64_t offset, int64_t part, const Value* before, Value* after) {
                        target.add(residuals + offset, part, before, after,
                                   out + first + offset, past_caches);
                    });
    }
};

// Sinks for one chunk after the other.
template <class T, int Kind>
class LaggedSinks {
  public:
    LaggedSinks(const LaggedCodes<T, Kind>& target, const Lag& lag)
        : target_(target), trail_(lag) {}

    bool reserve() { return trail_.reserve(); }
    LaggedSink<T, Kind> sink(int64_t first, const LaneOrder& order, const Plan& plan, int tier,
                             int64_t n, const uint8_t*& raw, const uint8_t* raw_end,
                             typename T::Value* out, bool streaming) {
        trail_.start(first);
        return {target_, trail_, order, plan, tier, n, raw, raw_end, out, streaming};
    }

  private:
    const LaggedCodes<T, Kind>& target_;
    Trail<typename T::Value> trail_;
};

}  // namespace encke::ENCKE_ISA
