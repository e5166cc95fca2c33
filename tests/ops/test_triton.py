"""The Triton backend where there is no GPU: interpreted, selected, missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from encke.errors import BackendError
from encke.ops import select, triton

FOLDER = Path(__file__).parents[1] / "triton_interpreted"
MODULES = sorted(path.name for path in FOLDER.glob("test_*.py"))
#: Two processes of about the same length, since each takes seconds to import torch and Triton.
LONGEST = "test_fixed.py"
HALVES = {"fixed": [LONGEST], "others": [name for name in MODULES if name != LONGEST]}

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton has no package for this system, so there is nothing to interpret",
)


def interpreted(modules: list[str]) -> subprocess.CompletedProcess[str]:
    """Run modules of the folder with Triton's interpreter."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *(str(FOLDER / name) for name in modules)],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=FOLDER.parent.parent,
        capture_output=True,
        text=True,
    )


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES)
def test_interpreted_kernels_agree_with_the_reference(half: str) -> None:
    done = interpreted(HALVES[half])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@needs_triton
def test_cpu_tensors_are_refused_without_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="TRITON_INTERPRET=1"):
        select.select(torch.device("cpu"), "triton")


@pytest.mark.parametrize(
    ("device", "there", "expected"),
    [
        ("cuda", True, "triton"),
        ("xpu", True, "triton"),
        ("cuda", False, "reference"),
        ("mps", True, "reference"),
    ],
)
def test_the_device_decides(
    device: str, there: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there and importlib.util.find_spec("triton") is None:
        pytest.skip("Triton has no package for this system")
    monkeypatch.delenv("ENCKE_BACKEND", raising=False)
    monkeypatch.setattr(select, "triton_problem", lambda: None if there else "gone")
    select._by_rule.cache_clear()
    try:
        assert select.select(torch.device(device)).name == expected
    finally:
        select._by_rule.cache_clear()


def test_the_host_has_its_own_backend_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENCKE_BACKEND", "triton")
    assert select.of_host().name in ("native", "reference")


def test_a_missing_triton_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # an import now fails
    reason = triton.problem()
    assert reason is not None
    assert "pip install triton" in reason
    with pytest.raises(BackendError, match="Triton is not there"):
        triton.load()
