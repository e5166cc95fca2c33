"""Adds golden streams that are not there yet: `python tests/codec/golden/make.py`.

A stream, once here, is never rewritten: what an earlier Encke wrote must decode to the
same bits forever. A change of the format gets a new version and new files beside these.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import encke
from encke.codec.predict import predict_quantiser
from encke.ops.select import load, native_problem

HERE = Path(__file__).parent
MANIFEST = "manifest.json"
SUFFIX = ".stream"
LARGEST = 2048
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def integers(count: int, *, below: int, seed: int = 1) -> list[int]:
    """The same numbers in 0 … below - 1 on every machine and with every library."""
    state, found = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        found.append((state >> 33) % below)
    return found


def rough(count: int, dtype: torch.dtype) -> Tensor:
    """Multiples of 1/32 within ±4, a third of them zero, with some that have no code."""
    numbers = integers(count, below=256)
    x = torch.tensor([0 if n % 3 == 0 else n - 128 for n in numbers], dtype=torch.float64)
    x = (x / 32).to(dtype)
    if count > 300:
        x[100], x[101], x[102] = float("nan"), float("inf"), -float("inf")
        x[130] = torch.finfo(dtype).max
        x[131] = -torch.finfo(dtype).tiny
        x[132], x[133] = torch.finfo(dtype).smallest_normal / 4, -0.0
        x[200:232] = 0
    return x


def smooth(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A bowl of integers, over 64, with one value far out and some zeros."""
    r = torch.arange(rows).view(-1, 1) - rows // 2
    c = torch.arange(columns) - columns // 3
    noise = torch.tensor(integers(rows * columns, below=5)).view(rows, columns)
    x = ((r * r + 2 * c * c - r * c + noise).double() / 64).to(dtype)
    x[1, 2], x[2, 3] = 1000, float("nan")
    x[3, :4] = 0
    return x


def whole(count: int, dtype: torch.dtype, *, below: int = 100) -> Tensor:
    return torch.tensor(integers(count, below=below), dtype=torch.int64).to(dtype)


def cases() -> Iterator[tuple[str, encke.Packed]]:
    """Every golden stream by name."""
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "dither": {"dither": True, "seed": 2**40 + 7},
        "nonzero": {"keep_nonzero": True},
    }
    for dtype in FLOATS:
        kind = str(dtype).removeprefix("torch.")
        for codec in ("fixed", "entropy"):
            for name, given in options.items():
                packed = encke.compress(
                    rough(333, dtype), encke.Absolute(0.125), codec=codec, **given
                )
                yield f"{codec}-{kind}-{name}", packed
            bound: encke.Bound = encke.PointwiseRelative(0.0625)
            packed = encke.compress(rough(333, dtype), bound, codec=codec)
            yield f"{codec}-{kind}-pointwise", packed
        for name, given in options.items():
            x = smooth(24, 40, dtype)
            packed = encke.compress(x, encke.Absolute(0.25), codec="predict", **given)
            yield f"predict-{kind}-{name}", packed
        for bits in (1, 2, 4, 8):
            x = rough(300, dtype)
            x[280] = float("nan")  # so that the second group, a short one, is raw
            packed = encke.compress(x, encke.FixedRate(bits), codec="group", seed=5)
            yield f"group-{kind}-{bits}", packed
        packed = encke.compress(rough(333, dtype)[:150], encke.Lossless(), codec="lossless")
        yield f"lossless-{kind}", packed
    yield from planned()
    yield from lagged()
    yield from holed()
    for dtype in INTEGERS:
        kind = str(dtype).removeprefix("torch.")
        packed = encke.compress(whole(500, dtype), encke.Lossless(), codec="index")
        yield f"index-{kind}", packed
    for dtype in (torch.int32, torch.bool):
        packed = encke.compress(whole(300, dtype, below=2), encke.Lossless(), codec="lossless")
        yield f"lossless-{str(dtype).removeprefix('torch.')}", packed
    packed = encke.compress(whole(1001, torch.bool, below=2), encke.Lossless(), codec="mask")
    yield "mask-bool", packed
    yield from shapes()


def planned() -> Iterator[tuple[str, encke.Packed]]:
    """`predict` in each of its modes, whether or not an encoder would choose them today."""
    plans = {
        "lorenzo-1": (0, 1, 1, 2),
        "lorenzo-2": (0, 1, 2, 2),
        "regression-1": (0, 2, 1, 2, 8),
        "regression-2": (0, 2, 2, 2, 5),
        "interpolation": (0, 3, 0, 2, 3 | 9 << 2, 2 | 4 << 2, 3 | 8 << 2),
        "differences": (0, 3, 1, 0),
    }
    for dtype in (torch.float32, torch.float64):
        x = smooth(24, 40, dtype)
        packed = encke.compress(x, encke.Absolute(0.5), codec="predict")
        for (name, plan), dither in zip(plans.items(), (False, True) * 3, strict=True):
            q = predict_quantiser(x, 0.5, dither=dither, seed=11)
            payload = load("reference").predict_encode(x, tuple(x.shape), q, plan)
            kind = str(dtype).removeprefix("torch.")
            yield f"predict-{kind}-{name}", dataclasses.replace(packed, payload=payload)


def lagged() -> Iterator[tuple[str, encke.Packed]]:
    """`entropy` that predicts rows: wide enough for an encoder to look, coarse enough."""
    for dtype in (torch.float32, torch.float64):
        x = smooth(90, 110, dtype)
        x[40:60, 20:30], x[70, 5] = 0, torch.finfo(dtype).max
        kind = str(dtype).removeprefix("torch.")
        for name, given in (
            ("plain", {}),
            ("dither", {"dither": True, "seed": 6}),
            ("nonzero", {"keep_nonzero": True}),
        ):
            packed = encke.compress(x, encke.Absolute(8.0), codec="entropy", **given)
            if not packed.payload[7] & 2:
                raise SystemExit("entropy did not predict; choose another tensor")
            yield f"entropy-{kind}-rows-{name}", packed


def holed() -> Iterator[tuple[str, encke.Packed]]:
    """Fields with holes: each codec for values, several patterns, plans of each kind."""
    for dtype in FLOATS:
        kind = str(dtype).removeprefix("torch.")
        x = smooth(24, 40, dtype)
        x[5:15, 8:20], x[18:20, 3:30], x[0, 20:24] = 10000, float("nan"), -float("inf")
        for codec in ("fixed", "entropy", "predict"):
            packed = encke.compress(x, encke.Absolute(0.25), codec=codec, fill=10000)
            yield f"holes-{codec}-{kind}", packed
    single = torch.where(x.float() > 9999, float("nan"), x.float()).expand(3, 24, 40)
    for error in (0.02, 4.0):
        packed = encke.compress(single, encke.Absolute(error), codec="predict")
        yield f"holes-predict-planes-{error:g}", packed
    packed = encke.compress(single, encke.Absolute(0.5), codec="predict", dither=True, seed=9)
    yield "holes-predict-dither", packed
    patterns = torch.arange(40, dtype=torch.int32) + 0x7FC00000
    many = torch.cat([patterns.view(torch.float32), smooth(4, 10, torch.float32).view(-1)])
    yield "holes-many-patterns", encke.compress(many, encke.Absolute(1.0), fill=0.0)
    yield (
        "holes-alone",
        encke.compress(torch.full((5, 3), 1e36), encke.Absolute(1.0), fill=1e36),
    )


def shapes() -> Iterator[tuple[str, encke.Packed]]:
    """Layouts, ends of chunks and tensors of next to nothing."""
    image = rough(120, torch.float32).view(1, 4, 5, 6).permute(0, 3, 1, 2)
    sparse = torch.zeros(65536 + 700)
    sparse[65530:65540] = rough(10, torch.float32)
    bound = encke.Absolute(0.0625)
    for codec in ("fixed", "entropy", "predict"):
        yield f"{codec}-channels-last", encke.compress(image, bound, codec=codec)
        yield f"{codec}-scalar", encke.compress(torch.tensor(-2.5), bound, codec=codec)
        yield f"{codec}-empty", encke.compress(torch.zeros(3, 0, 2), bound, codec=codec)
    for codec, dither in (("entropy", False), ("entropy", True), ("predict", False)):
        packed = encke.compress(sparse, bound, codec=codec, dither=dither, seed=3)
        yield f"{codec}-two-chunks{'-dither' if dither else ''}", packed
    packed = encke.compress(sparse[-8192 - 100 :], bound, codec="fixed")
    yield "fixed-two-chunks", packed
    steps = torch.arange(8192 + 40) // 8192 * 1000 - 5
    yield "index-two-chunks", encke.compress(steps, encke.Lossless(), codec="index")


def digest(x: Tensor) -> str:
    """SHA-256 of the values' bytes, in the order of the indices."""
    raw = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()


def entry(blob: bytes) -> dict[str, Any]:
    """What the manifest says about a stream; both backends must give the same."""
    packed = encke.Packed.from_bytes(blob)
    backends = ["reference"] + (["native"] if native_problem() is None else [])
    decoded = [packed.decompress(backend=name) for name in backends]
    if len({digest(y) for y in decoded}) != 1:
        raise SystemExit(f"backends do not agree on {packed!r}; nothing golden about it")
    return {
        "codec": packed.codec,
        "dtype": str(packed.dtype).removeprefix("torch."),
        "shape": list(packed.shape),
        "strides": list(decoded[0].stride()),
        "bound": repr(packed.bound),
        "stream": hashlib.sha256(blob).hexdigest(),
        "decoded": digest(decoded[0]),
    }


def add(folder: Path) -> list[str]:
    """The names of the streams that were added to `folder`."""
    listing = folder / MANIFEST
    manifest: dict[str, Any] = json.loads(listing.read_text()) if listing.exists() else {}
    added = []
    for name, packed in cases():
        path = folder / (name + SUFFIX)
        if path.exists() != (name in manifest):
            raise SystemExit(
                f"{path.name} and {MANIFEST} do not fit each other; put back the one that was "
                "changed, golden streams are not rewritten"
            )
        if path.exists():
            if hashlib.sha256(path.read_bytes()).hexdigest() != manifest[name]["stream"]:
                raise SystemExit(f"{path.name} was changed; put it back")
            continue
        blob = packed.to_bytes()
        if len(blob) > LARGEST:
            raise SystemExit(f"{path.name} would have {len(blob)} bytes, most is {LARGEST}")
        manifest[name] = entry(blob)
        path.write_bytes(blob)
        added.append(name)
    if added:
        listing.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return added


if __name__ == "__main__":
    names = add(HERE)
    print(f"added {len(names)} streams: {', '.join(names) or 'none'}", file=sys.stderr)
