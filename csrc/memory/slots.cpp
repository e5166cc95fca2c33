#include "memory/slots.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace encke::memory {

namespace {

#if defined(__x86_64__) && defined(__LP64__)
constexpr bool is_import(uint64_t type) {
    return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT;
}
#elif defined(__aarch64__) && defined(__LP64__)
constexpr bool is_import(uint64_t type) {
    return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT;
}
#else
constexpr bool is_import(uint64_t) { return false; }
#endif

template <class Visit>
void each_library(Visit&& visit) {
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            (*static_cast<Visit*>(data))(*info);
            return 0;
        },
        &visit);
}

bool is_called(const dl_phdr_info& info, const char* library) {
    if (info.dlpi_name == nullptr) return false;
    const char* slash = std::strrchr(info.dlpi_name, '/');
    return std::strcmp(slash == nullptr ? info.dlpi_name : slash + 1, library) == 0;
}

const ElfW(Phdr) * header(const dl_phdr_info& info, ElfW(Word) type) {
    for (int i = 0; i < info.dlpi_phnum; ++i)
        if (info.dlpi_phdr[i].p_type == type) return info.dlpi_phdr + i;
    return nullptr;
}

bool contains(const dl_phdr_info& info, const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address) - info.dlpi_addr;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
        const auto& part = info.dlpi_phdr[i];
        if (part.p_type == PT_LOAD && at - part.p_vaddr < part.p_memsz) return true;
    }
    return false;
}

uintptr_t page_of(uintptr_t address) {
    return address & ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
}

// The loader protects whole pages: from the one of the first byte to the last full one.
bool is_protected(const dl_phdr_info& info, uintptr_t address) {
    const auto* relro = header(info, PT_GNU_RELRO);
    if (relro == nullptr) return false;
    const uintptr_t start = info.dlpi_addr + relro->p_vaddr;
    return page_of(start) <= address && address < page_of(start + relro->p_memsz);
}

struct Imports {
    const char* strings = nullptr;
    const ElfW(Sym) * symbols = nullptr;
    struct Table {
        const ElfW(Rela) * entries = nullptr;
        size_t bytes = 0;
    } tables[2];
};

Imports imports_of(const dl_phdr_info& info) {
    Imports found;
    const auto* dynamic = header(info, PT_DYNAMIC);
    if (dynamic == nullptr) return found;
    // glibc has added the load address to the pointers here; musl has not.
    const auto at = [&](ElfW(Addr) pointer) {
        return pointer < info.dlpi_addr ? pointer + info.dlpi_addr : pointer;
    };
    bool has_addends = true;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + dynamic->p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
        const auto value = entry->d_un.d_val;
        switch (entry->d_tag) {
            case DT_STRTAB:
                found.strings = reinterpret_cast<const char*>(at(value));
                break;
            case DT_SYMTAB:
                found.symbols = reinterpret_cast<const ElfW(Sym)*>(at(value));
                break;
            case DT_RELA:
                found.tables[0].entries = reinterpret_cast<const ElfW(Rela)*>(at(value));
                break;
            case DT_RELASZ:
                found.tables[0].bytes = value;
                break;
            case DT_JMPREL:
                found.tables[1].entries = reinterpret_cast<const ElfW(Rela)*>(at(value));
                break;
            case DT_PLTRELSZ:
                found.tables[1].bytes = value;
                break;
            case DT_PLTREL:
                has_addends = value == DT_RELA;
                break;
            default:
                break;
        }
    }
    if (!has_addends) found.tables[1] = {};
    return found;
}

bool protect(const Slot& slot, int protection) {
    const uintptr_t page = page_of(reinterpret_cast<uintptr_t>(slot.place));
    const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return mprotect(reinterpret_cast<void*>(page), bytes, protection) == 0;
}

bool write(const Slot& slot, void* target) {
    if (slot.read_only && !protect(slot, PROT_READ | PROT_WRITE)) return false;
    // Other threads may be calling through the slot.
    std::atomic_ref<void*>(*slot.place).store(target, std::memory_order_release);
    if (slot.read_only) protect(slot, PROT_READ);
    return true;
}

}  // namespace

std::vector<Slot> find_slots(const char* library, const char* function) {
    std::vector<Slot> slots;
    each_library([&](const dl_phdr_info& info) {
        if (!is_called(info, library)) return;
        const Imports imports = imports_of(info);
        if (imports.strings == nullptr || imports.symbols == nullptr) return;
        for (const auto& table : imports.tables) {
            for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
                const auto& entry = table.entries[i];
                if (!is_import(ELF64_R_TYPE(entry.r_info))) continue;
                const auto& symbol = imports.symbols[ELF64_R_SYM(entry.r_info)];
                if (std::strcmp(imports.strings + symbol.st_name, function) != 0) continue;
                const uintptr_t place = info.dlpi_addr + entry.r_offset;
                slots.push_back({reinterpret_cast<void**>(place), is_protected(info, place)});
            }
        }
    });
    return slots;
}

bool is_loaded(const char* library) {
    bool found = false;
    each_library([&](const dl_phdr_info& info) { found |= is_called(info, library); });
    return found;
}

std::string file_of(const void* address) {
    std::string file;
    each_library([&](const dl_phdr_info& info) {
        if (!contains(info, address)) return;
        file = info.dlpi_name != nullptr && *info.dlpi_name != 0 ? info.dlpi_name
                                                                 : "the program itself";
    });
    return file;
}

void* target_of(const Slot& slot, const char* function) {
    void* value = *slot.place;
    bool unresolved = value == nullptr;
    // Until its first call, a slot leads back into its own library, and from there to the
    // loader.
    each_library([&](const dl_phdr_info& info) {
        unresolved |= contains(info, slot.place) && contains(info, value);
    });
    return unresolved ? dlsym(RTLD_DEFAULT, function) : value;
}

bool replace(const std::vector<Slot>& slots, void* target) {
    std::vector<void*> before;
    for (const Slot& slot : slots) before.push_back(*slot.place);
    for (size_t i = 0; i < slots.size(); ++i) {
        if (write(slots[i], target)) continue;
        while (i-- > 0) write(slots[i], before[i]);
        return false;
    }
    return true;
}

}  // namespace encke::memory
