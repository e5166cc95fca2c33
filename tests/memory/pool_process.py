"""Runs a program in a process of its own, where the pool may be installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

#: What every program starts with.
PREAMBLE = """
import gc, os, resource, threading
import torch
import encke.memory

torch.set_num_threads(1)
MB = 1 << 20

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def now():
    return encke.memory.pool().statistics()

def block(megabytes, value=1.0):
    return torch.full((int(megabytes * MB) // 4,), value)

def churn(count, megabytes=0.125):
    for _ in range(count):
        block(megabytes)
"""
INSTALL = """
assert encke.memory.install(), encke.memory.pool().reason
"""


def run(program: str, *, install: bool = True, **environment: str) -> str:
    """What the program prints. It fails the test if it fails, or does not end."""
    source = PREAMBLE + (INSTALL if install else "") + textwrap.dedent(program)
    kept = {k: v for k, v in os.environ.items() if k not in ("ENCKE_POOL", "LD_PRELOAD")}
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=120,
        env=kept | {"OMP_NUM_THREADS": "1"} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def reason() -> str:
    """Why the pool cannot be installed here; empty if it can."""
    return run(
        "encke.memory.install()\nprint(encke.memory.pool().reason)", install=False
    ).strip()
