// The slots through which a loaded library calls functions of other libraries.
#pragma once

#include <string>
#include <vector>

namespace encke::memory {

// Where a library keeps the address of a function that it imports.
struct Slot {
    void** place;
    bool read_only;  // the loader has protected its page (RELRO)
};

// Every slot for `function` in the loaded libraries whose file name is `library`; none on
// processors whose relocations are not known here.
std::vector<Slot> find_slots(const char* library, const char* function);

// Whether a library of that file name is loaded.
bool is_loaded(const char* library);

// The file of the loaded library or program that `address` lies in; empty if there is none.
std::string file_of(const void* address);

// What a call through the slot reaches: its value, or the function that the loader would
// find, if the slot has not been used yet.
void* target_of(const Slot& slot, const char* function);

// Makes every slot call `target`; a page that was read-only is read-only again afterwards.
// False, and nothing has changed, if a page cannot be written to.
bool replace(const std::vector<Slot>& slots, void* target);

}  // namespace encke::memory
