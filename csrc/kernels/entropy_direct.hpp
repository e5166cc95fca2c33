// Chunks of `entropy` whose values are quantised as they are.
#pragma once

#include "kernels/stage.hpp"
#include "kernels/values.hpp"

namespace encke::ENCKE_ISA {

// The encoder's side; see encode_all in entropy.cpp for what one has to have.
template <class T, int Kind>
class DirectSource {
  public:
    using Value = typename T::Value;

    static constexpr bool kPointwise = Kind == ENCKE_POINTWISE;

    DirectSource(const encke_quantiser& q, uint64_t center)
        : seed_(q.seed), center_(center), codes_(q, center) {}

    static constexpr uint8_t kFlags = 0;
    static constexpr int kExtra = kPointwise ? 8 : 0;
    static constexpr int64_t kThin = 1;
    static int64_t lag() { return 0; }
    void write_extra(uint8_t* to) const {
        if constexpr (kPointwise) write<uint64_t>(to, center_);
    }

    // Codes of the values that x has from `first` on, about as they will be.
    void sample(const Value* x, int64_t first, int64_t n, int32_t* codes) const {
        int64_t over[2];
        bool all_zero;
        codes_.survey(x + first, n, over, all_zero);
        codes_.fill(x + first, n, LaneOrder(Kind, seed_, first),
                    static_cast<uint32_t>(first) & ((1u << kPageBits) - 1),
                    n >= kLanes && !kPointwise && over[0] - over[1] > n / 64, codes);
    }

    // Encodes one chunk after the other.
    class Chunks {
      public:
        explicit Chunks(const DirectSource& source) : source_(source) {}
        bool reserve() { return true; }

        // The chunk of n values that starts at `first`, to `start`; sets its mode and returns
        // its end, unless it is verbatim.
        uint8_t* encode(const StageEncoder& encoder, ChunkScratch& scratch, const Value* values,
                        int64_t first, int64_t n, uint8_t* start, ChunkMode& mode) {
            const ValueCodes<T, Kind>& source = source_.codes_;
            const LaneOrder order(Kind, source_.seed_, first);
            uint8_t* end = start + 4;
            mode = kTier0;
            auto encode = [&](auto fill) {
                auto stretch = [&](int64_t group, int64_t groups, int32_t* codes) {
                    int64_t left = n - kLanes * group;
                    fill(values + kLanes * group,
                         left < kLanes * groups ? left : kLanes * groups,
                         static_cast<uint32_t>(kLanes * group), codes);
                };
                end = encoder.encode(scratch, stretch, (n + 7) / 8, mode, start);
            };
            // A chunk that starts with zeros may have nothing else.
            bool some = false;
            for (int64_t i = 0; calm_ && i < n && i < 64; ++i) some |= values[i] != Value{};
            if (calm_ && some) {
                typename ValueCodes<T, Kind>::Most most;
                encode([&](const Value* from, int64_t here, uint32_t j, int32_t* codes) {
                    source.fill_calm(from, here, order, j, codes, most);
                });
                calm_ = source.within(most);
            } else {
                calm_ = false;
            }
            if (calm_) return end;
            int64_t over[2] = {0, 0};
            bool all_zero;
            source.survey(values, n, over, all_zero);
            calm_ = source.kCalm && over[0] == 0;
            if (kPointwise) over[0] = over[1] = 0;
            int tier = over[0] - over[1] > n / 64 ? 1 : 0;
            mode = all_zero             ? kZeroChunk
                   : over[tier] > n / 4 ? kVerbatimChunk
                                        : static_cast<ChunkMode>(tier);
            end = start + 4;
            if (mode != kTier0 && mode != kTier1) return end;
            encode([&](const Value* from, int64_t here, uint32_t j, int32_t* codes) {
                source.fill(from, here, order, j, tier, codes);
            });
            // Verbatim values follow in the order of memory.
            for (int64_t i = 0; (kPointwise || over[tier]) && i < n; ++i) {
                if (!source.verbatim(values[i], tier)) continue;
                write<Value>(end, values[i]);
                end += sizeof(Value);
            }
            return end;
        }

      private:
        const DirectSource& source_;
        // Most chunks have no value beyond tier 0: they are coded as if that were known, and
        // looked at beforehand only if the last one was different.
        bool calm_ = ValueCodes<T, Kind>::kCalm;
    };

  private:
    uint64_t seed_, center_;
    ValueCodes<T, Kind> codes_;
};

// The decoder's: where a chunk's rows go; see RowDecoder.
template <class T, int Kind>
class ValueSink {
  public:
    using Value = typename T::Value;

    explicit ValueSink(const ValueCodes<T, Kind>& target) : target_(target) {}

    bool reserve() { return true; }

    // The chunk of n values that starts at `first`. Verbatim ones are taken from `raw` on.
    void start(int64_t, const LaneOrder& order, const Plan& plan, int tier, int64_t n,
               const uint8_t*& raw, const uint8_t* raw_end, Value* out, bool streaming) {
        order_ = &order;
        plan_ = plan;
        tier_ = tier;
        n_ = n;
        raw_ = &raw;
        raw_end_ = raw_end;
        out_ = out;
        streaming_ = streaming;
    }

    bool codes(int64_t group, int64_t groups, const int32_t* lanes) {
        int64_t left = n_ - kLanes * group;
        return target_.restore(lanes, left < kLanes * groups ? left : kLanes * groups, *order_,
                               static_cast<uint32_t>(kLanes * group), tier_, *raw_, raw_end_,
                               out_ + kLanes * group, streaming_);
    }

#ifdef __AVX2__
    template <int D, bool Raw>
    int64_t rows(int64_t row, int64_t rows, const uint32_t* slots, const uint32_t* raws) const {
        return ValueRows<T, Kind>(target_.step(tier_), order_->dither(), plan_,
                                  out_ + kLanes * (8 / D) * row, streaming_)
            .template take<D, Raw>(row, rows, slots, raws);
    }
#endif

    void finish() {}

  private:
    const ValueCodes<T, Kind>& target_;
    const LaneOrder* order_ = nullptr;
    Plan plan_;
    int tier_ = 0;
    int64_t n_ = 0;
    const uint8_t** raw_ = nullptr;
    const uint8_t* raw_end_ = nullptr;
    Value* out_ = nullptr;
    bool streaming_ = false;
};

}  // namespace encke::ENCKE_ISA
