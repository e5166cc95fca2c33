"""The promises of `predict` for fields with holes, on every backend there is."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from encke.codec.predict import predict_quantiser
from encke.errors import BackendError, CorruptStreamError, UnsupportedError
from encke.ops.select import load, native_problem

BACKENDS = ["reference"] + (["native"] if native_problem() is None else [])
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
#: By name: chosen, keeping zeros apart, Lorenzo, and halvings that fill along some axes.
PLANS = {
    "chosen": (0,),
    "keeping non-zeros": (1,),
    "Lorenzo, one axis": (0, 1, 1, 1),
    "Lorenzo, three axes": (0, 1, 1, 3),
    "halved thrice": (0, 3, 0xF2, 2, 3 | 9 << 2, 2 | 4 << 2, 3 | 8 << 2),
    "halved, filled along rows": (1, 3, 0x80, 0, 1 | 9 << 2, 2 | 8 << 2, 3 | 4 << 2),
    "halved, not filled": (0, 3, 0, 0, 3 | 9 << 2),
    "not halved": (0, 3, 0, 0),
}


def field(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(shape, dtype=torch.float64)
    for d, n in enumerate(shape):
        line = torch.sin(torch.arange(n, dtype=torch.float64) * (0.21 + 0.13 * d))
        x = x + line.view([-1 if i == d else 1 for i in range(len(shape))])
    x = 3 * x + 0.02 * torch.randn(shape, generator=generator, dtype=torch.float64)
    x.view(-1)[20:31] = 0
    x.view(-1)[31], x.view(-1)[17] = -0.0, 3e4
    return x.to(dtype)


def masks(shape: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(shape, generator=generator)
    smooth = torch.nn.functional.avg_pool1d(noise.view(1, 1, -1), 7, 1, 3).view(shape)
    plane = smooth.reshape(-1, *shape[-2:])[:1]
    alone = torch.zeros(shape, dtype=torch.bool)
    alone.view(-1)[alone.numel() // 2] = True
    every_other = torch.arange(noise.numel()).view(shape) % 2 == 0
    return {
        "ragged": noise > 0.3,
        "few values": noise > 0.95,
        "smooth": smooth > 0.5,
        "one for all planes": (plane > 0.5).expand(noise.reshape(-1, *shape[-2:]).shape),
        "one value": alone,
        "no value": torch.zeros(shape, dtype=torch.bool),
        "every other": every_other,
        "no hole": torch.ones(shape, dtype=torch.bool),
    }


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_keep_the_bound_and_backends_agree(dtype: torch.dtype, name: str) -> None:
    shape = (3, 12, 17)
    x = field(shape, dtype)
    for mask, error in itertools.product(masks(shape).values(), (0.8, 0.01)):
        valid = mask.reshape(shape).contiguous()
        dither = error == 0.01
        q = predict_quantiser(x, error, dither=dither, seed=7, valid=valid)
        payloads = [load(b).predict_encode(x, shape, q, PLANS[name], valid) for b in BACKENDS]
        decoded = [
            load(b).predict_decode(p, shape, dtype, None, valid)[valid]
            for b in BACKENDS
            for p in payloads
        ]
        true = x[valid]
        for y in decoded:
            assert y.numel() == 0 or (y.double() - true.double()).abs().max().item() <= error
            assert torch.equal(y.view(torch.uint8), decoded[0].view(torch.uint8))
            if PLANS[name][0]:
                assert torch.equal(y == 0, true == 0)
        heads = [bytes(p[32 : 36 + int(p[35])].tolist()) for p in payloads]
        assert heads == [heads[0]] * len(BACKENDS)


@pytest.mark.parametrize("shape", [(40, 50), (5, 6, 7, 8), (3000,), (2, 2, 3, 4, 5)], ids=str)
def test_every_backend_chooses_the_same_plan(shape: tuple[int, ...]) -> None:
    x = field(shape, torch.float32)
    generator = torch.Generator().manual_seed(2)
    for share, error in itertools.product((0.05, 0.5, 0.9), (0.5, 0.01, 3e-4)):
        valid = torch.rand(shape, generator=generator) > share
        q = predict_quantiser(x, error, dither=False, seed=0, valid=valid)
        payloads = [load(b).predict_encode(x, shape, q, (0,), valid) for b in BACKENDS]
        heads = [bytes(p[32 : 36 + int(p[35])].tolist()) for p in payloads]
        assert heads == [heads[0]] * len(BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_payload_with_holes_is_not_read_without_them(backend: str) -> None:
    shape, kernels = (12, 17), load(backend)
    x = field(shape, torch.float32)
    valid = masks(shape)["ragged"]
    q = predict_quantiser(x, 0.1, dither=False, seed=0, valid=valid)
    holed = kernels.predict_encode(x, shape, q, (0,), valid)
    plain = kernels.predict_encode(x, shape, q, (0,))
    with pytest.raises(CorruptStreamError):
        kernels.predict_decode(holed, shape, x.dtype)
    with pytest.raises(CorruptStreamError):
        kernels.predict_decode(plain, shape, x.dtype, None, valid)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("plan", [(0, 2, 1, 2, 8), (0, 1, 2, 2), (0, 3, 1, 0), (0, 3, 4, 0)])
def test_plans_that_know_no_holes_are_refused(plan: tuple[int, ...], backend: str) -> None:
    shape = (12, 17)
    x = field(shape, torch.float32)
    valid = masks(shape)["ragged"]
    q = predict_quantiser(x, 0.1, dither=False, seed=0, valid=valid)
    with pytest.raises((UnsupportedError, BackendError)):
        load(backend).predict_encode(x, shape, q, plan, valid)
