// Encoded bytes of unknown length, collected by several threads.
//
// An encoder cannot know the size of what it writes. Each thread appends to a part of
// its own; the parts, one after the other, are the payload. Only the split into parts
// depends on the number of threads, not the bytes. The memory is kept for the next call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace encke {

// A growing array of bytes that does not initialise what it grows by.
class Bytes {
  public:
    Bytes() = default;
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    ~Bytes();

    // A pointer to `more` writable bytes behind the current end, or null if there is no
    // memory. What was written there counts only after `advance`.
    uint8_t* reserve(size_t more);
    void advance(size_t written) { size_ += written; }
    void clear() { size_ = 0; }
    uint8_t* data() { return data_; }
    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    size_t capacity() const { return capacity_; }
    void release();

  private:
    uint8_t* data_ = nullptr;
    size_t size_ = 0;
    size_t capacity_ = 0;
};

class Parts {
  public:
    static constexpr int kMost = 256;

    // Forget the previous result and make ready for `count` parts (at most kMost).
    void start(int count);
    int count() const { return count_; }
    Bytes& operator[](int index) { return parts_[index]; }
    int64_t size() const;
    // Copy all parts to `destination`; memory beyond what is worth keeping is given back.
    void take(uint8_t* destination);

  private:
    // Bytes first..last-1 of all parts together to the same place at `destination`.
    void copy(int64_t first, int64_t last, uint8_t* destination) const;

    Bytes parts_[kMost];
    int count_ = 0;
};

}  // namespace encke
