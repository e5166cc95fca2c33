"""The cluster's example as torchrun starts it: two ranks that stop and go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import encke

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: The package under test: as installed it has the native kernels, in the tree maybe not.
PACKAGE = Path(encke.__file__).parents[1]


def torchrun(*arguments: str) -> str:
    """What the training prints on two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "cluster" / "train.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_cluster_example_trains_on_two_ranks_and_goes_on(tmp_path: Path) -> None:
    options = ["--wire", "entropy", "--steps", "50", "--checkpoint", str(tmp_path)]
    first = torchrun(*options)
    losses = [float(found) for found in re.findall(r"step \d+: loss ([0-9.]+)", first)]
    sent, plain = (
        int(number.replace(",", ""))
        for number in re.findall(r"rank 0 sent ([0-9,]+) bytes for ([0-9,]+) bytes", first)[0]
    )
    assert sent < plain / 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.pt", "1.pt"]
    again = torchrun(*options)
    went_on = re.findall(r"step (\d+): loss ([0-9.]+)", again)
    assert went_on[0][0] == "50"
    assert float(went_on[0][1]) < losses[0] / 2
