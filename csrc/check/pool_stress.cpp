// The memory pool against a model of it, at random, from several threads and across fork.
//
//     pool_stress [SEED]
//
// Every block is filled with a number of its own and read when it is freed, by whichever
// thread: blocks that overlap, or pages that are given back while in use, show. Ends with
// status 0 if every promise held.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "memory/pool.hpp"

namespace {

using encke::memory::Life;
using encke::memory::Moment;
using encke::memory::PageBits;
using encke::memory::Pool;
using encke::memory::RecentPeak;
using Random = std::mt19937_64;

void check(bool holds, const char* promise) {
    if (holds) return;
    std::fprintf(stderr, "pool_stress: broken: %s\n", promise);
    std::exit(1);
}

struct Block {
    uint64_t* at;
    size_t words;
    uint64_t number;
};

// Every word of the first and last page, and one in 61 between.
template <class Do>
void each_place(const Block& block, Do&& act) {
    constexpr size_t kEdge = 512;
    for (size_t i = 0; i < block.words;) {
        act(block.at[i]);
        const bool edge = i < kEdge || i + 61 + kEdge >= block.words;
        i += edge ? 1 : 61;
    }
}

size_t some_size(Random& random) {
    const size_t scale = size_t{1} << (random() % 11);
    return 65536 + random() % (8192 * scale);
}

bool allocate(Pool& pool, size_t bytes, uint64_t number, Block& block) {
    const auto life = number % 3 == 0 ? Life::kLong : Life::kShort;
    void* at = pool.allocate(bytes, life);
    if (at == nullptr) return false;
    check(reinterpret_cast<uintptr_t>(at) % pool.page() == 0, "blocks begin at a page");
    check(pool.owns(at) && pool.owns(static_cast<char*>(at) + bytes - 1), "owns its blocks");
    block = {static_cast<uint64_t*>(at), bytes / 8, number};
    each_place(block, [&](uint64_t& word) { word = number; });
    return true;
}

void free_block(Pool& pool, const Block& block) {
    each_place(block, [&](uint64_t& word) {
        check(word == block.number, "blocks keep their values");
    });
    check(pool.free(block.at), "a live block can be freed");
}

// Resident pages as the system counts them.
size_t counted(const void* base, size_t bytes, size_t page) {
    std::vector<unsigned char> in_memory(bytes / page);
    check(mincore(const_cast<void*>(base), bytes, in_memory.data()) == 0, "mincore");
    size_t count = 0;
    for (unsigned char flag : in_memory) count += flag & 1;
    return count;
}

void one_thread(uint64_t seed) {
    Pool pool;
    check(pool.reserve(size_t{256} << 20), "address space can be reserved");
    Random random(seed);
    std::vector<Block> live;
    size_t refused = 0;
    char* lowest = static_cast<char*>(pool.allocate(1));
    check(pool.free(lowest), "a block of one byte");
    for (uint64_t step = 0; step < 60000; ++step) {
        const size_t wanted = step / 3000 % 2 == 0 ? 60 : 6;  // grows, shrinks, grows
        if (live.size() < wanted ? random() % 3 != 0 : random() % 3 == 0) {
            Block block{};
            if (allocate(pool, some_size(random), step, block)) {
                live.push_back(block);
            } else {
                ++refused;
            }
        } else if (!live.empty()) {
            std::swap(live[random() % live.size()], live.back());
            free_block(pool, live.back());
            check(!pool.free(live.back().at), "a block is freed once");
            live.pop_back();
        }
        const auto now = pool.statistics();
        check(now.live <= now.resident && now.resident <= now.reserved, "live <= resident");
        check(now.blocks == live.size(), "counts its blocks");
        check(now.fresh - now.returned == now.resident, "fresh - returned = resident");
        if (step % 2000 == 0) {
            const size_t pages = counted(lowest, now.reserved, pool.page());
            check(pages * pool.page() <= now.resident, "resident is an upper bound");
        }
    }
    for (const Block& block : live) free_block(pool, block);
    pool.trim();
    const auto end = pool.statistics();
    check(end.live == 0 && end.resident == 0 && end.blocks == 0,
          "everything can be given back");
    check(counted(lowest, end.reserved, pool.page()) == 0, "and the system has it");
    check(pool.allocate(end.reserved) != nullptr, "free extents become one again");
    check(pool.allocate(1) == nullptr, "a full pool has no room");
    std::printf("one thread: %zu blocks, %zu MB given back, %zu refused\n", end.allocations,
                end.returned >> 20, refused);
}

// Blocks are handed from thread to thread through a shared table.
void many_threads(uint64_t seed, bool forks) {
    Pool pool;
    check(pool.reserve(size_t{512} << 20), "address space can be reserved");
    std::mutex mutex;
    std::vector<Block> table(48, Block{});
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            Random random(seed * 4 + thread);
            for (uint64_t step = 0; step < 15000; ++step) {
                Block block{};
                if (!allocate(pool, some_size(random), thread << 32 | step, block)) continue;
                {
                    std::lock_guard<std::mutex> guard(mutex);
                    std::swap(block, table[random() % table.size()]);
                }
                if (block.at != nullptr) free_block(pool, block);
                if (step % 1000 == 0) pool.trim();
            }
        });
    }
    int children = 0;
    for (; forks && children < 20; ++children) {
        pool.lock();
        const pid_t child = fork();
        if (child == 0) {
            pool.renew_lock();
            Block block{};
            for (uint64_t i = 0; i < 50; ++i)
                if (allocate(pool, 200000, i, block)) free_block(pool, block);
            pool.trim();
            _exit(pool.statistics().resident == pool.statistics().live ? 0 : 1);
        }
        pool.unlock();
        int status = 0;
        check(child > 0 && waitpid(child, &status, 0) == child && status == 0,
              "a child goes on with its copy");
    }
    for (auto& thread : threads) thread.join();
    for (const Block& block : table)
        if (block.at != nullptr) free_block(pool, block);
    pool.trim();
    const auto end = pool.statistics();
    check(end.live == 0 && end.resident == 0, "everything can be given back");
    std::printf("four threads: %zu blocks, %zu MB given back, %d forks\n", end.allocations,
                end.returned >> 20, children);
}

void page_bits(uint64_t seed) {
    constexpr size_t kPages = 400;
    Random random(seed);
    uint64_t words[kPages / 64 + 1] = {};
    PageBits bits;
    bits.use(words);
    std::vector<bool> model(kPages, false);
    for (int step = 0; step < 20000; ++step) {
        const size_t first = random() % kPages, pages = random() % (kPages - first) + 1;
        const size_t longest = random() % 90 + 1;
        size_t count = 0, end = first + pages;
        for (size_t i = first; i < first + pages; ++i) count += model[i];
        check(bits.count(first, pages) == count, "bits are counted");
        const auto run = bits.last_run(first, first + pages, longest);
        while (end > first && !model[end - 1]) --end;
        size_t start = end;
        while (start > first && model[start - 1] && end - start < longest) --start;
        check(run.end == end && run.first == start, "the last run is found");
        const bool set = random() % 2 == 0;
        set ? bits.set(first, pages / 4) : bits.clear(first, pages / 4);
        for (size_t i = first; i < first + pages / 4; ++i) model[i] = set;
    }
}

// A step of 1000 operations with a peak of 100 pages, again and again; then 10 pages only.
void recent_peak() {
    RecentPeak recent;
    double seconds = 0;
    int given_back = 0;
    const auto note = [&](size_t live) {
        const size_t before = recent.pages();
        if (recent.note(live, seconds += 1e-4) && recent.pages() < before) {
            recent.gave_back();
            ++given_back;
        }
    };
    for (int step = 0; step < 50; ++step) {
        if (step == 5) given_back = 0;
        for (int i = 0; i < 1000; ++i) note(i < 500 ? 10 : i < 600 ? 100 : 20);
    }
    check(given_back == 0 && recent.pages() == 100, "a repeating peak is kept");
    for (uint64_t i = 0; i < 2 * recent.window().operations; ++i) note(10);
    check(recent.pages() == 10, "a peak that does not come back is forgotten");
    for (int i = 0; i < 3; ++i) note(10), note(500), seconds += 100, note(10), note(10);
    for (int i = 0; i < 3; ++i) seconds += recent.window().seconds, note(10);
    check(recent.pages() == 10, "a few operations over some seconds are enough");
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
#ifdef __SANITIZE_THREAD__
    const bool forks = false;  // ThreadSanitizer does not follow threads across fork
#else
    const bool forks = true;
#endif
    page_bits(seed);
    recent_peak();
    one_thread(seed);
    many_threads(seed, forks);
    return 0;
}
