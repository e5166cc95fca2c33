"""The number of threads changes neither a byte of a stream nor a bit of what is decoded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from encke.bound import Absolute, Bound, FixedRate, Lossless, PointwiseRelative, RangeRelative
from encke.codec import Packed, compress, names

COUNT = 1_500_007  # many chunks of every codec, and an odd end

CASES: list[tuple[str, Bound, dict[str, Any]]] = [
    ("fixed", Absolute(0.02), {}),
    ("fixed", Absolute(0.5), {"dither": True, "seed": 5}),
    ("fixed", Absolute(0.1), {"keep_nonzero": True}),
    ("fixed", PointwiseRelative(0.01), {}),
    ("entropy", Absolute(0.02), {}),
    ("entropy", Absolute(1e-5), {}),
    ("entropy", Absolute(0.5), {"dither": True, "seed": 5}),
    ("entropy", Absolute(0.1), {"keep_nonzero": True}),
    ("entropy", PointwiseRelative(0.01), {}),
    ("predict", Absolute(0.02), {}),
    ("predict", Absolute(0.5), {"dither": True, "seed": 5}),
    ("predict", Absolute(0.1), {"keep_nonzero": True}),
    ("group", FixedRate(2), {"seed": 5}),
    ("group", RangeRelative(0.02), {}),
    ("mask", Lossless(), {}),
    ("index", Lossless(), {}),
    ("zfp", Absolute(0.02), {}),
    ("lossless", Lossless(), {}),
]


def input_of(codec: str) -> Tensor:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(COUNT, generator=g)
    if codec == "mask":
        return x > 0
    if codec == "index":
        return (x * 1000).to(torch.int32)
    x[::3] = 0
    x[200_000:400_000] = 0
    x[500_000:900_000:1111] = math.nan
    x[600_000:700_000] *= 1e4
    return x


def with_threads(threads: int, call: Callable[[], Any]) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return call()
    finally:
        torch.set_num_threads(before)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def test_every_codec_is_threaded_here() -> None:
    assert {codec for codec, _, _ in CASES} == set(names())


@pytest.mark.parametrize(("codec", "bound", "options"), CASES, ids=str)
def test_one_thread_and_two_give_the_same(
    codec: str, bound: Bound, options: dict[str, Any]
) -> None:
    x = input_of(codec)

    def packed() -> Packed:
        return compress(x, bound, codec=codec, **options)

    one, two = with_threads(1, packed), with_threads(2, packed)
    assert torch.equal(one.payload, two.payload)
    assert one.promised == two.promised
    decoded = [with_threads(threads, one.decompress) for threads in (1, 2)]
    assert torch.equal(bits(decoded[0]), bits(decoded[1]))


def test_the_choice_of_a_codec_does_not_depend_on_threads() -> None:
    x = input_of("fixed").nan_to_num_()
    one, two = (
        with_threads(n, lambda: compress(x[:1_500_000].view(750, -1), Absolute(0.1)))
        for n in (1, 2)
    )
    assert (one.codec, one.why) == (two.codec, two.why)
    assert torch.equal(one.payload, two.payload)
