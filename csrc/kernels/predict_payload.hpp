// The payload of `predict` beside its numbers: directory, outliers, runs of codes.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/entries.hpp"
#include "kernels/predict_plan.hpp"
#include "kernels/predict_sparse.hpp"

namespace encke::ENCKE_ISA::predict {

constexpr int64_t kPredictParameters = 32;
// A run of codes ends with the first piece that brings it to this many, and to the share of
// all that the plan says.
constexpr int64_t kRunCodes = 4096;

enum RunCoder { kRunZero = 0, kRunSparse = 1, kRunStage = 2 };

// Codes that are coded together, with dither of their own.
struct Run {
    int64_t first, count;
};

inline uint64_t run_seed(uint64_t seed, size_t run) {
    return seed + static_cast<uint64_t>(run) * 0xD1342543DE82EF95u;
}

// Pieces, coarsest first, gathered into runs: where they are among all positions, and among
// those that have a code.
struct Runs {
    std::vector<Run> all, coded;

    int64_t positions() const { return all.back().first + all.back().count; }
    int64_t codes() const { return coded.back().first + coded.back().count; }
};

inline Runs runs_of(const std::vector<int64_t>& pieces, const std::vector<int64_t>& coded,
                    int share) {
    Runs runs;
    int64_t at = 0, coded_at = 0, sum = 0;
    for (int64_t piece : coded) sum += piece;
    const int64_t enough = std::max(kRunCodes, sum >> share);
    bool open = false;
    for (size_t i = 0; i < pieces.size(); ++i) {
        if (!open) {
            runs.all.push_back({at, 0});
            runs.coded.push_back({coded_at, 0});
        }
        runs.all.back().count += pieces[i];
        runs.coded.back().count += coded[i];
        at += pieces[i];
        coded_at += coded[i];
        open = runs.coded.back().count < enough;
    }
    return runs;
}

inline void put_varint(std::vector<uint8_t>& to, uint64_t v) {
    for (; v >= 128; v >>= 7) to.push_back(static_cast<uint8_t>(v | 128));
    to.push_back(static_cast<uint8_t>(v));
}

// Reads from [at, end) and remembers whether it ever had to stop short.
class Cursor {
  public:
    Cursor(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

    uint8_t byte() {
        if (at_ < end_) return *at_++;
        short_ = true;
        return 0;
    }
    // Below 2^62.
    int64_t varint() {
        uint64_t v = 0;
        for (int shift = 0; shift < 63; shift += 7) {
            uint8_t b = byte();
            v |= static_cast<uint64_t>(b & 127) << shift;
            if (b < 128) {
                if (v >> 62) short_ = true;
                return short_ ? 0 : static_cast<int64_t>(v);
            }
        }
        short_ = true;
        return 0;
    }
    // The next `n` bytes, or null.
    const uint8_t* take(int64_t n) {
        if (n < 0 || n > end_ - at_) {
            short_ = true;
            return nullptr;
        }
        at_ += n;
        return at_ - n;
    }
    bool only_zeros() const {
        return std::all_of(at_, end_, [](uint8_t b) { return b == 0; });
    }
    const uint8_t* at() const { return at_; }
    bool failed() const { return short_; }

  private:
    const uint8_t* at_;
    const uint8_t* end_;
    bool short_ = false;
};

inline int64_t count_nonzero(const int32_t* codes, int64_t count) {
    int64_t nonzero = 0;
    for (int64_t at = 0; at < count; at += 1 << 16) {
        int32_t here = 0;
        const int32_t* stop = codes + std::min<int64_t>(at + (1 << 16), count);
        for (const int32_t* code = codes + at; code < stop; ++code) here += *code != 0;
        nonzero += here;
    }
    return nonzero;
}

// Collects the directory and the data of runs.
class RunWriter {
  public:
    std::vector<uint8_t> directory, data;

    int add(const int32_t* codes, int64_t count, int kind, uint64_t seed) {
        int64_t nonzero = count_nonzero(codes, count);
        if (nonzero == 0) {
            directory.push_back(kRunZero);
            return ENCKE_OK;
        }
        // The adaptive coder takes tens of nanoseconds for a code that is not zero.
        if ((nonzero <= 1024 || nonzero <= count / 64) && count >> 32 == 0) {
            size_t before = data.size();
            sparse_encode(codes, count, data);
            directory.push_back(kRunSparse);
            put_varint(directory, static_cast<uint64_t>(nonzero));
            put_varint(directory, data.size() - before);
            return ENCKE_OK;
        }
        thread_local Parts parts;
        uint8_t parameters[8] = {};
        parts.start(1);
        int status = codes_encode(codes, count, kind, seed, parameters, parts);
        if (status != ENCKE_OK) return status;
        directory.push_back(kRunStage);
        directory.insert(directory.end(), parameters + 1, parameters + 8);
        int64_t size = parts.size();
        put_varint(directory, static_cast<uint64_t>(size));
        size_t before = data.size();
        data.resize(before + static_cast<size_t>(size));
        parts.take(data.data() + before);
        return ENCKE_OK;
    }
};

// One run as the directory describes it.
struct RunEntry {
    int coder = kRunZero;
    int64_t nonzero = 0, size = 0;
    uint8_t parameters[8] = {};

    void read(Cursor& from) {
        coder = from.byte();
        if (coder == kRunSparse) nonzero = from.varint();
        if (coder == kRunStage)
            for (int i = 1; i < 8; ++i) parameters[i] = from.byte();
        if (coder != kRunZero) size = from.varint();
    }

    int decode(const uint8_t* data, int kind, uint64_t seed, int32_t* codes,
               int64_t count) const {
        switch (coder) {
            case kRunZero:
                std::memset(codes, 0, sizeof(int32_t) * static_cast<size_t>(count));
                return ENCKE_OK;
            case kRunSparse:
                if (nonzero > count || count >> 32) return ENCKE_CORRUPT;
                return sparse_decode(data, data + size, nonzero, codes, count) ? ENCKE_OK
                                                                               : ENCKE_CORRUPT;
            case kRunStage:
                return codes_decode(data, size, parameters, kind, seed, codes, count);
            default:
                return ENCKE_CORRUPT;
        }
    }
};

}  // namespace encke::ENCKE_ISA::predict
