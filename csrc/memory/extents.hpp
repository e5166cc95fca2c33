// The free extents of a mapping: by address, to join neighbours, and by size, to find a fit.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace encke::memory {

// A stretch of free pages. `resident` of them may be in memory.
struct Extent {
    size_t first, pages, resident;
};

// No two extents touch: `add` joins the new one with its neighbours.
class FreeExtents {
  public:
    struct Pages {
        size_t count, resident;
    };
    using ByAddress = std::map<size_t, Pages>;
    using BySize = std::set<std::pair<size_t, size_t>>;  // pages, first

    const ByAddress& by_address() const { return by_address_; }
    ByAddress& by_address() { return by_address_; }

    // The extents of at least `pages`, from the smallest, from low addresses to high ones.
    BySize::const_iterator fitting(size_t pages) const {
        return by_size_.lower_bound({pages, 0});
    }
    BySize::const_iterator end() const { return by_size_.end(); }

    void add(Extent extent);
    // Removes the first `pages` of the extent that begins at `first`; `resident` of these may
    // be in memory.
    void take(size_t first, size_t pages, size_t resident);
    // Cuts the extent that begins at `first` in two at page `at`; `resident` pages of the
    // second part may be in memory. The parts touch until one of them is taken.
    void split(size_t first, size_t at, size_t resident);

  private:
    ByAddress by_address_;
    BySize by_size_;
};

}  // namespace encke::memory
