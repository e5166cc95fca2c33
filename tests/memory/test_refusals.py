"""Where the pool cannot be installed, a sentence says why and torch works as before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from pool_process import reason, run

from encke.memory import Statistics, limits

WORKS = "\nassert bool((block(3) @ block(3)) > 0)\nassert now() == encke.memory.Statistics()\n"
REFUSED = "assert not encke.memory.install()\nprint(encke.memory.pool().reason)" + WORKS

MALLOC = """
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
void *malloc(size_t n) { return __libc_malloc(n); }
void free(void *p) { __libc_free(p); }
int posix_memalign(void **p, size_t a, size_t n) {
    return (*p = __libc_memalign(a, n)) ? 0 : 12;
}
"""


def test_before_installation_the_pool_says_that_it_is_not_installed() -> None:
    run(
        """
        pool = encke.memory.pool()
        assert not pool.is_installed and "install" in pool.reason
        assert pool.trim() == 0
        pool.reset_peak()
        encke.memory.uninstall()
        """
        + "assert now() == encke.memory.Statistics()",
        install=False,
    )


def test_the_environment_switches_the_pool_off() -> None:
    assert "ENCKE_POOL=0" in run(REFUSED, install=False, ENCKE_POOL="0")


def test_a_wish_for_huge_pages_is_left_to_torch() -> None:
    assert "huge pages" in run(REFUSED, install=False, C10_THP_MEM_ALLOC_ENABLE="1")


@pytest.mark.skipif(bool(why := reason()), reason=why)
def test_a_limit_on_addresses_is_respected() -> None:
    limit = "resource.setrlimit(resource.RLIMIT_AS, (4000 * MB,) * 2)\n"
    assert "RLIMIT_AS" in run(limit + REFUSED, install=False)


@pytest.mark.skipif(bool(why := reason()), reason=why)
def test_a_mapping_that_the_system_refuses_is_not_an_error() -> None:
    limit = (
        "from encke.memory import limits\n"
        "limits.refusal, limits.memory = lambda reserve: '', lambda: 1 << 40\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4000 * MB,) * 2)\n"
    )
    assert "address space" in run(limit + REFUSED, install=False)


@pytest.mark.skipif(bool(why := reason()), reason=why)
def test_a_replaced_malloc_is_left_alone(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "malloc.c").write_text(MALLOC)
    library = str(tmp_path / "libreplaced.so")
    command = [compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "malloc.c")]
    subprocess.run(command, check=True)
    assert "libreplaced.so" in run(REFUSED, install=False, LD_PRELOAD=library)


def test_a_missing_native_module_is_named() -> None:
    hide = "import sys\nsys.modules['encke.memory._pool'] = None\n"
    assert "native module" in run(hide + REFUSED, install=False)


def test_slots_that_are_not_there_are_named() -> None:
    program = """
    import types, sys
    stub = types.ModuleType("encke.memory._pool")
    stub.install = lambda bytes: "libc10.so has no slot for free"
    stub.is_installed = lambda: False
    sys.modules["encke.memory._pool"] = stub
    assert not encke.memory.install()
    print(encke.memory.pool().reason)
    assert now() == encke.memory.Statistics()
    """
    assert "no slot" in run(program, install=False)


def test_the_memory_of_the_process_is_that_of_its_cgroup_if_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/jobs/one\n")
    (tmp_path / "tree" / "jobs" / "one").mkdir(parents=True)
    (tmp_path / "tree" / "jobs" / "one" / "memory.max").write_text("max\n")
    (tmp_path / "tree" / "jobs" / "memory.max").write_text("1000000\n")
    monkeypatch.setattr(limits, "_OWN_CGROUP", own)
    monkeypatch.setattr(limits, "_CGROUPS", tmp_path / "tree")
    assert limits.memory() == 1000000
    own.write_text("4:cpu,memory:/\n0::/\n")
    (tmp_path / "tree" / "memory").mkdir()
    (tmp_path / "tree" / "memory" / "memory.limit_in_bytes").write_text("2000000\n")
    assert limits.memory() == 2000000


def test_strict_overcommit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "overcommit_memory"
    switch.write_text("2\n")
    monkeypatch.setattr(limits, "_OVERCOMMIT", switch)
    assert "overcommit" in limits.refusal(1 << 30)


def test_statistics_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Statistics().live = 1  # type: ignore[misc]
