// A pool of large blocks in one reserved mapping. It knows neither torch nor the linker.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "memory/demand.hpp"
#include "memory/extents.hpp"
#include "memory/pages.hpp"

namespace encke::memory {

// Sizes in bytes. A block counts as resident as soon as it is handed out: `resident` is an
// upper bound on what the system counts.
struct Statistics {
    size_t reserved, live, resident, peak_live, peak_resident;
    size_t fresh;     // pages that blocks got from the system, all in all
    size_t returned;  // pages given back to the system, all in all
    size_t blocks;    // live now
    size_t allocations;
    size_t window_operations;  // over which the recent peak is taken
    double window_seconds;
};

// How long a block will live, beside the others of a training step.
enum class Life { kShort, kLong };

// Blocks are whole pages, and begin at a page. Among the smallest free extents that fit, a
// block gets the one that needs the fewest pages from the system. A block with a long life gets
// the highest resident pages that are free, so that it does not divide the room of the others:
// compressed tensors pile up from above during forward, and come off that pile in backward,
// when gradients grow from below. Free pages stay resident for
// the next block, as long as all resident pages together are no more than the recent peak of
// live ones, 2 % and 4 MB. Every method may be called from any thread.
class Pool {
  public:
    ~Pool();

    // Reserves address space; nothing is resident yet. False if the system refuses.
    bool reserve(size_t bytes);
    size_t page() const { return page_; }

    // Null if the pool has no room for the block.
    void* allocate(size_t bytes, Life life = Life::kShort) noexcept;
    bool owns(const void* address) const noexcept {
        return static_cast<size_t>(static_cast<const char*>(address) - base_) < reserved_;
    }
    // False if no live block begins there.
    bool free(void* block) noexcept;

    // Gives back every free page; how many bytes.
    size_t trim() noexcept;
    // From now on no free page stays resident, or as before.
    void keep_nothing(bool nothing) noexcept;
    void reset_peak() noexcept;
    // The most live bytes since this was called last.
    size_t take_high_mark() noexcept;
    Statistics statistics() const noexcept;

    // Around fork: held before, released in the parent, made anew in the child.
    void lock() const noexcept { pthread_mutex_lock(&mutex_); }
    void unlock() const noexcept { pthread_mutex_unlock(&mutex_); }
    void renew_lock() noexcept { pthread_mutex_init(&mutex_, nullptr); }

  private:
    struct Fit {
        size_t first, resident;
        bool found;
    };
    Fit best_fit(size_t pages) const;
    // The highest free pages that are all resident; they begin an extent then.
    Fit highest_fit(size_t pages);
    size_t cap() const;
    void note_operation() noexcept;
    size_t give_back(size_t pages) noexcept;

    char* base_ = nullptr;
    size_t page_ = 0, reserved_ = 0;
    char* notes_ = nullptr;  // the mapping of `bits_` and `length_`
    size_t notes_bytes_ = 0;
    PageBits bits_;
    uint32_t* length_ = nullptr;  // of the live block that begins at a page; else zero
    FreeExtents extents_;
    RecentPeak recent_;
    bool keep_nothing_ = false;
    size_t live_ = 0, resident_ = 0, peak_live_ = 0, peak_resident_ = 0;  // pages
    size_t high_mark_ = 0;
    size_t top_ = 0;  // no page from here on was ever handed out
    size_t fresh_ = 0, returned_ = 0, blocks_ = 0, allocations_ = 0;
    mutable pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

}  // namespace encke::memory
