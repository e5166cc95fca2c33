"""What goes into a file comes back from it, within the bound."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from encke.cli import main


def test_a_npy_comes_back_within_its_bound(npy: Path, field: np.ndarray) -> None:
    packed = npy.with_suffix(".encke")
    assert main(["compress", str(npy), "--abs", "1e-3", "--codec", "entropy"]) == 0
    assert packed.stat().st_size < npy.stat().st_size
    assert main(["decompress", str(packed), "-o", str(npy.with_name("back.npy"))]) == 0
    back = np.load(npy.with_name("back.npy"))
    assert back.dtype == field.dtype
    assert np.abs(back.astype(np.float64) - field).max() <= 1e-3


def test_one_tensor_makes_a_bare_stream(npy: Path) -> None:
    from encke import Packed

    main(["compress", str(npy), "--range", "1e-2", "--codec", "fixed"])
    packed = Packed.from_bytes(npy.with_suffix(".encke").read_bytes())
    assert (packed.shape, packed.codec, packed.bound.kind) == ((24, 40), "fixed", "range")


def test_the_file_holds_the_bytes_that_the_library_makes(npy: Path, field: np.ndarray) -> None:
    import encke

    arguments = ["--abs", "0.01", "--codec", "entropy", "--dither", "--seed", "9"]
    main(["compress", str(npy), *arguments])
    expected = encke.compress(
        torch.from_numpy(field), encke.Absolute(0.01), codec="entropy", dither=True, seed=9
    )
    assert npy.with_suffix(".encke").read_bytes() == expected.to_bytes()


def test_a_npz_comes_back_with_all_its_names(npz: Path) -> None:
    packed = npz.with_suffix(".encke")
    assert main(["compress", str(npz), "--rms", "1e-2", "--codec", "fixed"]) == 0
    npz_back = npz.with_name("back.npz")
    assert main(["decompress", str(packed), "-o", str(npz_back)]) == 0
    before, after = np.load(npz), np.load(npz_back)
    assert before.files == after.files
    for name in before.files:
        rms = np.sqrt(np.mean(before[name].astype(np.float64) ** 2))
        assert after[name].dtype == before[name].dtype
        assert np.abs(after[name].astype(np.float64) - before[name]).max() <= 1e-2 * rms


def test_safetensors_with_bfloat16_come_back(tmp_path: Path) -> None:
    source, packed, back = (
        tmp_path / name for name in ("m.safetensors", "m.encke", "b.safetensors")
    )
    weights = torch.linspace(-1, 1, 640).view(8, 80).to(torch.bfloat16)
    save_file({"layer.weight": weights, "layer.bias": torch.ones(8)}, source)
    assert main(["compress", str(source), "--abs", "0.1", "--codec", "fixed"]) == 0
    assert main(["decompress", str(packed), "-o", str(back)]) == 0
    tensors = load_file(back)
    assert tensors["layer.weight"].dtype == torch.bfloat16
    assert (tensors["layer.weight"].double() - weights.double()).abs().max() <= 0.1
    assert (tensors["layer.bias"] - 1).abs().max() <= 0.1


def test_bfloat16_to_npy_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "w.bin"
    raw.write_bytes(bytes(64))
    arguments = ["--dtype", "bf16", "--shape", "4,8", "--abs", "1", "--codec", "fixed"]
    assert main(["compress", str(raw), *arguments]) == 0
    assert main(["decompress", str(tmp_path / "w.encke")]) == 2
    message = capsys.readouterr().err
    assert "bfloat16" in message
    assert "w.safetensors" in message
    assert (
        main(["decompress", str(tmp_path / "w.encke"), "-o", str(tmp_path / "back.bin")]) == 0
    )
    assert (tmp_path / "back.bin").read_bytes() == bytes(64)


def test_integers_beside_floats_come_back_exactly(tmp_path: Path) -> None:
    source = tmp_path / "mixed.npz"
    steps = np.arange(500, dtype=np.int64) * 3
    flags = steps % 2 == 0
    np.savez(source, steps=steps, flags=flags, values=np.linspace(0, 1, 500))
    arguments = ["--rms", "1e-2", "--codec", "entropy", "--dither", "--verify"]
    assert main(["compress", str(source), *arguments]) == 0
    back = tmp_path / "back.npz"
    assert main(["decompress", str(tmp_path / "mixed.encke"), "-o", str(back)]) == 0
    assert np.array_equal(np.load(back)["steps"], steps)
    assert np.array_equal(np.load(back)["flags"], flags)


def test_an_array_called_file_survives_npz(tmp_path: Path) -> None:
    source, back = tmp_path / "odd.safetensors", tmp_path / "back.npz"
    save_file({"file": torch.ones(3), "a/b": torch.zeros(2)}, source)
    assert main(["compress", str(source), "--abs", "0.5", "--codec", "fixed"]) == 0
    assert main(["decompress", str(tmp_path / "odd.encke"), "-o", str(back)]) == 0
    assert sorted(np.load(back).files) == ["a/b", "file"]


def test_raw_binary_needs_and_checks_dtype_and_shape(
    tmp_path: Path, field: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tmp_path / "field.f32"
    raw.write_bytes(field.tobytes())
    start = ["compress", str(raw), "--abs", "0.1", "--codec", "fixed"]
    assert main(start) == 2
    assert "--dtype and --shape" in capsys.readouterr().err
    assert main([*start, "--dtype", "f32"]) == 2
    assert "--shape is missing" in capsys.readouterr().err
    assert main([*start, "--dtype", "f32", "--shape", "24,41"]) == 2
    assert "3,840 bytes" in capsys.readouterr().err
    assert main([*start, "--dtype", "f32", "--shape", "24,four"]) == 2
    assert main([*start, "--dtype", "f33", "--shape", "24,40"]) == 2
    assert main([*start, "--dtype", "f32", "--shape", "24,40"]) == 0
    assert (
        main(["decompress", str(tmp_path / "field.encke"), "-o", str(tmp_path / "b.raw")]) == 0
    )
    back = np.fromfile(tmp_path / "b.raw", dtype=np.float32).reshape(24, 40)
    assert np.abs(back - field).max() <= 0.1


def test_memory_order_and_byte_order_of_arrays_do_not_matter(tmp_path: Path) -> None:
    values = np.linspace(-5, 5, 600).reshape(20, 30)
    for name, array in {
        "fortran": np.asfortranarray(values),
        "big": values.astype(">f8"),
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
        main(["compress", str(tmp_path / f"{name}.npy"), "--abs", "1e-3", "--codec", "fixed"])
        out = tmp_path / f"{name}-back.npy"
        assert main(["decompress", str(tmp_path / f"{name}.encke"), "-o", str(out)]) == 0
        assert np.abs(np.load(out) - values).max() <= 1e-3


def test_verify_reports_the_measured_error(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--abs", "1e-2", "--codec", "fixed", "--verify", "--json"]
    assert main(["compress", str(npy), *arguments]) == 0
    (facts,) = json.loads(capsys.readouterr().out)["tensors"]
    assert 0 < facts["max_error"] <= facts["promised"] == 1e-2
    assert facts["bound_held"] is True


def test_verify_fails_when_decoding_breaks_the_bound(
    npy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from encke.codec import Packed

    honest = Packed.decompress
    monkeypatch.setattr(Packed, "decompress", lambda self, **how: honest(self, **how) + 1)
    assert main(["compress", str(npy), "--abs", "0.01", "--codec", "fixed", "--verify"]) == 1
    assert "the bound does not hold for field" in capsys.readouterr().err


def test_nothing_is_overwritten_without_force(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = npy.with_suffix(".encke")
    packed.write_bytes(b"precious")
    arguments = ["compress", str(npy), "--abs", "1", "--codec", "fixed"]
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert packed.read_bytes() == b"precious"
    assert main([*arguments, "--force"]) == 0
    assert packed.read_bytes()[:4] == b"ENCK"
    assert main(["decompress", str(packed)]) == 2
    assert main(["decompress", str(packed), "--force"]) == 0


def test_a_failure_while_writing_leaves_neither_output_nor_part(
    npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from encke.codec import archive

    def breaks(streams: dict[str, bytes]) -> list[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "parts", breaks)
    assert main(["compress", str(npz), "--abs", "1", "--codec", "fixed"]) == 2
    assert [path.name for path in npz.parent.iterdir()] == [npz.name]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.pt", b"", "pickle"),
        ("a.xyz", b"", "--dtype and --shape"),
        ("a.npy", b"no numpy file", "not a readable numpy file"),
        ("a.npz", b"no zip file", "not a readable numpy file"),
        ("a.safetensors", b"no such file either", "not a readable safetensors file"),
    ],
)
def test_files_that_cannot_be_read_are_named_with_the_reason(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    complaint: str,
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["compress", str(tmp_path / name), "--abs", "1"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("encke: ")
    assert message.count("\n") == 1
    assert complaint in message


def test_an_array_of_objects_is_not_unpickled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert main(["compress", str(tmp_path / "o.npy"), "--abs", "1"]) == 2
    assert "o.npy" in capsys.readouterr().err


def test_a_dtype_outside_the_format_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "c.npy", np.ones(3, dtype=np.complex64))
    assert main(["compress", str(tmp_path / "c.npy"), "--abs", "1"]) == 2
    assert "complex64" in capsys.readouterr().err


def test_a_missing_safetensors_library_is_said_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "safetensors", None)
    (tmp_path / "m.safetensors").write_bytes(b"")
    assert main(["compress", str(tmp_path / "m.safetensors"), "--abs", "1"]) == 2
    assert "pip install 'encke[files]'" in capsys.readouterr().err


def test_corrupt_files_are_refused_and_nothing_is_written(
    npy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compress", str(npy), "--abs", "1e-2", "--codec", "fixed"])
    packed = npy.with_suffix(".encke")
    blob = bytearray(packed.read_bytes())
    blob[100] ^= 4
    for content in (bytes(blob), b"", b"ENC", bytes(blob)[:-1], b"ENCA" + bytes(blob)):
        packed.write_bytes(content)
        out = npy.with_name("back.npy")
        capsys.readouterr()
        assert main(["decompress", str(packed), "-o", str(out)]) == 2
        assert capsys.readouterr().err.startswith(f"encke: {packed}")
        assert not out.exists()


def test_several_tensors_do_not_fit_in_a_npy(
    npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compress", str(npz), "--abs", "1e-2", "--codec", "fixed"])
    out = npz.with_name("one.npy")
    assert main(["decompress", str(npz.with_suffix(".encke")), "-o", str(out)]) == 2
    assert ".npz or .safetensors" in capsys.readouterr().err
