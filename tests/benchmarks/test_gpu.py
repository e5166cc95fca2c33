"""What is written down about GPUs is about the kernels as they are, and honest without one."""

from __future__ import annotations

import csv
import importlib.util
from typing import Any

import pytest
import torch

import gpu
import gpu_kernels

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton has no package for this system, so there is nothing to compile",
)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with gpu_kernels.TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@needs_triton
def test_the_table_has_every_kernel_for_every_target_as_the_code_is_now(
    rows: list[dict[str, str]],
) -> None:
    found = {(r["kernel"], r["variant"], r["target"]) for r in rows}
    expected = {
        (v.kernel, v.name, target)
        for v in gpu_kernels.variants()
        for target in gpu_kernels.TARGETS
    }
    assert found == expected
    digest = gpu_kernels.source_digest()
    assert {r["source"] for r in rows} == {digest}, "the kernels have changed: make gpu-check"


@needs_triton
def test_every_kernel_that_is_launched_is_in_the_table() -> None:
    from encke.ops.triton.kernels import (
        fixed_decode,
        fixed_encode,
        group,
        index,
        mask,
        statistics,
    )

    modules = (fixed_decode, fixed_encode, group, index, mask, statistics)
    # Kernels are told from what they call by arguments that must not be specialised on.
    launched = {
        (module.__name__, name)
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "do_not_specialize", None) and value.__module__ == module.__name__
    }
    assert launched == {
        (v.function.__module__, v.function.__name__) for v in gpu_kernels.variants()
    }


def test_no_kernel_fuses_a_product_and_a_sum(rows: list[dict[str, str]]) -> None:
    assert {r["fused_multiply_adds"] for r in rows} == {"0"}


def test_derived_times_follow_from_the_bytes_beside_them(rows: list[dict[str, str]]) -> None:
    for r in rows:
        moved = float(r["read_bytes_a_value"]) + float(r["written_bytes_a_value"])
        size = {"i64": 8, "float64": 8, "i32": 4, "float32": 4, "i16": 2}.get(
            r["variant"].split()[0], 2 if "16" in r["variant"] else 1
        )
        expected = moved / size / float(r["memory_gb_s"]) * 1e3
        assert float(r["derived_ms_a_gb"]) == pytest.approx(expected, rel=2e-3)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", gpu_kernels.TARGETS)
def test_a_kernel_compiles_without_a_gpu(target: str) -> None:
    variant = next(v for v in gpu_kernels.variants() if v.kernel == "mask affine")
    line = gpu_kernels.row(variant, target)
    assert int(str(line["registers"])) > 0
    assert line["fused_multiply_adds"] == 0


def test_without_a_gpu_the_benchmark_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "device", lambda: None)
    assert gpu.main([]) == 2
    shown = capsys.readouterr()
    assert "nothing to measure" in shown.err
    assert "make gpu-check" in shown.err
    assert shown.out == ""


def test_a_gpu_is_wanted_not_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if not (torch.cuda.is_available() or torch.xpu.is_available()):
        assert gpu.device() is None


def test_the_table_of_speeds_shows_measured_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts: dict[str, Any] = {"gpu": "G", "way": "fixed", "tensor": "relu", "megabytes": 1}
    speeds = {"ratio": 9.5, "encode": 900.0, "decode": 1100.0, "copy": 1500.0}
    shown = gpu.table([gpu.Speed(**facts, **speeds, encode_with_wait=None)])
    assert "1100" in shown
    assert "cuSZp2, A100 (reported)" in shown
    assert "332" in shown
