"""Tests of the Triton kernels in Triton's interpreter.

It must be chosen before Triton is imported, and other tests import Triton without it. So
`tests/ops/test_triton.py` runs this folder in processes of its own, and without
`TRITON_INTERPRET=1` nothing here is collected.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "ops"))
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
