"""Compiled graphs at run time: what each keeps for a tape, step by step.

A `CompiledGraph` belongs to one pair of forward and backward graphs. The operators in them
know it by its number. In place of each tensor that the forward graph would keep stands a
handle: a tensor of one byte. What is kept hangs on the handle's storage, so it lives exactly
as long as autograd, or the compiled backward, holds the handle.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from encke.errors import UnsupportedError
from encke.tape.effects.rows import ExactRows
from encke.tape.observe.records import Record
from encke.tape.policy import KEEP, SavedTensor, Site
from encke.tape.storage.byte_count import ByteCount, PlainBytes, StoredBytes
from encke.tape.storage.sources import Integers, SignMask, StoredSource, TensorSource
from encke.tape.storage.stored_tensor import DecodedCache, StoredTensor

if TYPE_CHECKING:
    from encke.tape.compiled.survey import Survey
    from encke.tape.tape import Tape

#: The tapes whose models may be compiled.
attached: weakref.WeakSet[Tape] = weakref.WeakSet()

_numbers = itertools.count(1)
_graphs: dict[int, CompiledGraph] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A tensor that a compiled forward graph keeps.

    added  whether it is kept only because of the tape: the outcome of a comparison
    sides  whether the graph hands over values of which only `not x <= 0` is kept
    """

    site: Site
    order: int
    added: bool = False
    sides: bool = False


class CompiledGraph:
    """A forward and a backward graph whose kept tensors go through a tape.

    places      what is kept, in order
    backward    the backward graph, as the partitioner made it, for probes
    parameters  which results of the backward graph are gradients of which parameters
    beside      bytes that the graph keeps as they are
    plain       bytes that it would keep without a tape
    """

    def __init__(self, tape: Tape) -> None:
        self.number = next(_numbers)
        self.places: list[Place] = []
        self.backward: fx.GraphModule | None = None
        self.parameters: dict[int, str] = {}
        self.beside = self.plain = 0
        #: What probes found out about the backward graph.
        self.survey: Survey | None = None
        self._made_for = weakref.ref(tape, lambda _: self.forget())
        self._running_for: weakref.ref[Tape] | None = None
        self._kept = 0
        _graphs[self.number] = self

    @property
    def tape(self) -> Tape | None:
        """The tape that it was made for, if that is attached still and not paused."""
        return _if_active(self._made_for)

    def begin(self, parameter: Tensor) -> None:
        """The forward graph starts, with a parameter of the model that it runs for.

        Code that was compiled for one model may serve another of the same class, which has a
        tape of its own or none: what that one keeps goes there, or is kept as it is.
        """
        self._kept = 0
        tape = self._tape_of(parameter)
        self._running_for = None if tape is None else weakref.ref(tape)
        if tape is not None:
            if self not in tape.graphs:
                tape.graphs.append(self)
            tape.begin_graph(self.number)

    def _tape_of(self, parameter: Tensor) -> Tape | None:
        """The tape of the model that has a parameter, if it is attached and not paused."""
        made_for = self._made_for()
        for tape in (made_for, *(other for other in attached if other is not made_for)):
            if tape is not None and _has_parameter(tape, parameter):
                return tape if tape.is_active else None
        return None

    def keep(self, index: int, t: Tensor) -> Kept:
        """Keep the tensor of a place."""
        place = self.places[index]
        tape = None if self._running_for is None else self._running_for()
        self._kept += 1
        if tape is None:
            if place.sides:
                return Kept(index, _settled(SignMask(place.site, t, (1.0, 0.0), ByteCount())))
            return Kept(index, _as_it_is(place.site, t))
        kept = Kept(index, _keep(tape, place, t), tape)
        if index == 0:
            kept.counted.append(StoredBytes(tape.ledger, self.beside))
            kept.counted.append(PlainBytes(tape.ledger, self.plain))
        if self._kept == len(self.places):
            tape.end_forward()
        return kept

    def forget(self) -> None:
        """Let go of what only probes need: the tape is detached."""
        self.backward = self.survey = None


class Kept:
    """What stands behind a handle."""

    __slots__ = ("_tape", "counted", "index", "source")

    def __init__(self, index: int, source: TensorSource, tape: Tape | None = None) -> None:
        self.index, self.source = index, source
        self._tape = None if tape is None else weakref.ref(tape)
        self.counted: list[StoredBytes | PlainBytes] = []

    @property
    def tape(self) -> Tape | None:
        """The tape that keeps it, if that is attached still and not paused."""
        return None if self._tape is None else _if_active(self._tape)

    def value(self) -> Tensor:
        """The tensor, in memory that nothing else refers to; sides as truth values."""
        if isinstance(self.source, SignMask):
            return self.source.mask()
        value = self.source.get()
        if isinstance(self.source, StoredSource) and self.source.slot.kind == "exact":
            return value.clone()
        return value


def has_tape(parameter: Tensor) -> bool:
    """Whether the model of a parameter has a tape."""
    return any(_has_parameter(tape, parameter) for tape in attached)


def _has_parameter(tape: Tape, given: Tensor) -> bool:
    model = tape.model
    address = given.data_ptr()  # an alias of a parameter has no other name
    return model is not None and any(
        p is given or 0 != address == p.data_ptr() for p in model.parameters()
    )


def _if_active(reference: weakref.ref[Tape]) -> Tape | None:
    tape = reference()
    return tape if tape is not None and tape.is_active else None


def graph(number: int) -> CompiledGraph:
    """The graph of a number."""
    found = _graphs.get(number)
    if found is None:
        raise UnsupportedError(
            f"there is no compiled graph {number} in this process: it was compiled in another "
            "one; call torch.compiler.reset() and run the model again"
        )
    return found


def handle_for(kept: Kept, like: Tensor) -> Tensor:
    """A tensor of one byte that stands for what is kept, for as long as it lives."""
    handle = torch.zeros(1, dtype=torch.uint8, device=like.device)
    handle.untyped_storage().encke = kept  # type: ignore[attr-defined]
    return handle


def tape_behind(inputs: Iterable[Tensor]) -> Tape | None:
    """The tape that keeps what the handles among the inputs of a backward graph stand for."""
    for given in inputs:
        kept = getattr(given.untyped_storage(), "encke", None)
        if isinstance(kept, Kept):
            return kept.tape
    return None


def behind(handle: Tensor) -> Kept:
    """What a handle stands for."""
    kept = getattr(handle.untyped_storage(), "encke", None)
    if not isinstance(kept, Kept):
        raise UnsupportedError(
            "a tensor that a compiled graph kept for its tape was copied on its way to "
            "backward, by saved_tensors_hooks or save_on_cpu around the compiled model; leave "
            "those out, the tape has it packed already"
        )
    return kept


def _keep(tape: Tape, place: Place, t: Tensor) -> TensorSource:
    source: TensorSource
    count = t.numel() * t.element_size()
    if place.sides:
        source = sides = _settled(SignMask(place.site, t, (1.0, 0.0), tape.ledger))
        how, codec, error, stored = sides.how, sides.how, 0.0, sides.nbytes
        why = "a comparison's outcome: one bit each"
    elif t.is_floating_point():
        tape.order = place.order
        treatment = tape.policy.treat(
            SavedTensor(site=place.site, tensor=t, step=tape.step, order=place.order)
        )
        if treatment.bound is None:
            whole = _as_it_is(place.site, t, why=treatment.why, tape=tape)
            source, slot = whole, whole.slot
        else:
            # The graph takes the tensor's memory back when this returns.
            slot = tape.pack(place.site, t, treatment, lasting=False)
            asked = (treatment.observe and treatment.probe) or treatment.check
            slot.observed = not slot.is_exact and asked
            if treatment.check:
                slot.check = ExactRows(t, tape.ledger, seed=tape.step)
            source = StoredSource(slot)
        how, codec, error, stored = slot.kind, slot.codec, slot.error, slot.nbytes
        why = treatment.why or slot.why
    else:
        integers = Integers(t, tape.ledger)
        how, codec, error, stored = integers.how, integers.how, 0.0, integers.nbytes
        why = "a comparison's outcome: one bit each" if place.added else "narrowed"
        source = integers
    tape.records.keep(
        Record(
            site=place.site,
            shape=tuple(t.shape),
            plain=0 if place.added else count,
            stored=stored,
            how=how,
            codec=codec,
            error=error,
            why=why,
        )
    )
    return source


def _settled(sides: SignMask) -> SignMask:
    return sides


def _as_it_is(
    site: Site, t: Tensor, *, why: str = KEEP.why, tape: Tape | None = None
) -> StoredSource:
    # A copy: the graph takes the tensor's memory back when the operator returns.
    copy = torch.empty_like(t).copy_(t)
    held = (
        None if tape is None else StoredBytes(tape.ledger, copy.numel() * copy.element_size())
    )
    recent = DecodedCache() if tape is None else tape.recent
    return StoredSource(StoredTensor.exact(site, copy, held, recent=recent, why=why))
