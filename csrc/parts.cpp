#include "parts.hpp"

#include <cstdlib>
#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace encke {

namespace {
// Scratch above this size is returned to the system after use.
constexpr size_t kKeep = size_t{64} << 20;
// From this size on several threads copy a result.
constexpr int64_t kShared = int64_t{1} << 20;
}  // namespace

Bytes::~Bytes() { release(); }

void Bytes::release() {
    std::free(data_);
    data_ = nullptr;
    size_ = capacity_ = 0;
}

uint8_t* Bytes::reserve(size_t more) {
    if (capacity_ - size_ < more || !data_) {
        size_t wanted = capacity_ + capacity_ / 2;
        if (wanted < size_ + more) wanted = size_ + more;
        if (wanted < 64) wanted = 64;  // no memory and no bytes wanted are different things
        auto* grown = static_cast<uint8_t*>(std::realloc(data_, wanted));
        if (!grown) return nullptr;
        data_ = grown;
        capacity_ = wanted;
    }
    return data_ + size_;
}

void Parts::start(int count) {
    for (int i = 0; i < count_; ++i) parts_[i].clear();
    count_ = count < 1 ? 1 : count > kMost ? kMost : count;
    for (int i = 0; i < count_; ++i) parts_[i].clear();
}

int64_t Parts::size() const {
    int64_t total = 0;
    for (int i = 0; i < count_; ++i) total += static_cast<int64_t>(parts_[i].size());
    return total;
}

void Parts::copy(int64_t first, int64_t last, uint8_t* destination) const {
    int64_t start = 0;
    for (int i = 0; i < count_; ++i) {
        const int64_t end = start + static_cast<int64_t>(parts_[i].size());
        const int64_t from = first > start ? first : start, to = last < end ? last : end;
        if (from < to)
            std::memcpy(destination + from, parts_[i].data() + (from - start), to - from);
        start = end;
    }
}

void Parts::take(uint8_t* destination) {
    const int64_t total = size();
#ifdef _OPENMP
    if (total >= kShared && !omp_in_parallel() && omp_get_max_threads() > 1) {
#pragma omp parallel
        {
            const int64_t t = omp_get_thread_num(), n = omp_get_num_threads();
            copy(total * t / n, total * (t + 1) / n, destination);
        }
    } else
#endif
        copy(0, total, destination);
    for (int i = 0; i < count_; ++i) {
        if (parts_[i].capacity() > kKeep) parts_[i].release();
        parts_[i].clear();
    }
    count_ = 0;
}

}  // namespace encke
