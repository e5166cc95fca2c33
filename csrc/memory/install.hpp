// torch's CPU blocks come from the pool: installing that, and taking it back.
#pragma once

#include <cstddef>
#include <string>

#include "memory/pool.hpp"

namespace encke::memory {

// Blocks of torch from 64 KB on come from a pool that reserves `bytes` of address space; the
// rest goes to the C library, and so does what the pool has no room for. Empty on success,
// else a sentence that says why nothing was changed.
std::string install(size_t bytes);

// New blocks come from the C library again. Blocks of the pool stay valid, and are freed as
// before: the pool goes on recognising them. Its free memory is given back.
void uninstall();

bool is_installed();

// The next block that this thread asks for will live for long.
void expect_long_life();

// Null before the first `install` that succeeded.
Pool* installed_pool();

// Requests of 64 KB or more that went to the C library although the pool was installed.
size_t passed_on();

}  // namespace encke::memory
