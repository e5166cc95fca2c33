// Bitmaps of fields with holes: docs/format.md, section 14.
#include <iterator>
#include <new>

#include "kernels/bit_coder.hpp"
#include "kernels/bitmap_rows.hpp"
#include "kernels/entries.hpp"

namespace encke::ENCKE_ISA {

namespace {

constexpr int64_t kBitmapHead = 4;

// A shape without its extents of 1, seen as planes of rows.
struct Planes {
    int64_t planes = 1, rows = 1, columns = 1, levels = 1;

    static Planes of(const int64_t* shape, int ndim) {
        std::vector<int64_t> wide;
        std::copy_if(shape, shape + ndim, std::back_inserter(wide),
                     [](int64_t extent) { return extent != 1; });
        const size_t n = wide.size();
        Planes p;
        if (n > 0) p.columns = wide[n - 1];
        if (n > 1) p.rows = wide[n - 2];
        for (size_t d = 0; d + 2 < n; ++d) p.planes *= wide[d];
        if (n > 3) p.levels = wide[n - 3];
        return p;
    }
    int64_t size() const { return planes * rows * columns; }
};

struct BitmapModel {
    Chance alone[1024], beside[2048], repeats[2], quiet[2][40];
};

// Puts the bits that are there.
class Putting {
  public:
    static constexpr bool kReads = false;
    explicit Putting(std::vector<uint8_t>& to) : to_(to) {}
    int learned(int bit, Chance& chance) {
        to_.put(bit, chance);
        return bit;
    }
    int even(int bit) {
        to_.put(bit, 32768u);
        return bit;
    }
    void finish() { to_.finish(); }

  private:
    BitWriter to_;
};

// Gets bits in place of those given.
class Getting {
  public:
    static constexpr bool kReads = true;
    Getting(const uint8_t* from, const uint8_t* end) : from_(from, end) {}
    int learned(int, Chance& chance) { return from_.get(chance); }
    int even(int) { return from_.get(32768u); }

  private:
    BitReader from_;
};

// Walks over an image, which Getting fills and Putting reads. `domain` may be null: where it
// has no bit, neither has the image.
template <class Coder>
class Walk {
  public:
    Walk(Coder& coder, BitImage& image, BitImage* domain, int64_t back)
        : coder_(coder),
          image_(image),
          domain_(domain),
          back_(back),
          any_(static_cast<size_t>(image.words() + 1)),
          all_(static_cast<size_t>(image.words() + 1)) {}

    // False if the bits cannot be those of an image.
    bool plane(int64_t p) {
        const bool beside = p >= back_;
        if (beside) {
            int same = 0;
            if constexpr (!Coder::kReads) same = repeats(p);
            same = coder_.learned(same, model_.repeats[repeated_]);
            repeated_ = same;
            if (same) {
                if constexpr (Coder::kReads) repeat(p);
                return true;
            }
        }
        for (int64_t r = 0; r < image_.rows(); ++r)
            if (!(beside ? row<true>(p, r) : row<false>(p, r))) return false;
        return true;
    }

  private:
    bool repeats(int64_t p) {
        if (!domain_) return image_.same(p, p - back_);
        for (int64_t r = 0; r < image_.rows(); ++r) {
            const uint64_t *own = image_.row(p, r), *other = image_.row(p - back_, r),
                           *in = domain_->row(p, r);
            for (int64_t k = 0; k < image_.words(); ++k)
                if (own[k] != (other[k] & in[k])) return false;
        }
        return true;
    }
    void repeat(int64_t p) {
        for (int64_t r = 0; r < image_.rows(); ++r) {
            uint64_t* own = image_.row(p, r);
            const uint64_t* other = image_.row(p - back_, r);
            const uint64_t* in = domain_ ? domain_->row(p, r) : nullptr;
            for (int64_t k = 0; k < image_.words(); ++k)
                own[k] = in ? other[k] & in[k] : other[k];
        }
    }

    template <bool kBeside>
    bool row(int64_t p, int64_t r) {
        uint64_t* own = image_.row(p, r);
        const uint64_t *n = image_.row(p, r - 1), *nn = image_.row(p, r - 2);
        const uint64_t *q = nullptr, *qn = nullptr, *qs = nullptr;
        if constexpr (kBeside) {
            q = image_.row(p - back_, r);
            qn = image_.row(p - back_, r - 1), qs = image_.row(p - back_, r + 1);
        }
        const uint64_t* in = domain_ ? domain_->row(p, r) : nullptr;
        for (int64_t k = 0; k < image_.words(); ++k) {
            uint64_t a = n[k], any = a | moved<-1>(n, k) | moved<1>(n, k) | nn[k];
            uint64_t all = a & moved<-1>(n, k) & moved<1>(n, k) & nn[k];
            if constexpr (kBeside) {
                any |= q[k] | moved<-1>(q, k) | moved<1>(q, k) | qn[k] | qs[k];
                all &= q[k] & moved<-1>(q, k) & moved<1>(q, k) & qn[k] & qs[k];
            } else {
                any |= moved<-2>(n, k) | moved<2>(n, k) | moved<-1>(nn, k) | moved<1>(nn, k);
                all &= moved<-2>(n, k) & moved<2>(n, k) & moved<-1>(nn, k) & moved<1>(nn, k);
            }
            any_[static_cast<size_t>(k)] = any;
            all_[static_cast<size_t>(k)] = in ? all & in[k] : all;
        }
        const int64_t columns = image_.columns();
        for (int64_t x = 0; x < columns;) {
            unsigned left = five_around(own, x) & 3;  // x - 2 and x - 1
            int v = left == 3;
            if ((left == 0 || left == 3) && bit_at(v ? all_.data() : any_.data(), x) == v) {
                if (!stretch(own, in, v, x)) return false;
                continue;
            }
            if (in && !bit_at(in, x)) {
                ++x;
                continue;
            }
            unsigned above = five_around(n, x), far = five_around(nn, x);
            Chance* chance;
            if constexpr (kBeside)
                chance = &model_.beside[left | (above >> 1 & 7) << 2 | (far >> 2 & 1) << 5 |
                                        (five_around(q, x) >> 1 & 7) << 6 |
                                        static_cast<unsigned>(bit_at(qn, x)) << 9 |
                                        static_cast<unsigned>(bit_at(qs, x)) << 10];
            else
                chance = &model_.alone[left | above << 2 | (far >> 1 & 7) << 7];
            int bit = coder_.learned(Coder::kReads ? 0 : bit_at(own, x), *chance);
            if (Coder::kReads && bit) own[x >> 6] |= uint64_t{1} << (x & 63);
            ++x;
        }
        return true;
    }

    // Bits from x on around which everything is v.
    bool stretch(uint64_t* own, const uint64_t* in, int v, int64_t& x) {
        const int64_t columns = image_.columns();
        int64_t end = next_bit(v ? all_.data() : any_.data(), x, columns, !v);
        int64_t length = end - x, other = end;
        if constexpr (!Coder::kReads) other = next_bit(own, x, end, !v);
        int bits = 64 - __builtin_clzll(static_cast<uint64_t>(length));
        int whole = coder_.learned(other == end, model_.quiet[v][bits < 40 ? bits : 39]);
        if (!whole) {
            int64_t at = 0;
            int wide = length > 1 ? 64 - __builtin_clzll(static_cast<uint64_t>(length - 1)) : 0;
            for (int i = wide - 1; i >= 0; --i)
                at = at << 1 | coder_.even(static_cast<int>((other - x) >> i & 1));
            if (at >= length) return false;
            end = x + at;
        }
        if (Coder::kReads && v) set_bits(own, x, end);
        x = end;
        if (whole) return true;
        if (Coder::kReads && !v) {
            if (in && !bit_at(in, x)) return false;
            own[x >> 6] |= uint64_t{1} << (x & 63);
        }
        ++x;
        return true;
    }

    Coder& coder_;
    BitImage& image_;
    BitImage* domain_;
    int64_t back_;
    int repeated_ = 0;
    std::vector<uint64_t> any_, all_;
    BitmapModel model_;
};

void pack(const void* from, const Planes& p, BitImage& image) {
    const uint8_t* bytes = static_cast<const uint8_t*>(from);
    for (int64_t plane = 0; plane < p.planes; ++plane)
        for (int64_t r = 0; r < p.rows; ++r, bytes += p.columns)
            pack_row(bytes, p.columns, image.row(plane, r));
}

// From how many planes before a plane is best foretold.
int64_t choose_back(const Planes& p, BitImage& image) {
    if (p.levels < 2 || p.planes <= p.levels || p.levels > 0x7FFFFFFF) return 1;
    int64_t level = 0, time = 0;
    for (int64_t plane = p.levels; plane < p.planes; ++plane) {
        level += image.difference(plane, plane - 1);
        time += image.difference(plane, plane - p.levels);
    }
    return time < level ? p.levels : 1;
}

}  // namespace

int bitmap_encode(const void* x, const void* domain, const int64_t* shape, int ndim,
                  Parts& to) {
    Planes p = Planes::of(shape, ndim);
    to.start(1);
    try {
        std::vector<uint8_t> bytes(kBitmapHead);
        int64_t back = 1;
        if (p.size() > 0) {
            BitImage image(p.planes, p.rows, p.columns);
            BitImage known(domain ? p.planes : 0, p.rows, p.columns);
            pack(x, p, image);
            if (domain) pack(domain, p, known);
            back = choose_back(p, image);
            Putting coder(bytes);
            Walk<Putting> walk(coder, image, domain ? &known : nullptr, back);
            for (int64_t plane = 0; plane < p.planes; ++plane) walk.plane(plane);
            coder.finish();
        }
        write<uint32_t>(bytes.data(), static_cast<uint32_t>(back));
        uint8_t* room = to[0].reserve(bytes.size());
        if (!room) return ENCKE_NO_MEMORY;
        std::memcpy(room, bytes.data(), bytes.size());
        to[0].advance(bytes.size());
    } catch (const std::bad_alloc&) {
        return ENCKE_NO_MEMORY;
    }
    return ENCKE_OK;
}

int bitmap_decode(const uint8_t* payload, int64_t size, const void* domain,
                  const int64_t* shape, int ndim, void* out) {
    Planes p = Planes::of(shape, ndim);
    if (size < kBitmapHead) return ENCKE_CORRUPT;
    int64_t back = read<uint32_t>(payload);
    if (back < 1) return ENCKE_CORRUPT;
    if (p.size() == 0) return size == kBitmapHead ? ENCKE_OK : ENCKE_CORRUPT;
    try {
        BitImage image(p.planes, p.rows, p.columns);
        BitImage known(domain ? p.planes : 0, p.rows, p.columns);
        if (domain) pack(domain, p, known);
        Getting coder(payload + kBitmapHead, payload + size);
        Walk<Getting> walk(coder, image, domain ? &known : nullptr, back);
        uint8_t* bytes = static_cast<uint8_t*>(out);
        for (int64_t plane = 0; plane < p.planes; ++plane) {
            if (!walk.plane(plane)) return ENCKE_CORRUPT;
            for (int64_t r = 0; r < p.rows; ++r, bytes += p.columns)
                unpack_row(image.row(plane, r), p.columns, bytes);
        }
    } catch (const std::bad_alloc&) {
        return ENCKE_NO_MEMORY;
    }
    return ENCKE_OK;
}

}  // namespace encke::ENCKE_ISA
