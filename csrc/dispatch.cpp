#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace encke {

namespace portable {
extern const Kernels table;
}
#ifdef ENCKE_HAS_AVX2
namespace avx2 {
extern const Kernels table;
}
#endif

namespace {

struct Choice {
    const char* name;
    const Kernels* kernels;
};

const Choice kPortable{"portable", &portable::table};
#ifdef ENCKE_HAS_AVX2
const Choice kAvx2{"avx2", &avx2::table};

bool avx2_runs_here() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("popcnt");
}
#endif

const Choice* by_name(const char* name) {
    if (std::strcmp(name, "portable") == 0) return &kPortable;
#ifdef ENCKE_HAS_AVX2
    if (std::strcmp(name, "avx2") == 0 && avx2_runs_here()) return &kAvx2;
#endif
    return nullptr;
}

const Choice* first_choice() {
    if (const char* wanted = std::getenv("ENCKE_ISA"))
        if (const Choice* choice = by_name(wanted)) return choice;
    if (const Choice* choice = by_name("avx2")) return choice;
    return &kPortable;
}

std::atomic<const Choice*>& chosen() {
    static std::atomic<const Choice*> choice{first_choice()};
    return choice;
}

}  // namespace

const Kernels& kernels() { return *chosen().load(std::memory_order_relaxed)->kernels; }

}  // namespace encke

extern "C" const char* encke_isa(void) { return encke::chosen().load()->name; }

extern "C" int encke_use(const char* isa) {
    const encke::Choice* choice = encke::by_name(isa);
    if (!choice) return 0;
    encke::chosen().store(choice);
    return 1;
}
