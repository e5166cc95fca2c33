"""Which machine and which releases a result is from."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from encke.errors import BackendError
from encke.ops.select import select


def environment() -> dict[str, Any]:
    """Releases, backend and processor, as `environment` of docs/study-results.md.

    >>> sorted(environment())
    ['backend', 'encke', 'instruction_set', 'processor', 'python', 'threads', 'torch']
    """
    return {
        "encke": _encke(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "backend": select(torch.device("cpu")).name,
        "instruction_set": _instruction_set(),
        "threads": torch.get_num_threads(),
        "processor": _processor(),
    }


def _encke() -> str:
    try:
        return version("encke")
    except PackageNotFoundError:
        return "0+source"


def _instruction_set() -> str | None:
    from encke.ops import native

    try:
        return native.isa()
    except BackendError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
