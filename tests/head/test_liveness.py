"""Which variables may still be read: the code decides, and doubt counts as read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from encke.head.liveness import may_be_read

seen: list[bool] = []
elsewhere = SimpleNamespace()


class Out(dict[str, Any]):
    """As the outputs of `transformers`: entries, and attributes of the same names."""

    def __init__(self) -> None:
        super().__init__(logits=torch.ones(3))
        self.logits = self["logits"]


def look(out: Any = None) -> None:
    """What the optimizer's hook does, without a reference of its own."""
    found = [t for t in _find()]
    seen.append(may_be_read(found))


_latest: list[Any] = []


def make() -> Out:
    import weakref

    out = Out()
    _latest[:] = [weakref.ref(out.logits)]
    return out


def _find() -> Iterator[Any]:
    yield _latest[0]()


# Functions without `assert`: pytest's refers to locals().


def overwritten() -> None:
    for _ in range(2):
        out = make()
        look()
    del out


def in_a_with_statement() -> None:
    for _ in range(2):
        with contextlib.nullcontext():
            out = make()
            loss = out["logits"].sum()
        loss.item()
        look()


def unpacked() -> None:
    for _ in range(2):
        logits = make().logits
        pair = (logits, [logits])
        look()
    del pair


def never_again() -> None:
    out = make()
    out["logits"].sum()
    look()


def read_later() -> None:
    out = make()
    look()
    out["logits"].sum()


def read_in_the_next_round() -> None:
    out = None
    for _ in range(2):
        if out is not None:
            out["logits"].sum()
        out = make()
        look()


def read_in_a_handler() -> None:
    out = make()
    try:
        look()
        raise KeyError
    except KeyError:
        out["logits"].sum()


def returned() -> Any:
    out = make()
    look()
    return out


def read_by_the_caller() -> None:
    def inner(out: Any) -> None:
        look()

    out = make()
    inner(out)
    out["logits"].sum()


def in_a_closure() -> Callable[[], Any]:
    out = make()

    def later() -> Any:
        return out

    look()
    return later


def in_an_attribute() -> None:
    out = make()
    elsewhere.out = out
    look()


def in_a_long_list() -> None:
    everything = [make() for _ in range(100)]
    look()
    del everything


def in_a_generator() -> None:
    def generator() -> Iterator[Any]:
        out = make()
        yield None
        yield out

    running = generator()
    next(running)
    look()
    next(running)


def in_another_thread() -> None:
    ready, done = threading.Event(), threading.Event()

    def other() -> None:
        out = make()
        ready.set()
        done.wait()
        out["logits"].sum()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    look()
    done.set()
    thread.join()


@pytest.mark.parametrize("program", [overwritten, in_a_with_statement, unpacked, never_again])
def test_variables_that_are_written_first_are_dead(program: Callable[[], Any]) -> None:
    seen.clear()
    program()
    assert set(seen) == {False}


@pytest.mark.parametrize(
    "program",
    [
        read_later,
        read_in_the_next_round,
        read_in_a_handler,
        returned,
        read_by_the_caller,
        in_a_closure,
        in_an_attribute,
        in_a_long_list,
        in_a_generator,
        in_another_thread,
    ],
)
def test_whatever_may_be_read_counts_as_read(program: Callable[[], Any]) -> None:
    seen.clear()
    program()
    assert set(seen) == {True}
