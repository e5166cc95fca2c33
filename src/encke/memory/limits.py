"""How much memory this process may use: what the pool reserves addresses for."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STATM = Path("/proc/self/statm")
_NEVER_OVERCOMMIT = "2"


def memory() -> int | None:
    """Bytes of memory that the process may use: the machine's, or its cgroup's if those are
    fewer; None where the system does not tell.
    """
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return min([machine, *_cgroup_limits()]) if machine > 0 else None


def _cgroup_limits() -> list[int]:
    """The limits of this process's cgroup and of those around it, version 1 or 2."""
    try:
        lines = _OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    limits: list[int | None] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = _CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        places = [place for place in (folder, *folder.parents) if place.is_relative_to(root)]
        limits += [_number(place / name) for place in places]
    return [limit for limit in limits if limit is not None and limit > 0]


def _number(path: Path) -> int | None:
    """The number in a file; None if it has another word ("max") or is not there."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def refusal(reserve: int) -> str:
    """Why `reserve` bytes of address space should not be reserved; empty if they may be."""
    try:
        if _OVERCOMMIT.read_text().strip() == _NEVER_OVERCOMMIT:
            return (
                "vm.overcommit_memory is 2: reserved addresses would count as memory "
                "that other processes cannot use"
            )
    except OSError:
        pass
    try:
        import resource

        used = int(_STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return ""
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):
        limit, _ = resource.getrlimit(getattr(resource, name))
        # As much as is reserved must be left for everything else.
        if limit != resource.RLIM_INFINITY and used + 2 * reserve > limit:
            return (
                f"{name} limits the process to {limit >> 20} MB of addresses, too few to "
                f"reserve {reserve >> 20} MB"
            )
    return ""
