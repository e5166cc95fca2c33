// The Python face of the pool; see install.hpp and pool.hpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "memory/install.hpp"

namespace nb = nanobind;
namespace memory = encke::memory;

NB_MODULE(_pool, m) {
    m.doc() = "The pool of encke.memory; see csrc/memory/.";
    m.def("install", &memory::install);
    m.def("uninstall", &memory::uninstall);
    m.def("is_installed", &memory::is_installed);
    m.def("expect_long_life", &memory::expect_long_life);
    m.def(
        "trim",
        [] {
            memory::Pool* pool = memory::installed_pool();
            return pool == nullptr ? size_t{0} : pool->trim();
        },
        nb::call_guard<nb::gil_scoped_release>());
    m.def("reset_peak", [] {
        if (memory::Pool* pool = memory::installed_pool()) pool->reset_peak();
    });
    m.def("take_high_mark", [] {
        memory::Pool* pool = memory::installed_pool();
        return pool == nullptr ? size_t{0} : pool->take_high_mark();
    });
    m.def("statistics", [] {
        memory::Pool* pool = memory::installed_pool();
        const memory::Statistics now =
            pool == nullptr ? memory::Statistics{} : pool->statistics();
        nb::dict fields;
        fields["reserved"] = now.reserved;
        fields["live"] = now.live;
        fields["resident"] = now.resident;
        fields["peak_live"] = now.peak_live;
        fields["peak_resident"] = now.peak_resident;
        fields["fresh"] = now.fresh;
        fields["returned"] = now.returned;
        fields["blocks"] = now.blocks;
        fields["allocations"] = now.allocations;
        fields["passed_on"] = memory::passed_on();
        fields["window_operations"] = now.window_operations;
        fields["window_seconds"] = now.window_seconds;
        return fields;
    });
}
