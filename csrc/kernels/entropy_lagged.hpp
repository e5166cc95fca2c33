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
    static constexpr int64_t kThin = 2;  // its samples take twice the time
    int64_t lag() const { return lag_.distance; }
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
                const bool predicts = (v != 0) & (v - v == 0);
                before[k] = predicts ? v + noise.u[k - block] * codes_.step(0) : Value(0);
            }
        }
        // From the end of a period on there is nothing to predict from again.
        for (int64_t next = lag_.period - in_period; next < n; next += lag_.period)
            for (int64_t k = next; k < n && k < next + lag_.distance; ++k) before[k] = 0;
        typename LaggedCodes<T, Kind>::Seen seen;
        codes_.template code<false>(x + first, n, LaneOrder(Kind, seed_, first),
                                    static_cast<uint32_t>(in_chunk), 0, before, after, codes,
                                    seen);
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
            Seen seen;
            calm_ = calm_ && code<true>(order, values, first, n, 0, scratch.codes, seen);
            if (!calm_) {
                code<false>(order, values, first, n, 0, scratch.codes, seen);
                calm_ = kCalm && seen.all;
            }
            if (seen.verbatim > n / 64) {
                Seen fine;
                code<false>(order, values, first, n, 1, scratch.codes, fine);
                tier = fine.verbatim < seen.verbatim;
                if (tier)
                    seen = fine;
                else
                    code<false>(order, values, first, n, 0, scratch.codes, fine);
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
        static constexpr bool kCalm = LaggedCodes<T, Kind>::kCalm;
        // Most chunks have neither zeros nor verbatim values: they are coded as if that were
        // known, unless the last one was different.
        bool calm_ = kCalm;

        template <bool Calm>
        bool code(const LaneOrder& order, const Value* values, int64_t first, int64_t n,
                  int tier, int32_t* codes, Seen& seen) {
            bool good = true;
            seen = Seen();
            trail_.start(first);
            for (int64_t i = 0; good && i < n; i += trail_.kMost) {
                trail_.along(
                    i, n - i < trail_.kMost ? n - i : trail_.kMost,
                    [&](int64_t offset, int64_t count, const Value* before, Value* after) {
                        const int64_t at = i + offset;
                        good &= source_.codes_.template code<Calm>(
                            values + at, count, order, static_cast<uint32_t>(at), tier, before,
                            after, codes + at, seen);
                    });
            }
            return good;
        }
    };

  private:
    uint64_t seed_;
    Lag lag_;
    LaggedCodes<T, Kind> codes_;
};

// The decoder's: where a chunk's rows go; see RowDecoder. Residuals are collected, so that
// predictions are added to many at once.
template <class T, int Kind>
class LaggedSink {
  public:
    using Value = typename T::Value;

    LaggedSink(const LaggedCodes<T, Kind>& target, const Lag& lag)
        : target_(target), trail_(lag) {}
    LaggedSink(const LaggedSink&) = delete;

    bool reserve() { return trail_.reserve(); }

    // The chunk of n values that starts at `first`. Verbatim ones are taken from `raw` on.
    void start(int64_t first, const LaneOrder& order, const Plan& plan, int tier, int64_t n,
               const uint8_t*& raw, const uint8_t* raw_end, Value* out, bool streaming) {
        trail_.start(first);
        order_ = &order;
        plan_ = plan;
        tier_ = tier;
        n_ = n;
        raw_ = &raw;
        raw_end_ = raw_end;
        out_ = out;
        streaming_ = streaming;
        done_ = waiting_ = 0;
    }

    bool codes(int64_t group, int64_t groups, const int32_t* lanes) {
        const int64_t first = kLanes * group, left = n_ - first;
        const int64_t here = left < kLanes * groups ? left : kLanes * groups;
        if (waiting_ + kLanes * groups > Trail<Value>::kMost) finish();
        if (!target_.residuals(lanes, here, *order_, static_cast<uint32_t>(first), tier_,
                               residuals_ + waiting_)) {
            waiting_ += here;
            return true;
        }
        waiting_ += here;
        add(false);
        for (int64_t i = 0; i < here; i += kLanes) {
            int32_t eight[kLanes];
            order_->to_memory(static_cast<uint32_t>(first + i), lanes + i, eight);
            for (int64_t p = 0; p < kLanes && i + p < here; ++p) {
                if (eight[p] != kVerbatim) continue;
                if (raw_end_ - *raw_ < static_cast<ptrdiff_t>(sizeof(Value))) return false;
                out_[first + i + p] = read<Value>(*raw_);
                *raw_ += sizeof(Value);
            }
        }
        return true;
    }

#ifdef __AVX2__
    template <int D, bool Raw>
    int64_t rows(int64_t row, int64_t rows, const uint32_t* slots, const uint32_t* raws) {
        if constexpr (sizeof(Value) != 4) {
            return 0;
        } else {
            constexpr int64_t kStride = kLanes * (8 / D);
            if (waiting_ + kStride * rows > Trail<Value>::kMost) finish();
            const int64_t taken =
                ValueRows<T, Kind, true>(target_.step(tier_), order_->dither(), plan_,
                                         residuals_ + waiting_, false)
                    .template take<D, Raw>(row, rows, slots, raws);
            waiting_ += kStride * taken;
            return taken;
        }
    }
#endif

    // Everything that was handed on becomes values.
    void finish() { add(streaming_); }

  private:
    const LaggedCodes<T, Kind>& target_;
    Trail<Value> trail_;
    const LaneOrder* order_ = nullptr;
    Plan plan_;
    int tier_ = 0;
    int64_t n_ = 0;
    const uint8_t** raw_ = nullptr;
    const uint8_t* raw_end_ = nullptr;
    Value* out_ = nullptr;
    bool streaming_ = false;
    int64_t done_ = 0, waiting_ = 0;  // values, and residuals behind them
    alignas(32) Value residuals_[Trail<Value>::kMost + kLanes];

    void add(bool streaming) {
        trail_.along(done_, waiting_,
                     [&](int64_t offset, int64_t part, const Value* before, Value* after) {
                         target_.add(residuals_ + offset, part, before, after,
                                     out_ + done_ + offset, streaming);
                     });
        done_ += waiting_;
        waiting_ = 0;
    }
};

}  // namespace encke::ENCKE_ISA
