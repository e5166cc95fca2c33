"""Streams that were written once decode to the same bits forever, on every backend."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from encke.codec import Packed, names
from encke.ops import native
from encke.ops.select import native_problem

FOLDER = Path(__file__).parent / "golden"
MANIFEST: dict[str, dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())
BACKENDS = ["reference"]
if native_problem() is None:
    BACKENDS += native.isa_available()


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("encke_golden_make", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load(FOLDER / "make.py")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "reference":
        yield "reference"
        return
    before = native.isa()
    native.use_isa(request.param)
    yield "native"
    native.use_isa(before)


@pytest.mark.parametrize("name", MANIFEST)
def test_a_golden_stream_decodes_to_the_same_bits(name: str, backend: str) -> None:
    said = MANIFEST[name]
    packed = Packed.from_bytes((FOLDER / f"{name}.stream").read_bytes())
    y = packed.decompress(backend=backend)
    assert make.digest(y) == said["decoded"]
    assert list(y.shape) == said["shape"]
    assert list(y.stride()) == said["strides"]
    assert str(y.dtype) == f"torch.{said['dtype']}"
    assert (packed.codec, repr(packed.bound)) == (said["codec"], said["bound"])


def test_no_golden_stream_was_changed_lost_or_left_out() -> None:
    found = {path.stem: path.read_bytes() for path in FOLDER.glob("*.stream")}
    assert set(found) == set(MANIFEST)
    for name, blob in found.items():
        assert hashlib.sha256(blob).hexdigest() == MANIFEST[name]["stream"]
        assert len(blob) <= make.LARGEST


def test_every_codec_but_the_one_of_another_library_has_golden_streams() -> None:
    assert {said["codec"] for said in MANIFEST.values()} == set(names()) - {"zfp"}


def test_codecs_whose_bytes_the_format_fixes_still_write_them() -> None:
    compared = 0
    for name, packed in make.cases():
        if packed.codec in ("fixed", "group", "mask", "index"):
            assert packed.to_bytes() == (FOLDER / f"{name}.stream").read_bytes(), name
            compared += 1
    assert compared > 40


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "golden"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_making_again_adds_what_is_missing_and_rewrites_nothing(copied: Path) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    assert make.add(copied) == []
    manifest = json.loads((copied / "manifest.json").read_text())
    del manifest["mask-bool"]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    (copied / "mask-bool.stream").unlink()
    assert make.add(copied) == ["mask-bool"]
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


@pytest.mark.parametrize("damage", ["changed", "unlisted", "lost"])
def test_making_again_refuses_a_folder_that_was_tampered_with(
    copied: Path, damage: str
) -> None:
    path = copied / "mask-bool.stream"
    if damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    elif damage == "lost":
        path.unlink()
    else:
        manifest = json.loads((copied / "manifest.json").read_text())
        del manifest["mask-bool"]
        (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SystemExit, match="mask-bool"):
        make.add(copied)


def test_inputs_are_the_same_on_every_machine() -> None:
    assert make.integers(4, below=1000) == [774, 153, 196, 870]
