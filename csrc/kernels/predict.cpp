// `predict`: docs/format.md, section 8.
#include <cmath>
#include <new>
#include <optional>

#include "kernels/entries.hpp"
#include "kernels/predict_model.hpp"
#include "kernels/predict_plan_holes.hpp"

namespace encke::ENCKE_ISA {

namespace {

using namespace predict;

// The least bytes a payload has: a short stream cannot claim a huge tensor.
int64_t least_payload(int64_t count) {
    return kPredictParameters + (count + 65535) / 65536 * 8;
}

template <class T>
constexpr bool kNative = T::kDtype == ENCKE_F32 || T::kDtype == ENCKE_F64;

// What the decoder makes of a reconstructed value.
template <class T>
typename T::Value finished(typename T::Real y, bool keep_nonzero) {
    typename T::Value v;
    if constexpr (T::kDtype == ENCKE_F16) {
        // Beyond the largest half: infinity, which the encoder finds and corrects.
        v = y - y == 0 && y < 65520 && y > -65520 ? T::store(y)
                                                  : static_cast<typename T::Value>(0x7C00);
    } else {
        v = T::store(y);
    }
    if (keep_nonzero) {
        using Pattern = typename T::Pattern;
        Pattern bits = bit_cast<Pattern>(v);
        if ((bits & static_cast<Pattern>(~T::kSign)) == 0)
            return bit_cast<typename T::Value>(Pattern{1});
    }
    return v;
}

template <class T>
bool is_zero(typename T::Value v) {
    using Pattern = typename T::Pattern;
    return (bit_cast<Pattern>(v) & static_cast<Pattern>(~T::kSign)) == 0;
}

// The largest error of binary32 comparisons that cannot hide a larger true one.
template <class Real>
Real safe_error(double promised) {
    if constexpr (sizeof(Real) == 8) return promised * (1 - 0x1p-51);
    float e = static_cast<float>(promised * (1 - 0x1p-22));
    return std::isfinite(e) ? e : 3.0e38f;
}

// What the holes of a tensor leave of grids and codes.
std::optional<ValidGrids> valid_grids(const Plan& plan, const Extents& extents,
                                      const uint8_t* valid) {
    if (!valid) return std::nullopt;
    std::vector<Extents> grids{extents};
    if (plan.mode == kInterpolation) grids = grids_of(plan, extents);
    return ValidGrids(plan, grids, valid);
}

template <class T>
class Encoder {
  public:
    using Value = typename T::Value;
    using Real = typename T::Real;

    // Where `valid` is not null, x is NaN wherever it is 0.
    Encoder(const Value* x, const uint8_t* valid, const Extents& extents,
            const encke_quantiser& q)
        : x_(x), valid_(valid), extents_(extents), q_(q) {}

    int run(const Plan& plan, int flags, Parts& to) {
        const int64_t count = extents_.size();
        const bool keep = flags & kKeepNonzero, check_last = !kNative<T> || keep;
        Coding<Real> c{&plan, extents_, q_.kind == ENCKE_DITHER, q_.seed, q_.step[0], {},
                       {},    nullptr};
        c.lattice.step = static_cast<Real>(q_.step[0]);
        c.lattice.inverse = static_cast<Real>(1) / c.lattice.step;
        c.lattice.error = safe_error<Real>(q_.limit[0]);
        c.lattice.most = largest_code<Real>(plan);
        c.lattice.holes = valid_ != nullptr;
        std::vector<int64_t> pieces = pieces_of(plan, extents_);
        const std::optional<ValidGrids> grids = valid_grids(plan, extents_, valid_);
        if (grids) c.valid = &*grids;
        c.runs = runs_of(pieces, grids ? grids->pieces() : pieces, plan.share);
        int64_t codes_count = c.runs.positions();
        int64_t room = plan.mode == kInterpolation
                           ? interpolation_room(grids_of(plan, extents_), true)
                           : 0;
        Arena& memory = arena();
        if (!memory.open(Arena::room<int32_t>(codes_count) + Arena::room<Real>(room) +
                         Arena::room<Real>(kNative<T> ? 0 : count) +
                         Arena::room<Real>(check_last ? count : 0)))
            return ENCKE_NO_MEMORY;
        int32_t* codes = memory.take<int32_t>(codes_count);
        Real* scratch = memory.take<Real>(room);
        const Real* x = real_input(memory, count);
        Real* rebuilt = check_last ? memory.take<Real>(count) : nullptr;
        std::vector<int64_t> outliers;
        if (c.dithered)
            model<true>(c, x, scratch, rebuilt, codes, outliers);
        else
            model<false>(c, x, scratch, rebuilt, codes, outliers);
        bool zeros = false;
        if (check_last) zeros = check(rebuilt, count, keep, outliers);
        std::sort(outliers.begin(), outliers.end());
        // Positions and dither part where holes are left out.
        const int kind = grids ? ENCKE_PLAIN : q_.kind;
        if (grids) close_up(codes, grids->order(), count);
        RunWriter runs;
        for (size_t r = 0; r < c.runs.coded.size(); ++r) {
            const Run& run = c.runs.coded[r];
            int status = runs.add(codes + run.first, run.count, kind, run_seed(q_.seed, r));
            if (status != ENCKE_OK) return status;
        }
        if (zeros) {
            for (int64_t i = 0; i < count; ++i) codes[i] = is_zero<T>(x_[i]);
            int64_t many = valid_ ? close_up(codes, valid_, count) : count;
            int status = runs.add(codes, many, ENCKE_PLAIN, 0);
            if (status != ENCKE_OK) return status;
        }
        memory.close();
        flags |= (zeros ? kZeroMap : 0) | (valid_ ? kHoles : 0);
        int status = write_payload(plan, flags, outliers, runs, to);
        if (status != ENCKE_OK) return status;
        return to.size() > kPredictParameters + 4 + count * static_cast<int64_t>(sizeof(Value))
                   ? verbatim(to)
                   : status;
    }

  private:
    const Real* real_input(Arena& memory, int64_t count) {
        if constexpr (kNative<T>) {
            return x_;
        } else {
            Real* x = memory.take<Real>(count);
            for (int64_t i = 0; i < count; ++i) x[i] = T::load(x_[i]);
            return x;
        }
    }

    template <bool kDithered>
    void model(const Coding<Real>& c, const Real* x, Real* scratch, Real* rebuilt,
               int32_t* codes, std::vector<int64_t>& outliers) {
        const Plan& plan = *c.plan;
        switch (plan.mode) {
            case kLorenzo:
                lorenzo_quantise<kDithered>(extents_, c.lattice, q_.seed, x, rebuilt, codes,
                                            outliers);
                if (valid_) return lorenzo_difference_holes(plan, extents_, valid_, codes);
                return lorenzo_difference(plan, extents_, codes);
            case kRegression: {
                int64_t first = Blocks(plan, extents_).coefficients();
                size_t run = c.runs.all.size() - 1;
                return regression_encode<kDithered>(
                    plan, extents_, c.lattice, run_seed(q_.seed, run),
                    first - c.runs.all[run].first, x, rebuilt, codes, codes + first, outliers);
            }
            default:
                return interpolation_encode<kDithered>(c, x, scratch, rebuilt, codes, outliers);
        }
    }

    // Compares with what the decoder will give, to the last rounding. True if some value
    // is zero and must stay so.
    bool check(const Real* rebuilt, int64_t count, bool keep, std::vector<int64_t>& outliers) {
        bool zeros = false;
        for (int64_t i = 0; i < count; ++i) {
            if (valid_ && !valid_[i]) continue;
            if (keep && is_zero<T>(x_[i])) {
                zeros = true;
                continue;
            }
            Value v = finished<T>(rebuilt[i], keep);
            double error =
                static_cast<double>(T::load(v)) - static_cast<double>(T::load(x_[i]));
            if (!((error < 0 ? -error : error) <= q_.limit[0])) outliers.push_back(i);
        }
        return zeros;
    }

    int write_payload(const Plan& plan, int flags, const std::vector<int64_t>& outliers,
                      const RunWriter& runs, Parts& to) {
        std::vector<uint8_t> head(kPredictParameters + 4);
        write_parameters(head.data());
        head[kPredictParameters] = static_cast<uint8_t>(plan.mode);
        head[kPredictParameters + 1] = static_cast<uint8_t>(flags);
        uint8_t bytes[Plan::kMostSteps + 2];
        int size = plan.write(bytes);
        head[kPredictParameters + 2] = static_cast<uint8_t>(plan.share);
        head[kPredictParameters + 3] = static_cast<uint8_t>(size);
        head.insert(head.end(), bytes, bytes + size);
        std::vector<uint8_t> positions;
        int64_t before = -1;
        for (int64_t at : outliers) {
            put_varint(positions, static_cast<uint64_t>(at - before - 1));
            before = at;
        }
        put_varint(head, outliers.size());
        put_varint(head, positions.size());
        head.insert(head.end(), runs.directory.begin(), runs.directory.end());
        head.insert(head.end(), positions.begin(), positions.end());
        size_t values = head.size();
        head.resize(values + outliers.size() * sizeof(Value));
        for (size_t i = 0; i < outliers.size(); ++i)
            std::memcpy(head.data() + values + i * sizeof(Value), x_ + outliers[i],
                        sizeof(Value));
        to.start(2);
        if (!append(to[0], head.data(), head.size()) ||
            !append(to[1], runs.data.data(), runs.data.size()))
            return ENCKE_NO_MEMORY;
        return pad(to[1], to);
    }

  public:
    void write_parameters(uint8_t* to) const {
        std::memset(to, 0, kPredictParameters);
        to[0] = static_cast<uint8_t>(q_.kind);
        write<double>(to + 8, q_.step[0]);
        write<uint64_t>(to + 24, q_.kind == ENCKE_DITHER ? q_.seed : 0);
    }
    static bool append(Bytes& to, const uint8_t* from, size_t size) {
        uint8_t* room = to.reserve(size);
        if (!room) return false;
        if (size) std::memcpy(room, from, size);
        to.advance(size);
        return true;
    }
    int verbatim(Parts& to) const {
        uint8_t head[kPredictParameters + 4] = {};
        write_parameters(head);
        write<double>(head + 8, 0.0);
        to.start(1);
        size_t size = static_cast<size_t>(extents_.size()) * sizeof(Value);
        if (!append(to[0], head, sizeof head) ||
            !append(to[0], reinterpret_cast<const uint8_t*>(x_), size))
            return ENCKE_NO_MEMORY;
        return pad(to[0], to);
    }

  private:
    // Zeros up to the length that a payload of so many values has at least.
    int pad(Bytes& last, const Parts& to) const {
        int64_t missing = least_payload(extents_.size()) - to.size();
        if (missing <= 0) return ENCKE_OK;
        std::vector<uint8_t> zeros(static_cast<size_t>(missing));
        return append(last, zeros.data(), zeros.size()) ? ENCKE_OK : ENCKE_NO_MEMORY;
    }

    const Value* x_;
    const uint8_t* valid_;
    Extents extents_;
    encke_quantiser q_;
};

// The values, NaN where there are none.
template <class T>
void with_nan(const typename T::Value* __restrict x, const uint8_t* __restrict valid,
              int64_t count, typename T::Value* __restrict values) {
    using Value = typename T::Value;
    using Pattern = typename T::Pattern;
    // All bits of a hole are set, which is a NaN.
    for (int64_t i = 0; i < count; ++i) {
        const Pattern hole = static_cast<Pattern>(valid[i] - Pattern{1});
        values[i] = bit_cast<Value>(static_cast<Pattern>(bit_cast<Pattern>(x[i]) | hole));
    }
}

template <class T>
int encode_values(const void* x, const uint8_t* valid, const Extents& extents,
                  const encke_quantiser& q, const int32_t* plan, int plan_size, Parts& to) {
    auto* values = static_cast<const typename T::Value*>(x);
    thread_local Arena marked;
    if (valid) {
        using Value = typename T::Value;
        if (!marked.open(Arena::room<Value>(extents.size()))) return ENCKE_NO_MEMORY;
        Value* copy = marked.take<Value>(extents.size());
        with_nan<T>(values, valid, extents.size(), copy);
        values = copy;
    }
    if (plan_size < 1 || plan[0] < 0 || plan[0] > kKeepNonzero) return ENCKE_BAD_ARGUMENT;
    if (q.kind != ENCKE_PLAIN && q.kind != ENCKE_DITHER) return ENCKE_BAD_ARGUMENT;
    Encoder<T> encoder(values, valid, extents, q);
    if (extents.size() == 0) return encoder.verbatim(to);
    Plan chosen;
    if (plan_size == 1) {
        if (q.step[0] == 0) return encoder.verbatim(to);
        const auto step = static_cast<typename T::Real>(q.step[0]);
        chosen = valid ? choose_plan_holes<T>(values, extents, step)
                       : choose_plan<T>(values, extents, step);
        // Dither promises one variance for all errors, which finer coarse grids would not keep.
        if (q.kind == ENCKE_DITHER) chosen.decay = 0;
    } else {
        uint8_t bytes[256];
        if (plan_size > 256) return ENCKE_BAD_ARGUMENT;
        for (int i = 2; i < plan_size; ++i) {
            if (plan[i] < 0 || plan[i] > 255) return ENCKE_BAD_ARGUMENT;
            bytes[i - 2] = static_cast<uint8_t>(plan[i]);
        }
        if (!chosen.read(plan[1], bytes, plan_size - 2, extents, valid != nullptr))
            return ENCKE_BAD_ARGUMENT;
        if (chosen.mode == kVerbatim || q.step[0] == 0) return encoder.verbatim(to);
    }
    int status = encoder.run(chosen, plan[0], to);
    marked.close();
    return status;
}

template <class T>
class Decoder {
  public:
    using Value = typename T::Value;
    using Real = typename T::Real;

    Decoder(const uint8_t* payload, int64_t size, const uint8_t* valid, Value* out,
            const Extents& extents)
        : payload_(payload),
          from_(payload + kPredictParameters, payload + size),
          valid_(valid),
          out_(out),
          extents_(extents) {}

    int run() {
        const int64_t count = extents_.size();
        int mode = from_.byte(), flags = from_.byte(), share = from_.byte();
        int size = from_.byte();
        const uint8_t* bytes = from_.take(size);
        Plan plan;
        plan.share = share;
        if (read<uint64_t>(payload_) >> 8 || read<double>(payload_ + 16) != 0)
            return ENCKE_CORRUPT;
        const int zeros = flags & (kKeepNonzero | kZeroMap);
        if (!bytes || share > Plan::kMostShare || flags > (zeros | kHoles) ||
            zeros == kZeroMap || !plan.read(mode, bytes, size, extents_, valid_ != nullptr))
            return ENCKE_CORRUPT;
        if (mode == kVerbatim) return verbatim(count);
        if (((flags & kHoles) != 0) != (valid_ != nullptr)) return ENCKE_CORRUPT;
        int kind = payload_[0];
        double step = read<double>(payload_ + 8);
        uint64_t seed = read<uint64_t>(payload_ + 24);
        Coding<Real> c{&plan, extents_, kind == ENCKE_DITHER, seed, step, {}, {}, nullptr};
        c.lattice.step = static_cast<Real>(step);
        if (!(step > 0) || !std::isfinite(step) || static_cast<double>(c.lattice.step) != step)
            return ENCKE_CORRUPT;
        if (kind != ENCKE_DITHER && (kind != ENCKE_PLAIN || seed != 0)) return ENCKE_CORRUPT;
        const std::vector<int64_t> pieces = pieces_of(plan, extents_);
        const std::optional<ValidGrids> grids = valid_grids(plan, extents_, valid_);
        if (grids) c.valid = &*grids;
        c.runs = runs_of(pieces, grids ? grids->pieces() : pieces, plan.share);
        int64_t outliers = from_.varint(), positions_size = from_.varint();
        std::vector<RunEntry> entries(c.runs.coded.size() + (flags & kZeroMap ? 1 : 0));
        for (RunEntry& entry : entries) entry.read(from_);
        const uint8_t* positions = from_.take(positions_size);
        if (from_.failed() || outliers > count || outliers > positions_size)
            return ENCKE_CORRUPT;
        const uint8_t* values = from_.take(outliers * static_cast<int64_t>(sizeof(Value)));
        if (!values) return ENCKE_CORRUPT;

        int64_t codes_count = std::max(c.runs.positions(), count);
        int64_t room = plan.mode == kInterpolation
                           ? interpolation_room(grids_of(plan, extents_), false)
                           : 0;
        const int64_t closed_count = grids ? c.runs.codes() + 8 : 0;
        Arena& memory = arena();
        if (!memory.open(Arena::room<int32_t>(codes_count) +
                         Arena::room<int32_t>(closed_count) + Arena::room<Real>(room) +
                         Arena::room<Real>(kNative<T> ? 0 : count)))
            return ENCKE_NO_MEMORY;
        int32_t* codes = memory.take<int32_t>(codes_count);
        int32_t* closed = grids ? memory.take<int32_t>(closed_count) : codes;
        Real* scratch = memory.take<Real>(room);
        for (size_t r = 0; r < c.runs.coded.size(); ++r) {
            const Run& run = c.runs.coded[r];
            int status = decode_run(entries[r], grids ? ENCKE_PLAIN : kind, run_seed(seed, r),
                                    closed + run.first, run.count);
            if (status != ENCKE_OK) return status;
        }
        if (grids && plan.mode == kInterpolation) open_up(closed, grids->order(), count, codes);
        Real* y = nullptr;
        if constexpr (kNative<T>)
            y = out_;
        else
            y = memory.take<Real>(count);
        if (c.dithered)
            model<true>(c, closed, codes, scratch, y);
        else
            model<false>(c, closed, codes, scratch, y);
        const bool keep = flags & kKeepNonzero;
        if (!kNative<T> || keep)
            for (int64_t i = 0; i < count; ++i) out_[i] = finished<T>(y[i], keep);
        if (flags & kZeroMap) {
            int32_t* map = grids ? closed : codes;
            int64_t many = grids ? c.runs.codes() : count;
            int status = decode_run(entries.back(), ENCKE_PLAIN, 0, map, many);
            if (status != ENCKE_OK) return status;
            if (grids) open_up(closed, valid_, count, codes);
            for (int64_t i = 0; i < count; ++i)
                if (codes[i]) out_[i] = Value{0};
        }
        memory.close();
        if (!patch(positions, positions_size, values, outliers, count)) return ENCKE_CORRUPT;
        return from_.only_zeros() ? ENCKE_OK : ENCKE_CORRUPT;
    }

  private:
    int verbatim(int64_t count) {
        const uint8_t* bytes = from_.take(count * static_cast<int64_t>(sizeof(Value)));
        if (!bytes || !from_.only_zeros()) return ENCKE_CORRUPT;
        if (count) std::memcpy(out_, bytes, static_cast<size_t>(count) * sizeof(Value));
        return ENCKE_OK;
    }

    int decode_run(const RunEntry& entry, int kind, uint64_t seed, int32_t* codes,
                   int64_t count) {
        const uint8_t* data = from_.take(entry.size);
        return data ? entry.decode(data, kind, seed, codes, count) : ENCKE_CORRUPT;
    }

    template <bool kDithered>
    void model(const Coding<Real>& c, const int32_t* closed, int32_t* codes, Real* scratch,
               Real* y) {
        const Plan& plan = *c.plan;
        switch (plan.mode) {
            case kLorenzo:
                if (valid_)
                    lorenzo_sum_holes(plan, extents_, valid_, closed, codes);
                else
                    lorenzo_sum(plan, extents_, codes);
                return lorenzo_rebuild<kDithered>(extents_, c.lattice.step, c.seed, codes, y);
            case kRegression: {
                int64_t first = Blocks(plan, extents_).coefficients();
                size_t run = c.runs.all.size() - 1;
                return regression_decode<kDithered>(
                    plan, extents_, c.lattice.step, run_seed(c.seed, run),
                    first - c.runs.all[run].first, codes, codes + first, y);
            }
            default:
                return interpolation_decode<kDithered>(c, codes, scratch, y);
        }
    }

    // Writes the values that no code stands for.
    bool patch(const uint8_t* positions, int64_t size, const uint8_t* values, int64_t outliers,
               int64_t count) {
        Cursor at(positions, positions + size);
        int64_t position = -1;
        for (int64_t i = 0; i < outliers; ++i) {
            position += 1 + at.varint();
            if (at.failed() || position >= count) return false;
            std::memcpy(out_ + position, values + i * static_cast<int64_t>(sizeof(Value)),
                        sizeof(Value));
        }
        return at.at() == positions + size;
    }

    const uint8_t* payload_;
    Cursor from_;
    const uint8_t* valid_;
    Value* out_;
    Extents extents_;
};

}  // namespace

int predict_encode(const void* x, const uint8_t* valid, const int64_t* shape, int ndim,
                   int dtype, const encke_quantiser& q, const int32_t* plan, int plan_size,
                   Parts& to) {
    try {
        return with_float(dtype, [&](auto t) {
            return encode_values<decltype(t)>(x, valid, Extents::of(shape, ndim), q, plan,
                                              plan_size, to);
        });
    } catch (const std::bad_alloc&) {
        return ENCKE_NO_MEMORY;
    }
}

int predict_decode(const uint8_t* payload, int64_t size, const uint8_t* valid, void* out,
                   const int64_t* shape, int ndim, int dtype) {
    Extents extents = Extents::of(shape, ndim);
    if (size < least_payload(extents.size())) return ENCKE_CORRUPT;
    try {
        return with_float(dtype, [&](auto t) {
            using T = decltype(t);
            auto* values = static_cast<typename T::Value*>(out);
            return Decoder<T>(payload, size, valid, values, extents).run();
        });
    } catch (const std::bad_alloc&) {
        return ENCKE_NO_MEMORY;
    }
}

}  // namespace encke::ENCKE_ISA
