// How much memory a program has needed lately, without knowing what a training step is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace encke::memory {

// A point in time, or a span: operations (allocations and frees), and seconds.
struct Moment {
    uint64_t operations = 0;
    double seconds = 0;
};

// The highest number of live pages in this window and the one before. A window ends after a
// number of operations or after some seconds, whichever comes first. It starts short, so that
// memory that a program no longer needs is given back soon. If a peak comes back after its
// memory was given back, windows become as long as the time between the two: the pages of a
// pattern that repeats (a training step) are given back once and then kept.
class RecentPeak {
  public:
    static constexpr Moment kShortest{128, 1.0};
    static constexpr Moment kLongest{1 << 16, 60.0};

    size_t pages() const { return std::max(before_.pages, now_.pages); }
    Moment window() const { return window_; }

    // To be called for each operation. True if a window has ended, so that the peak may be
    // lower.
    bool note(size_t live, double seconds) {
        ++time_.operations;
        time_.seconds = seconds;
        if (live > now_.pages) {
            now_ = {live, time_};
            if (live > regret_above_) regret();
        }
        const Moment span = since(began_);
        if (span.operations < window_.operations && span.seconds < window_.seconds)
            return false;
        began_ = time_;
        forgotten_ = before_;
        before_ = now_;
        now_ = {live, time_};
        return true;
    }

    // To be called when memory was given back because a window had ended.
    void gave_back() {
        if (forgotten_.pages <= pages()) return;
        given_up_ = forgotten_.time;
        regret_above_ = pages() + (forgotten_.pages - pages()) / 2;
    }

  private:
    struct Peak {
        size_t pages = 0;
        Moment time;
    };

    Moment since(Moment start) const {
        return {time_.operations - start.operations, time_.seconds - start.seconds};
    }

    // A quarter more than the span between the peaks: no two steps are quite the same.
    void regret() {
        const Moment apart = since(given_up_);
        if (apart.operations <= kLongest.operations && apart.seconds <= kLongest.seconds) {
            window_ = {std::max(window_.operations, apart.operations * 5 / 4),
                       std::max(window_.seconds, apart.seconds * 1.25)};
        }
        regret_above_ = ~size_t{0};
    }

    Moment time_, began_, given_up_, window_ = kShortest;
    Peak now_, before_, forgotten_;
    size_t regret_above_ = ~size_t{0};
};

}  // namespace encke::memory
