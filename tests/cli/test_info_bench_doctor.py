"""What the commands that look and measure report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from encke.bound import Absolute, PointwiseRelative
from encke.cli import main, measure
from encke.cli.bench import rows_to_measure
from encke.cli.doctor import openmp_runtimes
from encke.codec import Packed, names


def test_info_tells_the_header_without_decoding(
    npy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["compress", str(npy), "--range", "1e-2", "--codec", "fixed"])
    monkeypatch.setattr(Packed, "decompress", lambda *_: pytest.fail("info decoded a tensor"))
    capsys.readouterr()
    packed = npy.with_suffix(".encke")
    assert main(["info", str(packed), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (facts,) = report["tensors"]
    assert (facts["shape"], facts["dtype"], facts["codec"]) == ([24, 40], "float32", "fixed")
    assert (facts["bound"], facts["bound_number"], facts["checksum"]) == ("range", 1e-2, "ok")
    assert facts["bytes"] == report["bytes"] == packed.stat().st_size
    assert facts["ratio"] == pytest.approx(24 * 40 * 4 / packed.stat().st_size)
    assert main(["info", str(packed)]) == 0
    assert "range 0.01" in capsys.readouterr().out


def test_info_lists_the_members_of_an_archive(
    npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compress", str(npz), "--abs", "1e-2", "--codec", "fixed"])
    capsys.readouterr()
    assert main(["info", str(npz.with_suffix(".encke")), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["archive"] is True
    assert [facts["name"] for facts in report["tensors"]] == ["first", "second", "wide"]


def test_info_refuses_a_stream_that_fails_its_checksum(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compress", str(npy), "--abs", "1e-2", "--codec", "fixed"])
    packed = npy.with_suffix(".encke")
    blob = bytearray(packed.read_bytes())
    blob[-9] ^= 1
    packed.write_bytes(blob)
    assert main(["info", str(packed)]) == 2
    assert "checksum" in capsys.readouterr().err


def test_a_stream_without_checksum_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import encke

    packed = encke.compress(torch.ones(5), Absolute(0.1), codec="fixed")
    (tmp_path / "x.encke").write_bytes(packed.to_bytes(checksum=False))
    assert main(["info", str(tmp_path / "x.encke"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"][0]["checksum"] == "none"


def test_bench_measures_the_codecs_asked_for(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    codecs = "fixed,fixed+dither,entropy"
    assert main(["bench", str(npy), "--codecs", codecs, "--repeat", "1", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tensors"]
    assert [(row["codec"], row["dither"]) for row in table["codecs"]] == rows_to_measure(codecs)
    for row in table["codecs"]:
        assert row["ratio"] > 1
        assert 0 < row["error_over_bound"] <= 1
        assert min(row["encode_gbps"], row["decode_gbps"], row["memcpy_gbps"]) > 0
    assert torch.get_num_threads() == threads


def test_bench_says_in_words_why_a_codec_cannot(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(npy), "--rate", "4", "--codecs", "fixed", "--repeat", "1"]) == 0
    assert "keeps an error, not a rate of 4 bits" in capsys.readouterr().out


def test_bench_without_codecs_measures_all_and_dithers_two() -> None:
    rows = rows_to_measure(None)
    assert [name for name, dither in rows if not dither] == list(names())
    assert [name for name, dither in rows if dither] == ["fixed", "entropy"]


def test_bench_refuses_an_unknown_codec(npy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(npy), "--codecs", "gzip"]) == 2
    assert "gzip" in capsys.readouterr().err


def test_comparison_agrees_with_the_obvious_computation() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5000, generator=generator)
    y = x + 0.01 * torch.randn(5000, generator=generator)
    found = measure.compare(x, y)
    error = y.double().numpy() - x.double().numpy()
    assert found.max_error == np.abs(error).max()
    assert found.max_pointwise == pytest.approx(np.abs(error / x.double().numpy()).max())
    extent = float(x.max()) - float(x.min())
    assert found.psnr == pytest.approx(20 * np.log10(extent / np.sqrt((error**2).mean())))
    assert measure.psnr(x, x) == float("inf")


def test_comparison_sees_a_lost_nan_and_a_zero_that_is_none_any_more() -> None:
    x = torch.tensor([0.0, float("nan"), 1.0])
    assert measure.compare(x, x).nonfinite_kept
    assert not measure.compare(x, torch.tensor([0.0, 0.0, 1.0])).nonfinite_kept
    assert measure.compare(x, torch.tensor([float("nan")] * 3)).max_error == float("inf")
    assert not measure.compare(
        x, torch.tensor([0.0, float("nan"), float("inf")])
    ).nonfinite_kept
    assert measure.compare(x, torch.tensor([1e-9, float("nan"), 1.0])).max_pointwise == float(
        "inf"
    )


def test_error_over_bound_uses_the_bounds_own_unit() -> None:
    x = torch.logspace(-3, 3, 2000)
    found = measure.measure(x, PointwiseRelative(0.05), codec="fixed", repeat=1)
    assert 0.1 < found.error_over_bound <= 1
    assert found.comparison.max_error > found.promised


def test_doctor_reports_the_installation_and_passes_its_self_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["torch"] == torch.__version__
    assert report["backend"] in ("native", "reference")
    assert (report["native_problem"] is None) == (report["isa"] is not None)
    assert report["self_test"]["failed"] == []
    assert report["self_test"]["trials"] >= 2 * len(names())


def test_doctor_exits_1_when_a_codec_breaks_its_bound(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from encke.codec.mask import Mask

    honest = Mask.decode
    monkeypatch.setattr(Mask, "decode", lambda self, *given: ~honest(self, *given))
    assert main(["doctor"]) == 1
    assert "failed: mask" in capsys.readouterr().out


def test_openmp_runtimes_are_found_by_name(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    row = "7f00-7f01 r-xp 00000000 08:01 12 "
    maps.write_text(
        f"{row}/usr/lib/libgomp.so.1\n{row}/usr/lib/libgomp.so.1\n{row}/opt/a b/libomp.so\n"
        f"{row}/usr/lib/libc.so.6\n7f00-7f01 rw-p 00000000 00:00 0\n"
    )
    assert openmp_runtimes(maps) == ["/opt/a b/libomp.so", "/usr/lib/libgomp.so.1"]
    assert openmp_runtimes(tmp_path / "absent") == []


def test_doctor_says_what_tensors_on_a_gpu_would_get(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from encke.cli import self_test
    from encke.ops import select

    monkeypatch.setattr(self_test, "trials", lambda: iter(()))
    monkeypatch.setattr(select, "triton_problem", lambda: "Triton is not there; pip install it")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "Triton is not there; pip install it" in out
    monkeypatch.setattr(select, "triton_problem", lambda: None)
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["triton_problem"] is None
    assert report["gpu"] == [] or report["gpu"][0]["backend"] == "triton"
