// Groups of eight between their order in memory and the coder's order of lanes.
#pragma once

#include "kernels/digits.hpp"
#include "kernels/dither.hpp"

namespace encke::ENCKE_ISA {

// Lane of position p in the group at `position` (a multiple of 8): its dither class, or p.
class LaneOrder {
  public:
    LaneOrder(int kind, uint64_t seed, int64_t chunk_start)
        : dithered_(kind == ENCKE_DITHER), dither_(seed, chunk_start) {}

    // `j` counts from the start of the chunk, which is that of a page.
    uint32_t rotation(uint32_t j) const { return dithered_ ? dither_.rotation(j) : 0; }

    void to_lanes(uint32_t j, const int32_t* in_memory, int32_t* lanes) const {
        uint32_t r = rotation(j);
        for (uint32_t p = 0; p < kLanes; ++p) lanes[(p + r) & 7] = in_memory[p];
    }

    void to_memory(uint32_t j, const int32_t* lanes, int32_t* in_memory) const {
        uint32_t r = rotation(j);
        for (uint32_t p = 0; p < kLanes; ++p) in_memory[p] = lanes[(p + r) & 7];
    }

    // The lanes of a chunk's last group that are after its n-th code.
    uint32_t after(int64_t n) const {
        uint32_t here = static_cast<uint32_t>(n & 7), lanes = 0;
        if (!here) return 0;
        uint32_t r = rotation(static_cast<uint32_t>(n & ~int64_t{7}));
        for (uint32_t p = here; p < kLanes; ++p) lanes |= 1u << ((p + r) & 7);
        return lanes;
    }

    const Dither& dither() const { return dither_; }

  private:
    bool dithered_;
    Dither dither_;
};

}  // namespace encke::ENCKE_ISA
