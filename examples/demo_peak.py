"""How far the resident set rises in a step: examples/demo.py starts this as its own process.

    python examples/demo_peak.py STATE

So the allocator can be told to give freed memory back at once, which it reads only when a
process starts: see `encke.tape.peak`. Prints the bytes of the plain step and of the one with
the tape, medians over steps that take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from demo_checks import Settled, gradients

import encke
from encke.tape.peak import Peak

TIMES = 3
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}


def measure(state: dict[str, Any]) -> list[int]:
    """The medians, in a process of their own.

    state  networks: state_dicts of the plain and the attached one; tape: that of the tape;
           options: of `attach`; batch: images and labels
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        torch.save(state, path)
        done = subprocess.run(
            [sys.executable, __file__, str(path)],
            env={**os.environ, **_ALLOCATOR},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: list[int] = json.loads(done.stdout)
    return found


def main() -> None:
    from demo import build_network

    state = torch.load(sys.argv[1], weights_only=True)
    networks = []
    for weights in state["networks"]:
        networks.append(build_network())
        networks[-1].load_state_dict(weights)
    tape = encke.attach(networks[1], **state["options"])
    tape.load_state_dict(state["tape"])
    tape.policy = Settled(tape.policy, check=False)
    rises: list[list[int]] = [[], []]
    for _ in range(TIMES + 1):
        for network, found in zip(networks, rises, strict=True):
            with Peak() as peak:
                gradients(network, state["batch"])
            found.append(peak.bytes)
    # The first of each also loads code and makes thread pools.
    print(json.dumps([round(statistics.median(found[1:])) for found in rises]))


if __name__ == "__main__":
    main()
