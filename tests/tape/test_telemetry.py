"""A log says what each step kept, in the words of docs/telemetry.md, whole lines only."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.tape.observe.telemetry import VERSION, Lines

SCHEMA = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 4)
    )


def train(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.randn(256, 64)).square().mean().backward()


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_every_step_has_a_record_and_the_last_is_written_at_detach(log: Path) -> None:
    model = network()
    tape = encke.attach(model, log=log)
    train(model, 5)
    tape.detach()
    steps = of_kind(rows_of(log), "step")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5]
    for row in steps:
        assert row["version"] == VERSION
        assert 0 < row["stored"] < row["plain"]
        assert row["ratio"] == pytest.approx(row["plain"] / row["stored"])
        assert row["seconds"] >= row["forward_seconds"] > 0
        assert row["resident_peak"] > 0


def test_tensor_records_agree_with_the_tape(log: Path) -> None:
    model = network()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.05)), log=log)
    train(model, 1)
    kept = {str(record.site): record for record in tape.records}
    tape.detach()
    rows = of_kind(rows_of(log), "tensor")
    assert len(rows) == len(kept)
    for row in rows:
        record = kept[str(encke.tape.Site(**row["site"]))]
        assert tuple(row["shape"]) == record.shape
        assert (row["how"], row["codec"], row["why"]) == (record.how, record.codec, record.why)
        assert (row["plain"], row["stored"]) == (record.plain, record.stored)
        assert row["bound"] == pytest.approx(record.error)
        assert (row["of"] is None) == (record.of is None)
    assert {"lossy", "derived"} <= {row["how"] for row in rows}


def test_observed_steps_tell_predicted_and_measured_gradient_errors(log: Path) -> None:
    model = network()
    tape = encke.attach(model, log=log, guard=2, refresh=100)
    train(model, 6)
    tape.detach()
    rows = of_kind(rows_of(log), "tensor")
    used = [use for row in rows for use in row["uses"]]
    assert any(use["parameter"] == "4.weight" and use["predicted"] > 0 for use in used)
    assert all(row["predicted"] > 0 for row in rows if row["uses"] and row["how"] == "lossy")
    checked = [row for row in rows if row["measured"] is not None]
    assert checked
    for row in checked:
        assert row["measured"] == pytest.approx(sum(use["measured"] for use in row["uses"]))


def test_a_quiet_run_has_tensors_only_in_every_fiftieth_step(log: Path) -> None:
    model = network()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.05)), log=log)
    train(model, 101)
    tape.detach()
    rows = rows_of(log)
    assert sorted({row["step"] for row in of_kind(rows, "tensor")}) == [1, 50, 100]
    assert len(of_kind(rows, "step")) == 101


def test_every_thins_out_the_steps(log: Path) -> None:
    model = network()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.05)))
    tape.log_to(log, every=3, tensors=4)
    train(model, 9)
    tape.detach()
    rows = rows_of(log)
    assert [row["step"] for row in of_kind(rows, "step")] == [3, 6, 9]
    assert sorted({row["step"] for row in of_kind(rows, "tensor")}) == [1, 4, 8]


def test_every_field_is_in_the_written_schema(log: Path) -> None:
    model = network()
    tape = encke.attach(model, log=log, guard=2)
    train(model, 3)
    tape.detach()
    assert f"schema version {VERSION}" in SCHEMA
    documented = set(re.findall(r"`(\w+)`", SCHEMA))

    def fields(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*map(fields, value.values()))
        return set().union(*map(fields, value)) if isinstance(value, list) else set()

    assert fields(rows_of(log)) <= documented


def test_a_function_gets_each_record_when_its_step_is_complete() -> None:
    model = network()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.05)))
    got: list[dict[str, Any]] = []
    tape.log_to(got.append)
    train(model, 1)
    assert got == []
    train(model, 1)
    assert [row["step"] for row in of_kind(got, "step")] == [1]
    tape.detach()
    assert [row["step"] for row in of_kind(got, "step")] == [1, 2]


class Board:
    """Has the two methods of TensorBoard's SummaryWriter that are called."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = {}
        self.flushed = 0

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.setdefault(tag, []).append((global_step, scalar_value))

    def flush(self) -> None:
        self.flushed += 1


def test_a_dashboard_gets_curves_of_bytes_and_of_every_bound() -> None:
    model = network()
    tape = encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.05)))
    board = Board()
    tape.log_to(board)
    train(model, 2)
    tape.detach()
    assert [step for step, _ in board.scalars["encke/stored"]] == [1, 2]
    assert all(value > 1 for _, value in board.scalars["encke/ratio"])
    assert "encke/plain" in board.scalars
    assert any(tag.startswith("encke/bound/3/Gelu.self") for tag in board.scalars)
    assert board.flushed == 1


def test_tensorboard_is_never_imported() -> None:
    program = (
        "import sys, torch, encke; from torch import nn; m = nn.Linear(64, 64);"
        "t = encke.attach(m, log=print); m(torch.randn(64, 64)).sum().backward(); t.detach();"
        "sys.exit(any('tensorboard' in name for name in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()
    assert b"'kind': 'step'" in result.stdout


def test_a_program_that_ends_without_detach_leaves_its_records(log: Path) -> None:
    program = (
        "import torch, encke; from torch import nn; m = nn.Linear(64, 64);"
        f"t = encke.attach(m, log={str(log)!r}, slowdown=float('inf'));"
        "[m(torch.randn(64, 64)).sum().backward() for _ in range(3)]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert [row["step"] for row in of_kind(rows_of(log), "step")] == [1, 2, 3]


def test_a_tape_that_is_forgotten_leaves_its_records(log: Path) -> None:
    with encke.activations(encke.RangeRelative(0.05)) as tape:
        pass
    tape.log_to(log)
    with tape:
        output = network()(torch.randn(256, 64))
    del tape, output
    gc.collect()
    assert len(of_kind(rows_of(log), "step")) == 1


def test_nothing_is_recorded_after_detach(log: Path) -> None:
    tape = encke.activations(encke.RangeRelative(0.05))
    tape.log_to(log)
    for _ in range(2):
        with tape:
            network()(torch.randn(256, 64))
        tape.detach()
    assert [row["step"] for row in of_kind(rows_of(log), "step")] == [1]


def test_lines_are_written_whole_and_many_at_a_time(log: Path) -> None:
    lines = Lines(log)
    for number in range(20_000):
        lines.take({"number": number})
        text = log.read_bytes() if number % 500 == 0 else b""
        assert text == b"" or text.endswith(b"\n")
    assert log.stat().st_size < 20_000 * len('{"number":10000}\n')
    lines.flush()
    assert [row["number"] for row in rows_of(log)] == list(range(20_000))


class _HalfWritten:
    """A file that takes half of what it is given and then meets its end."""

    def __init__(self, path: Path, error: BaseException) -> None:
        self._file, self._error = open(path, "ab", buffering=0), error  # noqa: SIM115

    def __enter__(self) -> _HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        raise self._error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_is_taken_back(
    log: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    lines = Lines(log)
    lines.take({"number": 1})
    lines.flush()
    lines.take({"number": 2})
    lines.take({"number": 3})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *_: _HalfWritten(path, error))
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                lines.flush()
        else:
            lines.flush()  # says so in the log of warnings, and lets training go on
    assert [row["number"] for row in rows_of(log)] == [1]
    lines.flush()
    kept = [1, 2, 3] if isinstance(error, KeyboardInterrupt) else [1]
    assert [row["number"] for row in rows_of(log)] == kept


@pytest.mark.parametrize("unfinished", [b'{"number": 2', b"x" * 200_000])
def test_a_line_left_unfinished_is_cut_off_before_the_next(
    log: Path, unfinished: bytes
) -> None:
    log.write_bytes(b'{"number":1}\n' + unfinished)
    lines = Lines(log)
    lines.take({"number": 3})
    lines.flush()
    assert [row["number"] for row in rows_of(log)] == [1, 3]


def test_a_forked_child_does_not_write_its_parents_lines(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(log)
    lines.take({"number": 1})
    monkeypatch.setattr(os, "getpid", lambda: -1)
    lines.flush()
    assert rows_of(log) == []


def test_what_is_not_finite_is_null(log: Path) -> None:
    model = network()
    tape = encke.attach(model, log=log)

    def diverging(x: Tensor) -> Tensor:
        return (x * float("inf")).sum()

    diverging(model(torch.randn(256, 64))).backward()
    tape.detach()
    assert "NaN" not in log.read_text()
    assert "Infinity" not in log.read_text()
    assert rows_of(log)


@pytest.mark.parametrize(
    ("target", "options"), [(7, {}), ("run.jsonl", {"every": 0}), ("x", {"tensors": -1})]
)
def test_a_log_that_cannot_be_is_refused(
    target: Any, options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tape = encke.activations(encke.RangeRelative(0.05))
    with pytest.raises(encke.UnsupportedError, match="allowed"):
        tape.log_to(target, **options)
    assert list(tmp_path.iterdir()) == []
