"""One format: what one backend encodes every other decodes, to the same bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from encke.bound import (
    Absolute,
    Bound,
    FixedRate,
    Lossless,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)
from encke.codec import Packed, compress, names, registry
from encke.ops import native
from encke.ops.select import native_problem

#: Both instruction sets, where this machine has them. Without the native module there is
#: one backend and nothing to compare it with.
SETS = native.isa_available() if native_problem() is None else []

#: Codecs whose bytes the format fixes; `entropy` and `predict` leave an encoder choices.
SAME_BYTES = ("fixed", "group", "mask", "index")
#: Written in Python alone, the same on every backend.
WITHOUT_KERNELS = ("lossless", "zfp")

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"dither": True, "seed": 2**63 + 5},
    {"keep_nonzero": True},
)
QUANTISED: list[tuple[Bound, dict[str, Any]]] = [
    *itertools.product((Absolute(0.3), Absolute(1e-3), RangeRelative(1e-6)), OPTIONS),
    (RmsRelative(0.2), {}),
    (Absolute(1e-30), {}),
]
POINTWISE: list[tuple[Bound, dict[str, Any]]] = [
    (PointwiseRelative(1e-2), {}),
    (PointwiseRelative(0.5), {}),
    (PointwiseRelative(1e-5), {"keep_nonzero": True}),
]
REQUESTS: dict[str, list[tuple[Bound, dict[str, Any]]]] = {
    "fixed": QUANTISED + POINTWISE,
    "entropy": QUANTISED + POINTWISE,
    "predict": QUANTISED,
    "group": [(FixedRate(bits), {"seed": 9}) for bits in (1, 2, 4, 8)] + [(Absolute(5e3), {})],
    "mask": [(Lossless(), {})],
    "index": [(Lossless(), {})],
}
CASES = [
    pytest.param(codec, dtype, id=f"{codec}-{str(dtype).removeprefix('torch.')}")
    for codec in REQUESTS
    for dtype in sorted(registry.by_name(codec).dtypes, key=str)
]


@pytest.fixture
def same_set_afterwards() -> Iterator[None]:
    before = native.isa() if SETS else ""
    yield
    if SETS:
        native.use_isa(before)


def noise(count: int, dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(count)
    x = torch.randn(count, generator=g, dtype=torch.float64) * 3
    if dtype == torch.bool:
        return x > 1
    if not dtype.is_floating_point:
        return (x * 20).clamp(0, 120).to(dtype)
    return torch.where(torch.rand(count, generator=g) < 0.3, 0.0, x).to(dtype)


def populations(dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors that take different paths: sparse, smooth, mixed scales, not finite, short."""
    found = {"noise": noise(9000, dtype), "short": noise(7, dtype), "odd": noise(33, dtype)}
    if not dtype.is_floating_point:
        return {**found, "matrix": noise(33 * 47, dtype).view(33, 47), "none": noise(0, dtype)}
    limits = torch.finfo(dtype)
    mixed = noise(3000, dtype)
    mixed[100:400] *= 1e-4
    mixed[500:700] = mixed[500:700] * 1e4
    mixed[700:800] = 0
    mixed[800:840:2] = limits.tiny / 2
    mixed[900:960:3] = limits.max
    mixed[1000:1100:9] = math.nan
    mixed[1200:1300:7] = -math.inf
    mixed[1400:1500:5] = -0.0
    t = torch.arange(48, dtype=torch.float64)
    smooth = (torch.sin(t / 7)[:, None] * torch.cos(t / 5) * 4).to(dtype)
    return {**found, "mixed": mixed, "smooth": smooth, "empty": noise(0, dtype)}


def bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def every_way(x: Tensor, bound: Bound, codec: str, options: dict[str, Any]) -> None:
    """Encode and decode with the reference and with each instruction set, and compare."""
    reference = compress(x, bound, codec=codec, backend="reference", **options)
    by_set: list[Packed] = []
    for name in SETS:
        native.use_isa(name)
        by_set.append(compress(x, bound, codec=codec, backend="native", **options))
    for packed in by_set:
        assert packed.promised == reference.promised
        if codec in SAME_BYTES:
            assert torch.equal(packed.payload, reference.payload)
    streams = [reference] if codec in SAME_BYTES else [reference, by_set[-1]]
    for packed in streams:
        expected = bits(packed.decompress(backend="reference"))
        for name in SETS:
            native.use_isa(name)
            assert torch.equal(bits(packed.decompress(backend="native")), expected)


def test_every_codec_with_kernels_is_compared() -> None:
    assert set(REQUESTS) | set(WITHOUT_KERNELS) == set(names())


@pytest.mark.usefixtures("same_set_afterwards")
@pytest.mark.parametrize(("codec", "dtype"), CASES)
@pytest.mark.slow
def test_backends_write_and_read_alike(codec: str, dtype: torch.dtype) -> None:
    found = populations(dtype)
    taken = itertools.cycle(found)
    for bound, options in REQUESTS[codec]:
        # Each request meets the hardest tensor and, in turn, one of the others.
        for name in {"mixed" if "mixed" in found else "noise", next(taken)}:
            every_way(found[name], bound, codec, options)


@pytest.mark.usefixtures("same_set_afterwards")
@pytest.mark.parametrize("options", OPTIONS, ids=repr)
@pytest.mark.parametrize("codec", ["fixed", "entropy", "predict"])
@pytest.mark.slow
def test_tensors_of_several_chunks_and_pages_of_dither_agree(
    codec: str, options: dict[str, Any]
) -> None:
    x = noise(65536 + 8192 + 13, torch.float32)
    x[65000:66000] = 0
    every_way(x, Absolute(0.5), codec, options)


@pytest.mark.usefixtures("same_set_afterwards")
@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_instruction_sets_write_the_same_bytes(codec: str, dtype: torch.dtype) -> None:
    for x in populations(dtype).values():
        for bound, options in REQUESTS[codec]:
            payloads = []
            for name in SETS:
                native.use_isa(name)
                payloads.append(
                    compress(x, bound, codec=codec, backend="native", **options).payload
                )
            assert all(torch.equal(payload, payloads[0]) for payload in payloads)
