"""The operators that stand in compiled graphs in place of what they would keep.

forward    token = tape_begin(parameter, graph); handle = tape_keep(x, token, graph, place)
backward   token = tape_observe(inputs, sizes, graph); x = tape_give(handle, [token], size, …)

Numbers of graph and place are constants of the graph; bounds, codecs and seeds are not in it
at all, they are asked of the policy when an operator runs. So no change of a bound compiles
anything anew. The token only orders: nothing is kept before the step has begun, nothing given
before it has been observed, nor before whatever else is to come first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.tape.compiled import probes
from encke.tape.compiled.graphs import behind, graph, handle_for, tape_behind

_LIBRARY = torch.library.Library("encke", "FRAGMENT")  # type: ignore[no-untyped-call]

_SCHEMAS = {
    "tape_begin": "(Tensor parameter, int graph) -> Tensor",
    "tape_keep": "(Tensor x, Tensor token, int graph, int place) -> Tensor",
    "tape_observe": "(Tensor[] inputs, SymInt[] sizes, int graph) -> Tensor",
    "tape_give": (
        "(Tensor handle, Tensor[] after, SymInt[] size, SymInt[] stride, ScalarType dtype) "
        "-> Tensor"
    ),
}
#: Sizes of what they allocate depend on the data, which a recorded CUDA graph cannot repeat;
#: and any layout will do. Older versions of torch do not know all of these tags.
_TAGS = tuple(
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "cudagraph_unsafe", "flexible_layout")
    if hasattr(torch.Tag, name)
)


def _begin(parameter: Tensor, number: int) -> Tensor:
    graph(number).begin(parameter)
    return torch.zeros((), dtype=torch.float64, device=parameter.device)


def _keep(x: Tensor, _token: Tensor, number: int, place: int) -> Tensor:
    with torch.no_grad():
        return handle_for(graph(number).keep(place, x), x)


def _observe(inputs: list[Tensor], sizes: list[int], number: int) -> Tensor:
    mine = graph(number)
    tape = tape_behind(inputs)
    if tape is not None:
        with torch.no_grad():
            probes.observe(mine, tape, inputs, sizes)
        tape.begin_graphs_backward()
    return torch.zeros((), dtype=torch.float64, device=inputs[0].device)


def _give(
    handle: Tensor, _after: list[Tensor], size: list[int], stride: list[int], dtype: torch.dtype
) -> Tensor:
    with torch.no_grad():
        value = behind(handle).value()
        if value.dtype == torch.bool and dtype != torch.bool:
            value = value.view(torch.uint8).to(dtype)  # far faster than from truth values
        if list(value.stride()) == list(stride):
            return value
        given = torch.empty_strided(size, stride, dtype=dtype, device=handle.device)
        return given.copy_(value)


def _fake_begin(parameter: Tensor, number: int) -> Tensor:
    return parameter.new_empty((), dtype=torch.float64)


def _fake_keep(x: Tensor, _token: Tensor, number: int, place: int) -> Tensor:
    return x.new_empty(1, dtype=torch.uint8)


def _fake_observe(inputs: list[Tensor], sizes: list[Any], number: int) -> Tensor:
    return inputs[0].new_empty((), dtype=torch.float64)


def _fake_give(
    handle: Tensor, _after: list[Tensor], size: list[Any], stride: list[Any], dtype: torch.dtype
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=handle.device)


_KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "tape_begin": (_begin, _fake_begin),
    "tape_keep": (_keep, _fake_keep),
    "tape_observe": (_observe, _fake_observe),
    "tape_give": (_give, _fake_give),
}


def _define(name: str) -> None:
    library: Any = _LIBRARY
    kernel, fake = _KERNELS[name]
    library.define(name + _SCHEMAS[name], tags=_TAGS)
    library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"encke::{name}", fake, lib=library)


for _name in _SCHEMAS:
    _define(_name)

tape_begin = torch.ops.encke.tape_begin.default
tape_keep = torch.ops.encke.tape_keep.default
tape_observe = torch.ops.encke.tape_observe.default
tape_give = torch.ops.encke.tape_give.default
