"""A pool that torch's CPU tensors get their memory from.

torch asks glibc for every CPU tensor with `posix_memalign`, and glibc looks for a little more
than the size of the tensor: the place of a freed tensor is too small for the next one of the
same size. The heap grows, and a training holds much more memory than its tensors need. The
pool serves blocks of 64 KB or more from one reserved range of addresses, uses freed places
again, and gives memory back that has not been needed lately. `install()` starts it.

>>> import encke
>>> pool = encke.memory.pool()
>>> pool.is_installed == (pool.reason == "")  # the reason why not
True
>>> pool.statistics().live <= pool.statistics().resident
True
"""

from __future__ import annotations

from encke.memory.installed import Pool, install, pool, uninstall
from encke.memory.statistics import Statistics

__all__ = ["Pool", "Statistics", "install", "pool", "uninstall"]
