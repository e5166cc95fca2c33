// How the entropy stage will code a tensor: digits, tables and their frequencies, from a
// sample of its codes.
#pragma once

#include <cmath>
#include <initializer_list>

#include "kernels/rans.hpp"

namespace encke::ENCKE_ISA {

struct Coding {
    Plan plan;
    Frequencies tables[8];
    double cost = 0;  // bits that the tensor would take
};

class Planner {
  public:
    // `codes` are `groups` groups of eight in lane order, a sample of `total` codes.
    Planner(const int32_t* codes, int64_t groups, int64_t total, int kind)
        : codes_(codes), groups_(groups), total_(total), kind_(kind) {}

    // The cheapest of the candidates; those with more codes to a symbol are faster and
    // win unless they are more than 1 % larger.
    Coding choose() {
        uint64_t zeros = 0, coded = 0;
        int64_t sum = 0;
        for (int64_t i = 0; i < groups_ * kLanes; ++i) {
            zeros += codes_[i] == kZero;
            if (codes_[i] <= kAfter) continue;
            sum += codes_[i];
            ++coded;
        }
        Plan plan;
        plan.zero = zeros > 0;
        Coding best;
        double best_cost = consider(plan, best);
        // Codes far from zero fall into wide buckets; counted from their mean they do not.
        const int64_t mean = coded ? sum / static_cast<int64_t>(coded) : 0;
        if ((mean >= 8 || mean <= -8) && mean >= INT16_MIN && mean <= INT16_MAX) {
            plan.base = static_cast<int>(mean);
            Coding centred;
            double cost = consider(plan, centred);
            if (cost < best_cost) {
                best = centred;
                best_cost = cost;
            } else {
                plan.base = 0;
                count(plan);
            }
        }
        uint64_t totals[256] = {};
        for (auto& table : counts_)
            for (int s = 0; s < 256; ++s) totals[s] += table[s];
        const double sampled = static_cast<double>(groups_ * kLanes);
        for (int bits : {4, 2}) {
            if (groups_ < 64) break;  // their tables would outweigh what they save
            Plan candidate = plan;
            candidate.digit_bits = bits;
            candidate.zero = static_cast<double>(zeros) > sampled / 1024;
            double outside = place_window(totals, candidate, zeros);
            if (outside > 0.02 * sampled) continue;
            Coding coding;
            double cost = consider(candidate, coding);
            if (cost < 1.01 * best_cost) {
                best = coding;
                best_cost = cost < best_cost ? cost : best_cost;
            }
        }
        // More rows in flight hide the coder's latency, but each costs 32 bytes a chunk:
        // up to four where that is next to nothing.
        const double each = best_cost / static_cast<double>(total_);
        best.plan.rows_log = total_ < 4096 || each < 0.5 ? 0
                             : best.plan.digit_bits == 2 ? 1
                                                         : 2;
        best.cost = best_cost;
        return best;
    }

  private:
    const int32_t* codes_;
    int64_t groups_, total_;
    int kind_;
    uint32_t counts_[8][256];

    // Moves the base so that the digits cover most codes; returns how many they do not.
    // `sum` counts the buckets around the base so far.
    static double place_window(const uint64_t* sum, Plan& plan, uint64_t zeros) {
        const int centre = plan.base;
        uint64_t of_code[31], all = 0;
        for (int c = -15; c <= 15; ++c)
            of_code[c + 15] = sum[c == 0 ? 0 : c < 0 ? -2 * c - 1 : 2 * c];
        for (int s = 0; s < 256; ++s) all += sum[s];
        int width = static_cast<int>(plan.largest()) + 1;
        uint64_t most = 0;
        for (int first = 0; first + width <= 31; ++first) {
            uint64_t inside = 0;
            for (int i = 0; i < width; ++i) inside += of_code[first + i];
            if (inside > most) {
                most = inside;
                plan.base = centre + first - 15;
            }
        }
        return static_cast<double>(all - most - (plan.zero ? zeros : 0));
    }

    void count(const Plan& plan) {
        std::memset(counts_, 0, sizeof counts_);
        const int stride = kLanes * plan.per_symbol();
        const int64_t rows = groups_ / plan.per_symbol();
        for (int64_t t = 0; t < rows; ++t) {
            const int32_t* row = codes_ + t * stride;
            alignas(32) uint32_t symbols[kLanes];
#ifdef __AVX2__
            __m256i v = plan.digit_bits == 8   ? symbols8<8>(row, plan)
                        : plan.digit_bits == 4 ? symbols8<4>(row, plan)
                                               : symbols8<2>(row, plan);
            _mm256_store_si256(reinterpret_cast<__m256i*>(symbols), v);
#else
            for (int l = 0; l < kLanes; ++l) symbols[l] = symbol_of(row + l, plan);
#endif
            for (int l = 0; l < kLanes; ++l) ++counts_[l][symbols[l]];
        }
    }

    // Bits that a table's counts would take, scaled up to the whole tensor.
    double cost(const uint32_t* counts, const Frequencies& table, const Plan& plan) const {
        double bits = 0;
        for (uint32_t s = 0; s < 256; ++s) {
            if (!counts[s]) continue;
            double each = plan.precision - std::log2(static_cast<double>(table.f[s]));
            if (plan.digit_bits == 8 && s < 254) each += bucket_bits((s + 1) / 2);
            for (int i = 0; i < plan.per_symbol(); ++i)
                if ((s >> plan.digit_bits * i & plan.escape()) == plan.escape()) each += 32;
            bits += counts[s] * each;
        }
        uint8_t written[2 + 3 * 256];
        double scale = static_cast<double>(total_) / static_cast<double>(groups_ * kLanes);
        return bits * scale + 8.0 * static_cast<double>(table.write_to(written) - written);
    }

    // Frequencies from counts. A symbol of several digits that the sample happens not to have
    // costs more than a hundred bits when it comes, so those that the digits' own shares make
    // likely enough get an entry too.
    static void tabulate(const uint32_t* counts, const Plan& plan, Frequencies& table) {
        const int k = plan.per_symbol();
        if (k == 1) return table.normalise(counts, plan.precision);
        double digits[16] = {}, total = 0;
        for (uint32_t s = 0; s < 256; ++s) {
            total += counts[s];
            for (int i = 0; i < k; ++i)
                digits[s >> plan.digit_bits * i & plan.escape()] += counts[s];
        }
        constexpr uint32_t kScale = 32;
        constexpr double kLikely = 3e-6;
        uint32_t weights[256];
        for (uint32_t s = 0; s < 256; ++s) {
            weights[s] = kScale * counts[s];
            if (counts[s] || EncoderTable::escapes(s, plan)) continue;
            double share = 1;
            for (int i = 0; i < k; ++i)
                share *= digits[s >> plan.digit_bits * i & plan.escape()] / (k * total);
            if (share < kLikely) continue;
            weights[s] = static_cast<uint32_t>(kScale * total * share) + 1;
        }
        table.normalise(weights, plan.precision);
    }

    // The cost of a plan, with its tables in `coding`: one for all lanes or one for each.
    double consider(Plan plan, Coding& coding) {
        count(plan);
        uint32_t sum[256] = {};
        for (auto& table : counts_)
            for (int s = 0; s < 256; ++s) sum[s] += table[s];
        plan.tables = 1;
        coding.plan = plan;
        tabulate(sum, plan, coding.tables[0]);
        double one = cost(sum, coding.tables[0], plan);
        if (kind_ != ENCKE_DITHER) return one;
        Coding split;
        split.plan = plan;
        split.plan.tables = 8;
        double eight = 0;
        for (int l = 0; l < 8; ++l) {
            tabulate(counts_[l], plan, split.tables[l]);
            eight += cost(counts_[l], split.tables[l], plan);
        }
        if (eight >= one) return one;
        coding = split;
        return eight;
    }
};

}  // namespace encke::ENCKE_ISA
