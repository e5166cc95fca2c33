"""The kernels as torch operators: schemas, fakes and the dispatch to a backend.

Eager code calls a backend directly, which is some ten microseconds cheaper. Under
`torch.compile` the operators stand in the graph instead. A quantiser travels as a tensor
of six float64 numbers, so that a bound may change from step to step, and may depend on
the data, without a recompilation. Sizes of payloads are known only when they have been
made; in a graph they are unbacked symbols.

A further backend registers nothing here: `encke.ops.select` finds it by the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.bound.kinds import from_code
from encke.bound.resolve import resolve
from encke.errors import BoundError
from encke.ops.quantiser import Quantiser, linear, pointwise
from encke.ops.select import select

_LIBRARY = torch.library.Library("encke", "DEF")  # type: ignore[no-untyped-call]

_SCHEMAS = {
    "quantiser": "(Tensor x, int bound, float number, int kind) -> Tensor",
    "fixed_encode": "(Tensor x, Tensor quantiser, SymInt seed) -> Tensor",
    "fixed_decode": "(Tensor payload, SymInt count, ScalarType dtype) -> Tensor",
    "entropy_encode": "(Tensor x, Tensor quantiser, SymInt seed) -> Tensor",
    "entropy_decode": "(Tensor payload, SymInt count, ScalarType dtype) -> Tensor",
    "group_encode": "(Tensor x, int bits, bool stochastic, SymInt seed) -> Tensor",
    "group_decode": "(Tensor payload, SymInt count, ScalarType dtype) -> Tensor",
    "mask_encode": "(Tensor x) -> Tensor",
    "mask_decode": "(Tensor payload, SymInt count) -> Tensor",
    "index_encode": "(Tensor x) -> Tensor",
    "index_decode": "(Tensor payload, SymInt count, ScalarType dtype) -> Tensor",
}


def _unsigned(seed: int) -> int:
    return seed & 0xFFFF_FFFF_FFFF_FFFF


# What each operator does.


def _quantiser(x: Tensor, bound: int, number: float, kind: int) -> Tensor:
    promise = resolve(from_code(bound, number), x)
    if promise.rate is not None:
        raise BoundError("a fixed rate has no quantiser; use codec='group'")
    if promise.pointwise is not None:
        q = pointwise(promise.pointwise, x.dtype)
        return torch.tensor([q.kind, q.seed, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert promise.error is not None
    q = linear(promise.error, x.dtype, kind=kind)
    return torch.tensor([*q[:5], q.error], dtype=torch.float64)


def _read_quantiser(numbers: Tensor, seed: int) -> Quantiser:
    kind, step0, step1, limit0, limit1, error = numbers.tolist()
    if int(kind) == 3:
        return Quantiser(3, 0.0, 0.0, 0.0, 0.0, int(step0))
    return Quantiser(int(kind), step0, step1, limit0, limit1, _unsigned(seed), error)


def _fixed_encode(x: Tensor, quantiser: Tensor, seed: int) -> Tensor:
    return select(x.device).fixed_encode(x.contiguous(), _read_quantiser(quantiser, seed))


def _fixed_decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return select(payload.device).fixed_decode(payload, count, dtype)


def _entropy_encode(x: Tensor, quantiser: Tensor, seed: int) -> Tensor:
    return select(x.device).entropy_encode(x.contiguous(), _read_quantiser(quantiser, seed))


def _entropy_decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return select(payload.device).entropy_decode(payload, count, dtype)


def _group_encode(x: Tensor, bits: int, stochastic: bool, seed: int) -> Tensor:
    return select(x.device).group_encode(x.contiguous(), bits, stochastic, _unsigned(seed))


def _group_decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return select(payload.device).group_decode(payload, count, dtype)


def _mask_encode(x: Tensor) -> Tensor:
    return select(x.device).mask_encode(x.contiguous())


def _mask_decode(payload: Tensor, count: int) -> Tensor:
    return select(payload.device).mask_decode(payload, count)


def _index_encode(x: Tensor) -> Tensor:
    return select(x.device).index_encode(x.contiguous())


def _index_decode(payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    return select(payload.device).index_decode(payload, count, dtype)


_KERNELS = {
    "quantiser": _quantiser,
    "fixed_encode": _fixed_encode,
    "fixed_decode": _fixed_decode,
    "entropy_encode": _entropy_encode,
    "entropy_decode": _entropy_decode,
    "group_encode": _group_encode,
    "group_decode": _group_decode,
    "mask_encode": _mask_encode,
    "mask_decode": _mask_decode,
    "index_encode": _index_encode,
    "index_decode": _index_decode,
}


# What each operator's result looks like, for tracing.


def _fake_quantiser(x: Tensor, bound: int, number: float, kind: int) -> Tensor:
    return torch.empty(6, dtype=torch.float64, device="cpu")


def _fake_payload(x: Tensor, *_: object) -> Tensor:
    size = torch.library.get_ctx().new_dynamic_size(min=0)
    return x.new_empty(size, dtype=torch.uint8)


def _fake_values(payload: Tensor, count: int, dtype: torch.dtype = torch.bool) -> Tensor:
    return payload.new_empty(count, dtype=dtype)


def _fake_mask_payload(x: Tensor) -> Tensor:
    return x.new_empty((x.numel() + 7) // 8, dtype=torch.uint8)


_FAKES: dict[str, Callable[..., Tensor]] = {
    "quantiser": _fake_quantiser,
    "mask_encode": _fake_mask_payload,
    **{name: _fake_values for name in _SCHEMAS if name.endswith("_decode")},
}


def _define(name: str, schema: str) -> None:
    library: Any = _LIBRARY
    library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, _KERNELS[name], "CompositeExplicitAutograd")
    torch.library.register_fake(f"encke::{name}", _FAKES.get(name, _fake_payload), lib=library)


for _name, _schema in _SCHEMAS.items():
    _define(_name, _schema)

#: The operators, for whoever needs them registered before use.
operators = torch.ops.encke
