"""How many processors this process may use."""

from __future__ import annotations

import os
import sys


def usable() -> int:
    """Those that the scheduler allows: fewer than the machine has in a container or job.

    >>> usable() >= 1
    True
    """
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
