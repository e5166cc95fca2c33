// The bits that codes will take, estimated from a sample of them.
#pragma once

#include <cmath>
#include <cstdint>

namespace encke::ENCKE_ISA::predict {

// Counts magnitudes as the entropy stage's digits do: exactly below 16, then eight to an
// octave. A mean would not do: in pictures few large codes make most of it, and codes of
// integers leave gaps.
class CodeHistogram {
  public:
    void add(int64_t magnitude, bool negative) {
        int symbol = static_cast<int>(magnitude), raw = 0;
        if (magnitude >= kCeiling) magnitude = kCeiling - 1;
        if (magnitude >= 16) {
            const int exponent = 63 - __builtin_clzll(static_cast<uint64_t>(magnitude));
            raw = exponent - 3;
            symbol = 16 + 8 * (exponent - 4) + static_cast<int>(magnitude >> raw & 7);
        }
        ++count_[symbol];
        ++total_;
        plain_ += raw;
        nonzero_ += magnitude > 0;
        negative_ += magnitude > 0 && negative;
    }
    // Entropy, with what a sample of this size leaves out, and bits that no table shortens.
    double bits() const {
        if (total_ == 0) return 0;
        const double all = total_;
        double entropy = 0;
        int symbols = 0;
        for (int32_t count : count_) {
            if (count == 0) continue;
            const double share = count / all;
            entropy -= share * std::log2(share);
            ++symbols;
        }
        if (negative_ > 0 && negative_ < nonzero_) {
            const double share = static_cast<double>(negative_) / nonzero_;
            const double sign =
                -(share * std::log2(share) + (1 - share) * std::log2(1 - share));
            entropy += sign * nonzero_ / all;
        }
        return entropy + (symbols - 1) / (all * 1.3862943611198906) +
               static_cast<double>(plain_) / all;
    }

  private:
    static constexpr int64_t kCeiling = 1 << 20;

    int32_t count_[16 + 8 * 16] = {};
    int32_t total_ = 0, nonzero_ = 0, negative_ = 0;
    int64_t plain_ = 0;
};

}  // namespace encke::ENCKE_ISA::predict
