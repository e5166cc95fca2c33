// Whether values are worth predicting from earlier ones, and from which: from a few of them.
#pragma once

#include <cmath>

#include "kernels/lag.hpp"
#include "kernels/stage.hpp"

namespace encke::ENCKE_ISA {

template <class Real>
class LagChoice {
  public:
    // Fewer bytes are not worth looking at.
    static constexpr int64_t kLeastBytes = 32768;
    // Bits a value that a prediction has to save.
    static constexpr double kWorth = 0.1;

    LagChoice(const Real* x, int64_t count, const encke_quantiser& q)
        : x_(x),
          count_(count),
          noise_(q.step[0] * q.step[0] / 12),
          largest_(q.limit[1]),
          heaviest_(q.kind == ENCKE_HALF ? 15 : 16) {}

    // The best among the strides of the dimensions, of which the first varies slowest; none if
    // no prediction is worth its time.
    // Sets `most` to the bits a value that it saves.
    Lag choose(const int64_t* shape, int ndim, double& most) const {
        Lag best;
        most = kWorth;
        if (count_ * static_cast<int64_t>(sizeof(Real)) < kLeastBytes || noise_ <= 0)
            return best;
        int64_t stride = 1;
        for (int d = ndim - 1; d >= 0 && stride <= Lag::kLongest / 2; --d) {
            const int64_t extent = shape[d];
            if (stride >= Lag::kShortest && extent > 1 && stride * extent <= UINT32_MAX) {
                Lag candidate;
                candidate.distance = stride;
                candidate.period = stride * extent;
                const double gain = weigh(candidate);
                if (gain > most) {
                    most = gain;
                    best = candidate;
                }
            }
            if (extent > Lag::kLongest) break;
            stride *= extent;
        }
        return best;
    }

  private:
    static constexpr int kRun = 16, kAtOnce = 8;

    // Sums over pairs of a value that is not zero and the one that would predict it. Eight of
    // each, so that they add up in the same order on every instruction set.
    struct Sums {
        double n[kAtOnce] = {}, x[kAtOnce] = {}, y[kAtOnce] = {}, xx[kAtOnce] = {},
               xy[kAtOnce] = {}, yy[kAtOnce] = {};
    };

    const Real* x_;
    int64_t count_;
    double noise_;    // variance of what decoding adds
    double largest_;  // magnitude that is coded at all
    int heaviest_;    // in kind half the sum of two odd halves of a step may be zero

    // Bits a value that the candidate would save; sets its weight.
    double weigh(Lag& candidate) const {
        const int64_t runs = number_of_runs();
        int64_t taken = 0;
        Sums sums;
        for (int64_t r = 0; r < runs; ++r) {
            const int64_t first = start_of(r, runs);
            if (first % kStageChunk < candidate.distance ||
                first % candidate.period < candidate.distance)
                continue;
            ++taken;
            add(x_ + first, x_ + first - candidate.distance, sums);
        }
        double n = total(sums.n);
        if (n < 64) return 0;
        const double x = total(sums.x) / n, y = total(sums.y) / n;
        const double xx = total(sums.xx) / n - x * x, yy = total(sums.yy) / n - y * y;
        const double xy = total(sums.xy) / n - x * y;
        const double wanted = std::floor(16 * xy / (yy + noise_) + 0.5);
        if (!(wanted >= 1)) return 0;
        candidate.weight = wanted < heaviest_ ? static_cast<int>(wanted) : heaviest_;
        const double a = candidate.weight / 16.0;
        const double left = xx - 2 * a * xy + a * a * (yy + noise_);
        const double share = n / static_cast<double>(runs * kRun);
        return share * 0.5 * std::log2((xx + noise_) / ((left > 0 ? left : 0) + noise_));
    }

    static double total(const double (&lanes)[kAtOnce]) {
        double sum = 0;
        for (double lane : lanes) sum += lane;
        return sum;
    }

    void add(const Real* x, const Real* y, Sums& sums) const {
        for (int first = 0; first < kRun; first += kAtOnce) {
            for (int l = 0; l < kAtOnce; ++l) {
                double a = static_cast<double>(x[first + l]);
                double b = static_cast<double>(y[first + l]);
                const bool counts =
                    a != 0 && std::fabs(a) <= largest_ && std::fabs(b) <= largest_;
                a = counts ? a : 0;
                b = counts ? b : 0;
                sums.n[l] += counts ? 1.0 : 0.0;
                sums.x[l] += a;
                sums.y[l] += b;
                sums.xx[l] += a * a;
                sums.xy[l] += a * b;
                sums.yy[l] += b * b;
            }
        }
    }

    int64_t number_of_runs() const {
        const int64_t runs = count_ / (64 * kRun);
        return runs < 16 ? 16 : runs > 256 ? 256 : runs;
    }

    // Evenly spaced, each moved at random within its stretch.
    int64_t start_of(int64_t r, int64_t runs) const {
        const int64_t room = count_ / runs;
        uint64_t h = (static_cast<uint64_t>(r) + 1) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
        const int64_t moved =
            static_cast<int64_t>((h >> 33) % static_cast<uint64_t>(room - kRun + 1));
        return room * r + moved;
    }
};

}  // namespace encke::ENCKE_ISA
