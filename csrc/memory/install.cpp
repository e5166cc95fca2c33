#include "memory/install.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "memory/slots.hpp"

namespace encke::memory {

namespace {

constexpr size_t kLeast = size_t{64} << 10;  // bytes; smaller blocks stay with the C library
constexpr const char* kLibrary = "libc10.so";

using Allocate = int (*)(void**, size_t, size_t);
using Free = void (*)(void*);

// Never destroyed: torch frees blocks until the very end of the process.
Pool* pool = nullptr;
Allocate libc_allocate = nullptr;
Free libc_free = nullptr;
std::vector<Slot>* allocate_slots = nullptr;
std::atomic<bool> serving{false};
std::atomic<size_t> passed{0};
std::mutex changing;  // install and uninstall

thread_local Life next_life = Life::kShort;

int allocate_block(void** block, size_t alignment, size_t bytes) noexcept {
    const Life life = std::exchange(next_life, Life::kShort);
    if (bytes >= kLeast && alignment <= pool->page()) {
        if (void* found = pool->allocate(bytes, life)) {
            *block = found;
            return 0;
        }
        passed.fetch_add(1, std::memory_order_relaxed);
    }
    return libc_allocate(block, alignment, bytes);
}

void free_block(void* block) noexcept {
    if (!pool->owns(block)) return libc_free(block);
    if (pool->free(block)) return;
    std::fputs("encke.memory: free of an address where no block of the pool begins\n", stderr);
    std::abort();
}

// What the slots lead to, if that is glibc for all of them; else null and the reason.
void* libc_target(const std::vector<Slot>& slots, const char* function, std::string& reason) {
    void* const version = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    const std::string libc = version == nullptr ? "" : file_of(version);
    void* target = nullptr;
    if (slots.empty()) {
        reason = std::string(kLibrary) + " has no slot for " + function +
                 " that can be replaced on this processor";
        return nullptr;
    }
    for (const Slot& slot : slots) {
        target = target_of(slot, function);
        const std::string file = file_of(target);
        if (file == libc) continue;
        reason = std::string(function) + " is not glibc's here but that of " +
                 (file.empty() ? "an unknown library" : file);
        return nullptr;
    }
    return target;
}

std::string first_install(size_t bytes) {
    std::string reason;
    if (dlsym(RTLD_DEFAULT, "gnu_get_libc_version") == nullptr)
        return "the C library is not glibc";
    if (!is_loaded(kLibrary)) return std::string(kLibrary) + " is not loaded";
    const auto allocating = find_slots(kLibrary, "posix_memalign");
    const auto freeing = find_slots(kLibrary, "free");
    void* const allocates = libc_target(allocating, "posix_memalign", reason);
    if (allocates == nullptr) return reason;
    void* const frees = libc_target(freeing, "free", reason);
    if (frees == nullptr) return reason;

    if (pool == nullptr) {
        auto* made = new Pool;
        if (!made->reserve(bytes)) {
            delete made;
            return "the system did not let the process reserve " + std::to_string(bytes >> 20) +
                   " MB of address space";
        }
        pool = made;
        if (pthread_atfork([] { pool->lock(); }, [] { pool->unlock(); },
                           [] { pool->renew_lock(); }) != 0) {
            pool = nullptr;
            delete made;
            return "no memory is left to prepare for fork";
        }
    }
    libc_allocate = reinterpret_cast<Allocate>(allocates);
    libc_free = reinterpret_cast<Free>(frees);
    // From here on blocks of the pool are recognised; before that there must be none.
    if (!replace(freeing, reinterpret_cast<void*>(&free_block)))
        return "the pages that hold " + std::string(kLibrary) + "'s slots cannot be written to";
    allocate_slots = new std::vector<Slot>(allocating);
    return "";
}

}  // namespace

std::string install(size_t bytes) {
    std::lock_guard<std::mutex> guard(changing);
    if (serving) return "";
    if (allocate_slots == nullptr) {
        std::string reason = first_install(bytes);
        if (!reason.empty()) return reason;
    }
    pool->keep_nothing(false);
    if (!replace(*allocate_slots, reinterpret_cast<void*>(&allocate_block)))
        return "the pages that hold " + std::string(kLibrary) + "'s slots cannot be written to";
    serving = true;
    return "";
}

void uninstall() {
    std::lock_guard<std::mutex> guard(changing);
    if (!serving) return;
    replace(*allocate_slots, reinterpret_cast<void*>(libc_allocate));
    serving = false;
    pool->keep_nothing(true);
}

bool is_installed() { return serving; }

void expect_long_life() { next_life = Life::kLong; }

Pool* installed_pool() { return allocate_slots == nullptr ? nullptr : pool; }

size_t passed_on() { return passed; }

}  // namespace encke::memory
