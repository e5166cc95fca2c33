"""Every codec on every backend, on a tensor small enough for a moment's wait."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.bound import Absolute, Bound, FixedRate, Lossless, PointwiseRelative
from encke.cli.measure import compare
from encke.codec import Packed, compress, names
from encke.ops import select, triton

#: Codecs that another package does the work of; without it they are no failure.
NEEDS = {"zfp": "zfpy"}
_COUNT = 3000


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One way to use one codec.

    problem  what went wrong, or ""
    """

    codec: str
    way: str
    encoder: str
    decoder: str
    problem: str


def available_backends() -> dict[str, str]:
    """The backends that can be tried here, and where the tensors for that are."""
    found = {"reference": "cpu"}
    if select.native_problem() is None:
        found = {"native": "cpu", **found}
    device = triton.device_here()
    if select.triton_problem() is None and device is not None:
        found["triton"] = device
    return found


def trials(codecs: Iterable[str] | None = None) -> Iterator[Trial]:
    """Encode on each backend and decode on each; both must hold the bound and agree."""
    backends = available_backends()
    for codec in names() if codecs is None else codecs:
        if codec in NEEDS and importlib.util.find_spec(NEEDS[codec]) is None:
            continue
        for way, x, bound, dither in _ways(codec):
            for encoder in backends:
                yield from _across(codec, way, x, bound, dither, encoder, backends)


def _across(
    codec: str,
    way: str,
    x: Tensor,
    bound: Bound,
    dither: bool,
    encoder: str,
    backends: dict[str, str],
) -> Iterator[Trial]:
    decoded: dict[str, Tensor] = {}
    for decoder, device in backends.items():
        try:
            there = x.to(backends[encoder])
            packed = compress(there, bound, codec=codec, dither=dither, seed=1, backend=encoder)
            received = Packed.from_bytes(packed.to_bytes(), device=device)
            decoded[decoder] = received.decompress(backend=decoder).cpu()
            problem = _broken_promise(x, decoded[decoder], packed)
        except Exception as error:  # whatever it is, it is what this test is for
            problem = f"{type(error).__name__}: {error}"
        first = next(iter(decoded.values()), None)
        if not problem and first is not None and not _equal(first, decoded[decoder]):
            problem = f"decodes to other values than on {next(iter(decoded))}"
        yield Trial(codec=codec, way=way, encoder=encoder, decoder=decoder, problem=problem)


def _ways(codec: str) -> Iterator[tuple[str, Tensor, Bound, bool]]:
    """A tensor and a bound that `codec` must be able to take."""
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(_COUNT, generator=generator).cumsum(0)
    values[::7] = 0.0
    if codec == "mask":
        yield "bool", values > 0, Lossless(), False
    elif codec == "index":
        yield "int64", torch.randint(0, 50, (_COUNT,), generator=generator), Lossless(), False
    elif codec == "group":
        yield "4 bits", _with_nonfinite(values), FixedRate(4), False
        yield "absolute", values, Absolute(1.0), False
    elif codec == "zfp":
        yield "absolute", _with_nonfinite(values).view(30, -1), Absolute(1e-2), False
        yield "8 bits", values.view(30, -1), FixedRate(8), False
    elif codec == "lossless":
        yield "exact", _with_nonfinite(values), Lossless(), False
    else:
        yield "absolute", _with_nonfinite(values), Absolute(1e-2), False
        yield "bfloat16", values.to(torch.bfloat16), Absolute(0.5), False
        yield "dither", _with_nonfinite(values), Absolute(1e-2), True
        if codec != "predict":
            yield "pointwise", _with_nonfinite(values), PointwiseRelative(1e-2), False


def _with_nonfinite(values: Tensor) -> Tensor:
    values = values.clone()
    values[100:103] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return values


def _broken_promise(x: Tensor, y: Tensor, packed: Packed) -> str:
    found = compare(x, y)
    if not found.nonfinite_kept:
        return "a NaN or an infinity did not come back"
    pointwise = packed.bound.kind == "pointwise"
    error = found.max_pointwise if pointwise else found.max_error
    if not error <= packed.promised:
        return f"error is {error:.6g}, promised is {packed.promised:.6g}"
    return ""


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(
        x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)
    )
