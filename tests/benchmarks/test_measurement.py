"""The numbers in benchmarks/results mean what their columns say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import records
import targets
import timing
import zero_order
from records import Record


def row(**changes: object) -> Record:
    values: dict[str, object] = {
        "tensor": "large/gaussian 16 MB",
        "shape": "4×4",
        "dtype": "float32",
        "bound": "abs 0.02 of range",
        "codec": "fixed",
        "dither": False,
        "seed": 0,
        "backend": "native",
        "threads": 1,
        "repeats": 7,
        "bytes": 16,
        "ratio": 4.0,
        "encode_relative_to_memcpy": 0.95,
        "decode_relative_to_memcpy": 1.3,
        "encode_relative_to_clone": 1.0,
        "decode_relative_to_clone": 1.5,
        "max_error_over_bound": 0.5,
        "psnr": None,
        "entropy_bits": 7.5,
        "bits": 8.0,
        "overhead_over_entropy": 0.0667,
    }
    return Record(**(values | changes))  # type: ignore[arg-type]


def test_rows_come_back_from_the_file_as_they_were_written(tmp_path: Path) -> None:
    rows = [row(), row(codec="SZ3", backend="", dither=True, entropy_bits=None, psnr=41.5)]
    records.write(tmp_path / "codecs.csv", rows)
    assert records.read(tmp_path / "codecs.csv") == rows


def test_an_error_just_above_its_bound_is_not_rounded_to_it(tmp_path: Path) -> None:
    records.write(tmp_path / "codecs.csv", [row(max_error_over_bound=1.0000001)])
    (kept,) = [v for v in targets.evaluate(tmp_path) if v.target.startswith("bound:")]
    assert kept.status == "missed"


def test_a_partial_run_replaces_its_own_rows_and_keeps_the_others() -> None:
    old = [row(bytes=16), row(codec="entropy", bytes=12)]
    assert [r.bytes for r in records.merged(old, [row(bytes=15)])] == [12, 15]


def test_a_missed_target_names_its_worst_case(tmp_path: Path) -> None:
    slow = row(tensor="large/relu 16 MB", encode_relative_to_memcpy=0.5)
    records.write(tmp_path / "codecs.csv", [row(), slow])
    verdicts = {verdict.target: verdict for verdict in targets.write_summary(tmp_path)}
    encode = verdicts["speed: fixed encode, of memcpy, one thread"]
    assert (encode.status, encode.measured, encode.held, encode.cases) == (
        "missed",
        "0.5",
        1,
        2,
    )
    assert encode.worst_case == "large/relu 16 MB, abs 0.02 of range"
    assert verdicts["speed: fixed decode, of memcpy, one thread"].status == "pass"
    assert verdicts["speed: entropy encode, of memcpy, one thread"].status == "not measured"
    assert (tmp_path / "summary.csv").read_text(encoding="utf-8").count("\n") == len(
        verdicts
    ) + 1


def test_sz3_is_compared_with_the_smaller_of_entropy_and_predict(tmp_path: Path) -> None:
    common = {"tensor": "activation/a", "bound": "range 0.1"}
    fast, slow = 0.4, 0.02
    records.write(
        tmp_path / "codecs.csv",
        [
            row(**common, codec="entropy", bytes=90, encode_relative_to_memcpy=fast),
            row(**common, codec="predict", bytes=80, encode_relative_to_memcpy=0.1),
            row(**common, codec="SZ3", bytes=100, encode_relative_to_memcpy=slow),
            row(**common, codec="SZ3 no prediction", bytes=40, encode_relative_to_memcpy=slow),
        ],
    )
    measured = {verdict.target: verdict.measured for verdict in targets.evaluate(tmp_path)}
    title = "against SZ3: entropy or predict on activation"
    assert measured[f"{title}, ratio over its default's"] == "1.25"
    assert measured[f"{title}, ratio over the best of its algorithms'"] == "0.5"
    assert measured[f"{title}, encoding speed over its default's"] == "5"


def test_entropy_of_two_equal_codes_is_one_bit() -> None:
    x = torch.tensor([-1.0, 1.0] * 500)
    assert zero_order.code_entropy(x, 0.3, dither=False) == pytest.approx(1.0)


def test_knowing_the_dither_class_lowers_the_entropy_of_a_constant() -> None:
    x = torch.full((80_000,), 0.25)
    symbols, classes = zero_order.codes(
        x, zero_order.quantiser.linear(0.5, x.dtype, kind=zero_order.DITHER, seed=3)
    )
    assert classes is not None
    assert zero_order.conditional_entropy(symbols, classes) < 0.2
    assert zero_order.entropy(symbols) > 0.7


def test_exact_zeros_are_one_symbol_of_their_own_under_dither() -> None:
    q = zero_order.quantiser.linear(0.5, torch.float32, kind=zero_order.DITHER, seed=3)
    symbols, _ = zero_order.codes(torch.zeros(1000), q)
    assert set(symbols.tolist()) == {zero_order.EXACT_ZERO}


def test_copier_copies_every_byte() -> None:
    x = torch.arange(1000, dtype=torch.float32)
    copier = timing.Copier(x)
    copier.target.zero_()
    copier()
    assert torch.equal(copier.target, x)
