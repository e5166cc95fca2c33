#include "memory/pool.hpp"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace encke::memory {

namespace {

constexpr size_t kSlack = size_t{4} << 20;  // bytes beyond the recent peak, and
constexpr size_t kShare = 50;               // a fiftieth of it, may stay resident
constexpr int kCandidates = 8;              // extents that are compared for a block

char* map(size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}

double now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class Guard {
  public:
    explicit Guard(const Pool& pool) : pool_(pool) { pool_.lock(); }
    ~Guard() { pool_.unlock(); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

  private:
    const Pool& pool_;
};

}  // namespace

Pool::~Pool() {
    if (base_ != nullptr) munmap(base_, reserved_);
    if (notes_ != nullptr) munmap(notes_, notes_bytes_);
}

bool Pool::reserve(size_t bytes) {
    page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t pages = std::min<size_t>(bytes / page_, std::numeric_limits<uint32_t>::max());
    const size_t words = pages / 64 + 1;
    if (pages == 0) return false;
    notes_bytes_ = words * sizeof(uint64_t) + pages * sizeof(uint32_t);
    notes_ = map(notes_bytes_);
    if (notes_ == nullptr) return false;
    base_ = map(pages * page_);
    if (base_ == nullptr) return false;
    // A huge page would make 2 MB resident for one touched page, and be taken apart by the
    // first page that is given back. Kernels without huge pages refuse; that is fine too.
    madvise(base_, pages * page_, MADV_NOHUGEPAGE);
    bits_.use(reinterpret_cast<uint64_t*>(notes_));
    length_ = reinterpret_cast<uint32_t*>(notes_ + words * sizeof(uint64_t));
    extents_.add({0, pages, 0});
    reserved_ = pages * page_;
    return true;
}

Pool::Fit Pool::best_fit(size_t pages) const {
    Fit best{0, 0, false};
    auto fit = extents_.fitting(pages);
    for (int seen = 0; fit != extents_.end() && seen < kCandidates; ++fit, ++seen) {
        const auto [count, first] = *fit;
        size_t resident = extents_.by_address().find(first)->second.resident;
        if (resident == count) return {first, pages, true};
        if (resident != 0) resident = bits_.count(first, pages);
        if (!best.found || resident > best.resident) best = {first, resident, true};
        if (resident == pages) break;
    }
    return best;
}

Pool::Fit Pool::highest_fit(size_t pages) {
    auto& extents = extents_.by_address();
    int seen = 0;
    for (auto extent = extents.rbegin(); extent != extents.rend() && seen < kCandidates;
         ++extent) {
        const auto [count, resident] = extent->second;
        if (resident < pages) continue;
        ++seen;
        const size_t first = extent->first, end = std::min(first + count, top_);
        const auto run = bits_.last_run(first, end, pages);
        if (run.end - run.first < pages) continue;
        try {
            if (run.first != first) extents_.split(first, run.first, pages);
        } catch (...) {
            break;  // no memory for a note of some bytes
        }
        return {run.first, pages, true};
    }
    return {0, 0, false};
}

size_t Pool::cap() const {
    if (keep_nothing_) return live_;
    const size_t recent = recent_.pages();
    return recent + recent / kShare + kSlack / page_;
}

void* Pool::allocate(size_t bytes, Life life) noexcept {
    if (bytes > reserved_) return nullptr;
    const size_t pages = std::max<size_t>(1, (bytes + page_ - 1) / page_);
    Guard guard(*this);
    Fit fit{0, 0, false};
    if (life == Life::kLong) fit = highest_fit(pages);
    if (!fit.found) fit = best_fit(pages);
    if (!fit.found) return nullptr;
    extents_.take(fit.first, pages, fit.resident);
    length_[fit.first] = static_cast<uint32_t>(pages);
    live_ += pages;
    ++blocks_;
    ++allocations_;
    peak_live_ = std::max(peak_live_, live_);
    high_mark_ = std::max(high_mark_, live_);
    resident_ += pages - fit.resident;
    fresh_ += pages - fit.resident;
    if (fit.resident != pages) bits_.set(fit.first, pages);
    top_ = std::max(top_, fit.first + pages);
    note_operation();
    if (fit.resident != pages && resident_ > cap()) give_back(resident_ - cap());
    peak_resident_ = std::max(peak_resident_, resident_);
    return base_ + fit.first * page_;
}

bool Pool::free(void* block) noexcept {
    const size_t offset = static_cast<size_t>(static_cast<char*>(block) - base_);
    const size_t first = offset / page_;
    Guard guard(*this);
    const size_t pages = length_[first];
    if (pages == 0 || offset % page_ != 0) return false;
    length_[first] = 0;
    live_ -= pages;
    --blocks_;
    try {
        extents_.add({first, pages, pages});
    } catch (...) {
        // No memory for a note of some bytes: these pages are not used again.
    }
    note_operation();
    if (keep_nothing_ && resident_ > cap()) give_back(resident_ - cap());
    return true;
}

void Pool::note_operation() noexcept {
    if (recent_.note(live_, now()) && resident_ > cap()) {
        give_back(resident_ - cap());
        recent_.gave_back();
    }
}

// From high addresses to low ones, so that the live blocks move to the low end by and by.
size_t Pool::give_back(size_t pages) noexcept {
    const size_t before = resident_;
    auto& extents = extents_.by_address();
    for (auto extent = extents.rbegin(); extent != extents.rend() && pages != 0; ++extent) {
        const size_t first = extent->first;
        size_t end = first + extent->second.count;
        while (extent->second.resident != 0 && pages != 0) {
            const auto run = bits_.last_run(first, end, pages);
            const size_t count = run.end - run.first;
            madvise(base_ + run.first * page_, count * page_, MADV_DONTNEED);
            bits_.clear(run.first, count);
            extent->second.resident -= count;
            resident_ -= count;
            pages -= count;
            end = run.first;
        }
    }
    returned_ += before - resident_;
    return before - resident_;
}

size_t Pool::trim() noexcept {
    Guard guard(*this);
    return give_back(resident_ - live_) * page_;
}

void Pool::keep_nothing(bool nothing) noexcept {
    Guard guard(*this);
    keep_nothing_ = nothing;
    if (nothing) give_back(resident_ - live_);
}

void Pool::reset_peak() noexcept {
    Guard guard(*this);
    peak_live_ = live_;
    peak_resident_ = resident_;
}

size_t Pool::take_high_mark() noexcept {
    Guard guard(*this);
    return std::exchange(high_mark_, live_) * page_;
}

Statistics Pool::statistics() const noexcept {
    Guard guard(*this);
    return {reserved_,
            live_ * page_,
            resident_ * page_,
            peak_live_ * page_,
            peak_resident_ * page_,
            fresh_ * page_,
            returned_ * page_,
            blocks_,
            allocations_,
            recent_.window().operations,
            recent_.window().seconds};
}

}  // namespace encke::memory
