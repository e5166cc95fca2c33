"""Whatever the bytes, the kernels stay inside the payload and agree with the reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import encke
from encke.errors import BackendError, CorruptStreamError
from encke.ops.quantiser import DITHER, linear, pointwise
from encke.ops.select import load, select

TRITON, REFERENCE = load("triton"), load("reference")
X = torch.randn(75, generator=torch.Generator().manual_seed(0))
X[::4] = 0.0
X[70] = float("nan")

ORIGINALS: dict[str, tuple[Tensor, Callable[[Any, Tensor], Tensor]]] = {
    "fixed": (
        REFERENCE.fixed_encode(X, linear(0.05, torch.float32, kind=DITHER, seed=1)),
        lambda backend, payload: backend.fixed_decode(payload, 75, torch.float32),
    ),
    "pointwise": (
        REFERENCE.fixed_encode(X, pointwise(0.05, torch.float32)),
        lambda backend, payload: backend.fixed_decode(payload, 75, torch.float32),
    ),
    "group": (
        REFERENCE.group_encode(X, 4, True, 1),
        lambda backend, payload: backend.group_decode(payload, 75, torch.float32),
    ),
    "index": (
        REFERENCE.index_encode((X.nan_to_num() * 20).to(torch.int16)),
        lambda backend, payload: backend.index_decode(payload, 75, torch.int16),
    ),
    "mask": (
        REFERENCE.mask_encode(X > 0),
        lambda backend, payload: backend.mask_decode(payload, 75),
    ),
}


def outcome(decode: Callable[[Any, Tensor], Tensor], backend: Any, payload: Tensor) -> Any:
    try:
        return decode(backend, payload).view(torch.uint8).tolist()
    except CorruptStreamError:
        return "corrupt"


@pytest.mark.parametrize("codec", ORIGINALS)
def test_mutants_end_as_they_do_with_the_reference(codec: str) -> None:
    original, decode = ORIGINALS[codec]
    chance = random.Random(codec)
    tally: Counter[bool] = Counter()
    for _ in range(14):
        mutant = original.clone()
        for _ in range(chance.randint(1, 2)):
            mutant[chance.randrange(mutant.numel())] = chance.randrange(256)
        cut = chance.choice([0, 0, 0, 0, 1, 5, mutant.numel()])
        mutant = mutant[: mutant.numel() - cut]
        expected = outcome(decode, REFERENCE, mutant)
        assert outcome(decode, TRITON, mutant) == expected
        tally[expected == "corrupt"] += 1
    assert len(tally) == 2, "mutants of both kinds are wanted"


@pytest.mark.parametrize("codec", ["fixed", "entropy", "predict", "group"])
def test_codecs_without_kernels_on_the_device_take_those_of_the_host(codec: str) -> None:
    bound = encke.FixedRate(4) if codec == "group" else encke.Absolute(0.1)
    x = torch.linspace(0, 5, 600).view(20, 30)
    packed = encke.compress(x, bound, codec=codec, backend="triton")
    decoded = packed.decompress(backend="triton")
    assert torch.equal(decoded, packed.decompress(backend="reference"))
    out = torch.empty_like(x)
    assert packed.decompress(out=out, backend="triton") is out
    assert torch.equal(out, decoded)


def test_auto_tries_only_what_the_device_can_do_itself() -> None:
    x = torch.linspace(0, 5, 600)
    on_host = encke.compress(x, encke.Absolute(0.1))
    here = encke.compress(x, encke.Absolute(0.1), backend="triton")
    assert (on_host.codec, here.codec) == ("predict", "fixed")
    integers = encke.compress(torch.arange(50), encke.Lossless(), backend="triton")
    assert integers.codec == "index"


def test_the_environment_can_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCKE_BACKEND", "triton")
    assert select(torch.device("cpu")).name == "triton"
    # What goes through the host must not come back here without end.
    packed = encke.compress(torch.linspace(0, 1, 300), encke.Absolute(0.1), codec="entropy")
    assert packed.decompress().numel() == 300
    with pytest.raises(BackendError, match="works on tensors of cuda"):
        select(torch.device("meta"))


def test_doctor_tries_it_among_the_others() -> None:
    from encke.cli.self_test import available_backends, trials

    assert available_backends()["triton"] == "cpu"
    tried = list(trials(["mask", "index"]))
    assert {("triton", "reference"), ("reference", "triton")} <= {
        (t.encoder, t.decoder) for t in tried
    }
    assert all(not t.problem for t in tried)
