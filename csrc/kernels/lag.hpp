// Values predicted from decoded ones at a fixed distance before them (docs/format.md,
// section 7).
#pragma once

#include "kernels/numeric.hpp"
#include "parts.hpp"

namespace encke::ENCKE_ISA {

// The sixteen bytes behind the parameters of a payload that predicts.
struct Lag {
    static constexpr int kBytes = 16;
    static constexpr int64_t kShortest = 8, kLongest = 65535;
    static constexpr uint8_t kFlag = 2;  // in parameter byte 7

    int64_t distance = 0;  // 0: nothing is predicted
    int64_t period = 0;    // the first `distance` values of each are not predicted
    int weight = 0;        // of the earlier value, in sixteenths

    template <class Real>
    Real share() const {
        return static_cast<Real>(weight) / Real(16);
    }

    void write_to(uint8_t* p) const {
        std::memset(p, 0, kBytes);
        write<uint32_t>(p, static_cast<uint32_t>(distance));
        write<uint32_t>(p + 4, static_cast<uint32_t>(period));
        p[8] = static_cast<uint8_t>(weight);
    }

    bool read_from(const uint8_t* p) {
        distance = read<uint32_t>(p);
        period = read<uint32_t>(p + 4);
        weight = p[8];
        for (int i = 9; i < kBytes; ++i)
            if (p[i]) return false;
        return distance >= kShortest && distance <= kLongest && period > distance &&
               weight >= 1 && weight <= 16;
    }
};

// The decoded values of one chunk that are still to be predicted from. Values that predict
// nothing stand in it as 0: verbatim ones, and the last of a period.
template <class Real>
class Trail {
  public:
    static constexpr int64_t kMost = 2048;  // values of one call of `along`

    explicit Trail(const Lag& lag) : lag_(lag) {
        const int64_t kept = lag.distance > 1024 ? 2 * lag.distance : 2048;
        capacity_ = lag.distance + kept + kMost;
    }

    // False if there is no memory.
    bool reserve() {
        thread_local Bytes memory;
        memory.clear();
        uint8_t* at = memory.reserve(static_cast<size_t>(capacity_) * sizeof(Real) + 64);
        if (!at) return false;
        values_ = reinterpret_cast<Real*>(at + (64 - reinterpret_cast<uintptr_t>(at) % 64));
        return true;
    }

    // A chunk whose values count from `chunk_start` in the tensor.
    void start(int64_t chunk_start) {
        std::memset(values_, 0, static_cast<size_t>(lag_.distance) * sizeof(Real));
        first_ = -lag_.distance;
        const int64_t past = chunk_start % lag_.period;
        boundary_ = past ? lag_.period - past : lag_.period;
    }

    // Calls f(offset, count, before, after) for stretches of the n values from i on, a multiple
    // of 8, in order: before[k] is the value that predicts number k of a stretch, after[k]
    // where f puts what that one decodes to. Stretches start at whole groups. f may write up to
    // a whole group.
    template <class F>
    void along(int64_t i, int64_t n, F f) {
        if (i + n + 8 - first_ > capacity_) {
            std::memmove(values_, at(i - lag_.distance),
                         static_cast<size_t>(lag_.distance) * sizeof(Real));
            first_ = i - lag_.distance;
        }
        int64_t offset = 0;
        auto take = [&](int64_t count) {
            f(offset, count, at(i + offset - lag_.distance), at(i + offset));
            offset += count;
        };
        for (; boundary_ < i + n; boundary_ += lag_.period) {
            if (const int64_t whole = (boundary_ - i - offset) & ~int64_t{7}) take(whole);
            forget(boundary_ - lag_.distance, i + offset);
            if (const int64_t begun = boundary_ - i - offset) {
                const int64_t here = i + offset;
                take(n - offset < 8 ? n - offset : 8);
                forget(here, here + begun);
            }
        }
        if (offset < n) take(n - offset);
    }

  private:
    const Lag lag_;
    int64_t capacity_, first_ = 0, boundary_ = 0;
    Real* values_ = nullptr;

    Real* at(int64_t i) { return values_ + (i - first_); }
    void forget(int64_t begin, int64_t end) {
        std::memset(at(begin), 0, static_cast<size_t>(end - begin) * sizeof(Real));
    }
};

}  // namespace encke::ENCKE_ISA
