"""A cell's row: complete, repeatable, and true to what the training kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_cells import small_cell, without_timings
from torch import nn

from encke.study import zoo
from encke.study.cell import prepare, run
from encke.study.measure.holding import Holding
from encke.study.measure.timeline import trace_kept, trace_plain
from encke.study.recompute import recompute
from encke.study.schema import SHAPE, problems
from encke.study.ways import parse

pytestmark = pytest.mark.slow

DOCUMENT = (Path(__file__).parents[2] / "docs" / "study-results.md").read_text()


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """A row of every kind of way."""
    torch.set_num_threads(1)
    ways = ("plain", "checkpoint", "encke", "fixed:range=0.01", "comet", "group", "zfp")
    return {way: run(small_cell(way)) for way in ways}


def test_real_rows_keep_to_the_written_schema(rows: dict[str, dict[str, Any]]) -> None:
    for way, row in rows.items():
        assert row["status"] == "done", row["error"]
        assert problems(row) == [], way


def test_the_schema_on_paper_names_every_key() -> None:
    def keys(shape: Any) -> set[str]:
        if isinstance(shape, dict):
            return set(shape).union(*map(keys, shape.values()))
        return set().union(*map(keys, shape)) if isinstance(shape, tuple | list) else set()

    assert [key for key in sorted(keys(SHAPE)) if f"`{key}`" not in DOCUMENT] == []


def test_a_row_that_departs_from_the_schema_is_told_where(
    rows: dict[str, dict[str, Any]],
) -> None:
    row = dict(rows["encke"])
    row["status"] = "fine"
    row["memory"] = {**row["memory"], "ratio": "large"}
    del row["codecs"]
    row["mood"] = 1
    found = "\n".join(problems(row))
    for said in ("status is 'fine'", "memory.ratio is 'large'", "codecs is missing", "mood"):
        assert said in found


def test_a_cell_run_again_gives_the_same_row_but_for_timings(
    rows: dict[str, dict[str, Any]],
) -> None:
    for way in ("encke", "checkpoint"):
        assert without_timings(run(small_cell(way))) == without_timings(rows[way])


def test_every_way_starts_from_the_same_weights_and_data(
    rows: dict[str, dict[str, Any]],
) -> None:
    starts = [row["curve"][0] for row in rows.values()]
    assert {start["step"] for start in starts} == {0}
    assert len({(start["test_loss"], start["metric"]) for start in starts}) == 1
    for row in rows.values():
        assert row["curve"][-1]["step"] == row["training"]["steps"] == 6
        assert row["metric"]["final"] == row["curve"][-1]["metric"]


def test_what_the_tape_keeps_adds_up(rows: dict[str, dict[str, Any]]) -> None:
    for way in ("encke", "fixed:range=0.01", "comet", "group", "zfp"):
        row = rows[way]
        stored = sum(layer["stored_bytes"] for layer in row["layers"])
        assert stored == sum(row["codecs"].values())
        # At its peak a mask may be there that the values make superfluous a moment later.
        assert stored <= row["memory"]["stored_bytes"] < 1.3 * stored, way
        assert row["memory"]["plain_bytes"] == rows["plain"]["memory"]["plain_bytes"]
        for layer in row["layers"]:
            assert (layer["bound"] is not None) == (layer["how"] == "lossy")
        assert row["error_histogram"]["worst"] <= 1
        assert sum(row["error_histogram"]["counts"]) == row["error_histogram"]["values"]
    assert rows["encke"]["memory"]["ratio"] > 4
    assert rows["plain"]["memory"]["ratio"] == 1
    assert rows["plain"]["layers"] is None


def test_gradient_errors_are_predicted(rows: dict[str, dict[str, Any]]) -> None:
    uses = [use for use in rows["encke"]["gradient_error"] if use["op"] == "Addmm"]
    assert [use["parameter"] for use in uses] == ["1.weight", "3.weight", "5.weight"]
    for use in uses:
        assert 0.5 < use["measured"] / use["predicted"] < 2, use
        assert use["measured"] < use["square"]


def test_the_timeline_rises_in_forward_and_ends_at_nothing(
    rows: dict[str, dict[str, Any]],
) -> None:
    for row in rows.values():
        for name in ("plain", "kept"):
            times, counts = zip(*row["timeline"][name], strict=True)
            assert list(times) == sorted(times)
            assert (times[0], times[-1], counts[0], counts[-1]) == (0, 1, 0, 0)
            assert 0 < row["timeline"]["forward_end"][name] < 1
        assert max(c for _, c in row["timeline"]["plain"]) == row["memory"]["plain_bytes"]


def test_hooks_and_the_tape_count_the_same_bytes() -> None:
    network = zoo.build("resnet_cifar", seed=0, depth=8, width=4)
    x = torch.randn(8, 3, 16, 16)
    tape = parse("encke").fit(network, torch.optim.SGD(network.parameters())).tape
    assert tape is not None
    network(x.clone()).sum().backward()
    holding = Holding(network)
    with tape.paused(), holding.watch():
        loss = network(x.clone()).sum()
    assert holding.bytes == holding.peak == tape.ledger.plain_peak
    loss.backward()
    del loss
    assert holding.bytes == 0


def test_what_is_recomputed_is_held_again() -> None:
    layers = [layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.Tanh())]
    network = nn.Sequential(*layers)
    holding = Holding(network)
    stretches = recompute(network)
    size = 64 * 32 * 4
    with holding.within(stretches):
        with holding.watch():
            loss = network(torch.randn(64, 32)).sum()
        # The input of each of the four stretches; the graph of the sum keeps nothing.
        assert holding.bytes == 4 * size
        loss.backward()
    # The last stretch, back again while the other inputs are still there.
    assert 4 * size < holding.peak <= (4 + 4) * size
    del loss
    assert holding.bytes == 0


def test_save_on_cpu_holds_as_much_where_the_network_is_on_the_cpu() -> None:
    training = prepare(small_cell("save_on_cpu"))
    batch = training.next_batch()
    assert trace_kept(training, batch).peak == trace_plain(training, batch).peak


def test_a_cell_that_raises_is_a_row_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def build():\n    raise ValueError('no such luck')\n")
    row = run(small_cell("plain", models=["broken.py:build"], folder=tmp_path))
    assert problems(row) == []
    assert row["status"] == "failed"
    assert row["error"]["type"] == "ValueError"
    assert row["error"]["message"] == "no such luck"
    assert "broken.py" in row["error"]["traceback"]
