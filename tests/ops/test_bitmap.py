"""The promises of bitmaps: every bit comes back, on every backend, from the same bytes."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.select import load, native_problem

BACKENDS = ["reference"] + (["native"] if native_problem() is None else [])
SHAPES = [(40, 130), (5, 6, 7, 8), (300,), (3, 1, 70), (2, 12, 1), (1,), (), (2, 3, 4, 33)]


def random(shape: tuple[int, ...], share: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < share


def blobs(shape: tuple[int, ...], seed: int) -> Tensor:
    """Coasts: bits that are alike where they are near each other."""
    x = random(shape, 0.5, seed).float().reshape(1, 1, -1)
    return (torch.nn.functional.avg_pool1d(x, 9, 1, 4) > 0.5).view(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backends_write_the_same_bytes_and_read_every_bit(shape: tuple[int, ...]) -> None:
    images = [random(shape, share, 1) for share in (0.0, 0.02, 0.5, 0.98, 1.0)]
    images.append(blobs(shape, 2))
    for image, domain in itertools.product(images, (None, random(shape, 0.6, 3))):
        bits = image if domain is None else image & domain
        payloads = [load(b).bitmap_encode(bits, shape, domain) for b in BACKENDS]
        assert all(torch.equal(p, payloads[0]) for p in payloads)
        for backend in BACKENDS:
            assert torch.equal(load(backend).bitmap_decode(payloads[0], shape, domain), bits)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 5)], ids=str)
def test_no_bits_are_a_head_and_nothing_else(shape: tuple[int, ...]) -> None:
    for backend in BACKENDS:
        kernels = load(backend)
        payload = kernels.bitmap_encode(torch.zeros(shape, dtype=torch.bool), shape)
        assert payload.numel() == 4
        assert kernels.bitmap_decode(payload, shape).shape == shape
        with pytest.raises(CorruptStreamError):
            kernels.bitmap_decode(torch.cat([payload, payload]), shape)


@pytest.mark.parametrize("backend", BACKENDS)
def test_planes_that_repeat_cost_next_to_nothing(backend: str) -> None:
    kernels = load(backend)
    image = blobs((24, 40), 5)
    once = kernels.bitmap_encode(image, (24, 40)).numel()
    level = torch.stack([image, ~image, blobs((24, 40), 6)])
    for shape, repeated in (
        ((50, 24, 40), image.expand(50, 24, 40)),
        ((20, 3, 24, 40), level.expand(20, 3, 24, 40)),
    ):
        payload = kernels.bitmap_encode(repeated.contiguous(), shape)
        assert payload.numel() <= 3.6 * once if len(shape) == 4 else payload.numel() <= once + 9


@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs the native backend")
@settings(max_examples=150, deadline=None)
@given(
    data=st.binary(max_size=80),
    shape=st.sampled_from([(9, 70), (3, 4, 5), (64,), (2, 2, 3, 9)]),
    with_domain=st.booleans(),
)
def test_any_bytes_are_read_alike_or_refused_alike(
    data: bytes, shape: tuple[int, ...], with_domain: bool
) -> None:
    payload = torch.tensor(list(b"\1\0\0\0" + data), dtype=torch.uint8)
    domain = random(shape, 0.5, 4) if with_domain else None
    found = []
    for backend in BACKENDS:
        try:
            found.append(load(backend).bitmap_decode(payload, shape, domain).tolist())
        except CorruptStreamError:
            found.append(None)
    assert found[0] == found[1]
