"""The operators in compiled graphs, one by one: their schemas, fakes and what they give."""

from __future__ import annotations

import weakref

import pytest
import torch
from nets import LOSSY
from torch import Tensor, nn

import encke
from encke.tape import Tape
from encke.tape.compiled import operators
from encke.tape.compiled.graphs import CompiledGraph, Place
from encke.tape.policy import Site

pytestmark = pytest.mark.slow

STRIDES = {
    "contiguous": (1024, 64, 8, 1),
    "channels last": (1024, 1, 128, 16),
}


@pytest.fixture
def graph() -> CompiledGraph:
    model = nn.Linear(1, 1).requires_grad_(False)
    tape = Tape(LOSSY, model=model)
    made = CompiledGraph(tape)
    made.places.append(Place(site=Site("a", "relu", "output"), order=0))
    made.places.append(Place(site=Site("a", "le", "output"), order=1, added=True))
    weakref.finalize(made, lambda _: None, tape)  # the tape lives as long as its graph
    return made


def begun(graph: CompiledGraph) -> Tensor:
    tape = graph.tape
    model = None if tape is None else tape.model
    weight = torch.ones(1, 1) if model is None else model.weight
    token: Tensor = operators.tape_begin(weight, graph.number)
    return token


def images(layout: str) -> Tensor:
    x = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def test_every_operator_passes_opcheck(
    graph: CompiledGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images("contiguous")
    token = begun(graph)
    handle = operators.tape_keep(x, token, graph.number, 0)
    give = (handle, [token], list(x.shape), list(x.stride()), x.dtype)
    torch.library.opcheck(operators.tape_begin, (torch.ones(2), graph.number))
    torch.library.opcheck(operators.tape_keep, (x, token, graph.number, 0))
    torch.library.opcheck(operators.tape_observe, ([x, handle], [4], graph.number))
    # opcheck copies what it is given, and a copy of a handle stands for nothing.
    kept = operators.behind(handle)
    monkeypatch.setattr(operators, "behind", lambda _: kept)
    torch.library.opcheck(operators.tape_give, give)


@pytest.mark.parametrize("kept", STRIDES)
@pytest.mark.parametrize("given", STRIDES)
def test_a_tensor_comes_back_within_its_bound_in_the_layout_that_is_asked_for(
    graph: CompiledGraph, kept: str, given: str
) -> None:
    x = images(kept)
    token = begun(graph)
    handle = operators.tape_keep(x, token, graph.number, 0)
    assert handle.numel() == 1
    y = operators.tape_give(handle, [token], list(x.shape), list(STRIDES[given]), x.dtype)
    error = 0.01 * float(x.max() - x.min())
    assert y.stride() == STRIDES[given]
    assert 0 < float((y - x).abs().max()) <= error * 1.0001


def test_truth_values_come_back_as_they_were(graph: CompiledGraph) -> None:
    x = images("channels last") > 0
    token = begun(graph)
    handle = operators.tape_keep(x, token, graph.number, 1)
    y = operators.tape_give(handle, [token], list(x.shape), list(x.stride()), x.dtype)
    assert torch.equal(x, y)


def test_what_a_graph_asks_of_a_tape_that_is_gone_is_kept_as_it_is(
    graph: CompiledGraph,
) -> None:
    tape = graph.tape
    assert tape is not None
    tape.detach()
    assert graph.tape is None
    x = images("contiguous")
    token = begun(graph)
    handle = operators.tape_keep(x, token, graph.number, 0)
    y = operators.tape_give(handle, [token], list(x.shape), list(x.stride()), x.dtype)
    assert torch.equal(x, y)
    assert y.data_ptr() != x.data_ptr()


def test_a_graph_of_another_process_says_so() -> None:
    with pytest.raises(encke.UnsupportedError, match="compiled in another"):
        operators.tape_begin(torch.ones(1), 10**9)
