"""Damaged, hostile and half-written files: refused, or loaded as far as they are whole."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import encke
from encke import store
from encke.codec.frames import frame_of
from encke.errors import EnckeError, OutputError
from encke.store import StateReader

EXPECTED = (EnckeError, OSError)


def saved(path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = {f"layer.{n}.weight": torch.randn(40, 60) for n in range(4)}
    state |= {"large": torch.randn(300, 300), "number": torch.tensor(3)}
    moments = {"exp_avg": torch.randn(99, 20), "exp_avg_sq": torch.rand(99, 20)}
    optimizer = {"state": {0: moments}, "param_groups": []}
    store.save(path, state, optimizer, bounds={"large": encke.Absolute(0.1)},
               moments=store.Moments())  # fmt: skip
    return store.load(path)["model"]


def equal(found: Any, truth: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(x, truth[name]) for name, x in found.items())


def damaged(raw: bytes, chance: random.Random) -> bytes:
    changed = bytearray(raw)
    kind = chance.randrange(5)
    if kind == 0:
        changed[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        return raw[: chance.randrange(len(raw))]
    elif kind == 2:
        start = chance.randrange(len(raw))
        length = min(chance.randrange(1, 200), len(raw) - start)
        changed[start : start + length] = chance.randbytes(length)
    elif kind == 3:
        start = chance.randrange(len(raw))
        del changed[start : start + chance.randrange(1, 50)]
    else:
        changed += chance.randbytes(chance.randrange(1, 50))
    return bytes(changed)


def test_a_damaged_file_is_refused_or_loaded_where_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    truth = saved(path)
    raw = path.read_bytes()
    chance = random.Random(1)
    outcomes = {"refused": 0, "partly": 0}
    for _ in range(300):
        changed = damaged(raw, chance)
        if changed == raw:
            continue
        path.write_bytes(changed)
        with pytest.raises(EXPECTED):
            store.load(path)
        try:
            found = store.load(path, partial=True)
        except EXPECTED:
            outcomes["refused"] += 1
            continue
        outcomes["partly"] += 1
        assert found["missing"]
        assert equal(found.get("model", {}), truth)
    assert min(outcomes.values()) > 10


def resealed(raw: bytes, index: Any) -> bytes:
    """A file with another index, and checksums that are right."""
    offset = struct.unpack_from("<Q", raw, len(raw) - 36)[0]
    text = json.dumps(index).encode("utf-8", "surrogatepass")
    frame = frame_of(text, level=1)
    footer = struct.pack("<QQQI4s", offset, len(frame), len(text), zlib.crc32(frame), b"ENCS")
    return raw[:offset] + frame + footer + struct.pack("<I", zlib.crc32(footer))


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy of a JSON value with one place changed."""
    odd = [None, -1, 0, 1, 2**62, 1e300, "", "x", [], {}, True, [1, 2, 3], "float32"]
    if isinstance(value, dict) and value and chance.random() < 0.95:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.95:
        place = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value[:place] + value[place + 1 :]
        return [mutated(v, chance) if n == place else v for n, v in enumerate(value)]
    return chance.choice(odd)


@pytest.mark.slow
def test_a_hostile_index_with_right_checksums_never_crashes_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    saved(path)
    raw = path.read_bytes()
    with StateReader(path) as stored:
        index = stored.index
    chance = random.Random(2)
    for _ in range(400):
        path.write_bytes(resealed(raw, mutated(index, chance)))
        for partial in (False, True):
            try:
                store.load(path, partial=partial)
            except EXPECTED:
                continue


@pytest.mark.parametrize(
    "content", [b"", b"ENCS", b"ENCS\1" + bytes(200), os.urandom(500), b"PK\3\4" + bytes(99)]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.encke").write_bytes(content)
    with pytest.raises(encke.CorruptStreamError, match=r"a\.encke"):
        store.load(tmp_path / "a.encke")


def test_a_newer_format_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    saved(path)
    raw = bytearray(path.read_bytes())
    raw[4] = 2
    path.write_bytes(raw)
    with pytest.raises(encke.CorruptStreamError, match="update Encke"):
        store.load(path)


def test_damage_changes_nothing_in_a_model(tmp_path: Path, trained: Any) -> None:
    path = tmp_path / "a.encke"
    store.save(path, trained.model, trained.optimizer)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    with torch.no_grad():
        trained.model[4].weight.zero_()
    before = {n: x.clone() for n, x in trained.model.state_dict().items()}
    with pytest.raises(encke.CorruptStreamError, match="damaged"):
        store.load(path, trained.model, trained.optimizer)
    after = trained.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_a_full_disk_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    store.save(path, {"x": torch.arange(10.0)})
    kept, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(OutputError, match="nothing was changed"):
            store.save(path, {"x": torch.randn(1000, 1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kept, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert torch.equal(store.load(path)["model"]["x"], torch.arange(10.0))
    assert [p.name for p in tmp_path.iterdir()] == ["a.encke"]


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        store.save(tmp_path / "none" / "a.encke", {"x": torch.ones(3)})
    with pytest.raises(OutputError, match="folder"):
        store.save(tmp_path, {"x": torch.ones(3)})


SAVER = """
import sys, torch
from encke import store
torch.set_num_threads(1)
state = {"n": torch.tensor(0), "x": torch.randn(600, 600), "y": torch.randn(600, 600)}
n = int(sys.argv[2])
while True:
    n += 1
    state["n"], state["x"] = torch.tensor(n), torch.full((600, 600), float(n))
    store.save(sys.argv[1], state)
    print(n, flush=True)
"""


@pytest.mark.slow
def test_a_killed_save_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    chance, last = random.Random(3), 0
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path), str(last)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.random() * 0.2)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        found = store.load(path)["model"]
        assert int(found["n"]) > last
        assert bool((found["x"] == float(found["n"])).all())
        last = int(found["n"])
