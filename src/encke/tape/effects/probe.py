"""Measuring, in backward, what the error of a kept tensor does to an op's gradients.

For a product of activations and weights the closed form of `products` needs only ‖dY‖², and
for a norm that of `norm_effects` little more. Ops that treat the rows of a batch alike are
tried on a few of them (`trials`), with a fresh error of the same size on top of what was
decoded. Every other node is called again with such an error, and the results are compared:
that one op, nothing else of the graph. With exact values at hand the same call gives the true
error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from encke.errors import EnckeError
from encke.tape.autograd.nodes import (
    current_backward,
    kept_for,
    leaf_behind,
    op_name,
    running_node,
)
from encke.tape.batch_norm.channels import NORMS
from encke.tape.batch_norm.masked import BatchNormMask
from encke.tape.cost.pace import Pace, now
from encke.tape.effects import products, trials
from encke.tape.effects.norms import norm_change
from encke.tape.effects.rows import Rows
from encke.tape.effects.squares import square
from encke.tape.effects.trials import as_it_is, handing_out
from encke.tape.policy import GradientEffect, Site
from encke.tape.storage.sharing import is_dense
from encke.tape.storage.sources import (
    CombinedSource,
    RecomputedSource,
    StoredSource,
    TensorSource,
    ViewSource,
)
from encke.tape.storage.stored_tensor import StoredTensor

Gradients = Sequence[Tensor | None]

_DRAWN = 1 << 15  # values of a tensor that are compared at most
_ERRORS = 1 << 15  # errors that are added at a time


class Probe:
    """A hook on one node that reports the effects of the slots its saved tensors come from.

    It holds no reference to the node, which would keep the graph alive: autograd says which
    node is running.
    """

    def __init__(
        self,
        uses: Sequence[tuple[str, TensorSource, Site]],
        *,
        order: int,
        name_of: Callable[[Tensor], str | None],
        report: Callable[[GradientEffect], None],
        call: int,
        pace: Pace,
    ) -> None:
        self._uses = uses
        self._order, self._name_of, self._report = order, name_of, report
        self._call, self._pace = call, pace
        #: The trial of the op on some rows, which all of its tensors share.
        self._tried: trials.RowTrial | None = None

    def __call__(self, returned: Gradients, received: Gradients) -> None:
        began = now()
        self._look(returned, received)
        self._pace.spend(now() - began)

    def _look(self, returned: Gradients, received: Gradients) -> None:
        node = running_node()
        uses, self._uses = self._uses, ()  # the graph may outlive its backward
        called: set[int] = set()  # slots for which the node was called: with all their roles
        with torch.no_grad():
            for role, source, consumer in uses:
                for slot in source.slots():
                    if not slot.observed or id(slot) in called:
                        continue
                    effect = self._effect(
                        node, role, source, slot, consumer, returned, received
                    )
                    if effect is None:
                        continue
                    self._report(effect)
                    if not effect.products:
                        called.add(id(slot))
        self._tried = None

    def _effect(
        self,
        node: Any,
        role: str,
        source: TensorSource,
        slot: StoredTensor,
        consumer: Site,
        returned: Gradients,
        received: Gradients,
    ) -> GradientEffect | None:
        """What the error of a slot does here; None where only calling the node would tell."""
        leaves = [leaf_behind(n) for n, _ in node.next_functions]
        mine = self._parameters(leaves)
        onward = [i for i, leaf in enumerate(leaves) if leaf is None]
        parameter = max(
            (i for i in mine if returned[i] is not None),
            key=lambda i: returned[i].numel(),  # type: ignore[union-attr]
            default=None,
        )
        out = received[0]
        fan = 0.0
        if out is not None and parameter is not None and role in ("input", "mat1", "self"):
            fan = products.of_node(op_name(node), node, _seen_shape(node, role), out.shape)
        norm = None
        if not fan and slot.error > 0:
            norm = norm_change(node, op_name(node), slot, source, returned, received, mine)
        if not fan and norm is None and not slot.probed and slot.check is None:
            return None
        noise = Noise(slot, self._call)
        known: dict[str, Any] = {
            "site": slot.site,
            "consumer": consumer,
            "order": self._order,
            "call": self._call,
            "backward": current_backward(),
            "error": slot.error,
            "values": slot.values,
        }
        if parameter is not None:
            leaf = leaves[parameter]
            assert leaf is not None
            # FSDP computes with weights that are no parameters of the model: named by use.
            known["parameter"] = self._name_of(leaf) or str(consumer)
            known["parameter_square"] = square(returned[parameter])
        if fan:
            known |= {"products": fan, "gradient_square": square(out)}
            known["mean_square"], known["input_square"] = noise.seen(source)
        elif norm is not None:
            known |= {"probed": norm.own, "stream": norm.stream}
        elif slot.error > 0:
            change = self._trial(node, slot, noise, returned, received, mine, onward)
            known |= {"probed": change.own, "stream": change.stream, "tail": change.tail}
        kept = source.slot if isinstance(source, StoredSource) else slot
        if isinstance(kept.gate, BatchNormMask) and not fan and consumer.op in NORMS:
            known["left_out"] = kept.gate.left_out(node._saved_weight, returned)
            known["blocked"] = kept.gate.values - kept.values
        true_change = None
        # Of a large norm the weight's gradient alone is compared: dx would be needed twice.
        large = slot.check is not None and slot.check.times > 1
        tells = fan or (large and norm is not None and norm.own > 0)
        if slot.check is not None and tells and out is not None:
            true_change = trials.weight_change(
                node, op_name(node), slot, source, out, slot.check
            )
        if slot.check is not None and true_change is not None:
            known["measured"] = true_change * slot.check.times, 0.0
        elif slot.check is not None:
            exact = slot.check
            slot.noise = lambda decode: exact.put_into(decode())
            try:
                again = node(*received)
            finally:
                slot.noise = None
            true = difference(returned, _tuple(again), mine, onward)
            known["measured"] = true.own * exact.times, true.stream * exact.times
            known["tail"] = max(known.get("tail", 0.0), true.tail)
        return GradientEffect(**known)

    def _trial(
        self,
        node: Any,
        slot: StoredTensor,
        noise: Noise,
        returned: Gradients,
        received: Gradients,
        mine: Sequence[int],
        onward: Sequence[int],
    ) -> Change:
        """What a fresh error of the slot changes, on some rows where those tell."""
        op, dy = op_name(node), received[0]
        if not trials.can_try(op, dy):
            again = noise.during(lambda: node(*received))
            return difference(returned, _tuple(again), mine, onward)
        assert dy is not None
        if self._tried is None:
            rows = Rows.of(dy, most=trials.TRIED, seed=self._call)
            self._tried = trials.RowTrial(node, op, dy, rows)
        rows = self._tried.rows
        own = flow = tail = 0.0
        pairs = self._tried.differences(slot, noise.added_to)
        for index, pair in enumerate(pairs):
            whole = returned[index] if index < len(returned) else None
            if pair is None or whole is None:
                continue
            part, delta = pair
            change = square(delta) * rows.times
            if index in mine:
                own += change
            elif index in onward and change > 0:
                size = square(whole)
                flow = max(flow, change / size if size > 0 else 1.0)
                tail = max(tail, _worst_row(delta, part))
        return Change(own, flow, tail)

    def _parameters(self, leaves: Sequence[Tensor | None]) -> list[int]:
        """Which of an op's inputs are parameters, not merely inputs that ask for a gradient."""
        every = [(i, leaf) for i, leaf in enumerate(leaves) if leaf is not None]
        sure = [i for i, p in every if isinstance(p, nn.Parameter) or self._name_of(p)]
        # Weights may also be plain tensors that no module knows.
        return sure or [i for i, _ in every]


class Noise:
    """A fresh error of a slot's size, on top of what it decodes to."""

    def __init__(self, slot: StoredTensor, seed: int) -> None:
        self._slot = slot
        self._seed = seed

    def added_to(self, decoded: Tensor) -> Tensor:
        """Values with an error on top, in memory of their own."""
        return self._added_in_place(decoded.clone())

    def _added_in_place(self, values: Tensor) -> Tensor:
        """The error is added to a few rows at a time, so that it takes no memory."""
        slot = self._slot
        blocked = None if slot.gate is None else slot.gate.blocked()
        rows = values.shape[0] if values.ndim else 1
        count = max(1, _ERRORS * rows // max(1, values.numel()))
        place = _apart(self._seed)
        for begin in range(0, rows, count):
            part = values[begin : begin + count] if values.ndim else values
            place = _apart(place)
            drawn = drawn_errors(part, place)
            if slot.channels is None and not slot.exact_zeros and blocked is None:
                part.add_(drawn, alpha=slot.error)
                continue
            error = drawn * slot.error
            if slot.exact_zeros:
                error.mul_(part != 0)
            if slot.channels is not None:
                slot.channels.widen(error)
            if blocked is not None:
                error.masked_fill_(blocked[begin : begin + count], 0)
            part.add_(error)
        return values

    def added_to_unpacked(self, values: Tensor) -> Tensor:
        """Values as they were packed, with the error on top; in place."""
        rows = values.view(-1) if values.is_contiguous() else values
        count = max(1, _ERRORS * len(rows) // max(1, values.numel()))
        place = _apart(self._seed)
        for begin in range(0, len(rows), count):
            part = rows[begin : begin + count]
            place = _apart(place)
            error = drawn_errors(part, place)
            if self._slot.exact_zeros:
                error = error * (part != 0)
            part.add_(error, alpha=self._slot.error)
        return values

    def during(self, call: Callable[[], Any]) -> Any:
        """What `call` returns while the slot hands out values with the error added."""
        # What it hands out is decoded for this.
        self._slot.noise = lambda decode: self._added_in_place(decode())
        try:
            return call()
        finally:
            self._slot.noise = None

    def seen(self, source: TensorSource) -> tuple[float, float]:
        """Mean squares of the error and of the values, in what `source` gives."""
        slot = self._slot
        if isinstance(source, StoredSource | ViewSource) and slot.channels is None:
            with handing_out(slot, as_it_is):
                plain = source.get()
            count = max(1, plain.numel())
            share = 1.0
            if slot.gate is not None:
                share = slot.values / slot.gate.values
            elif slot.exact_zeros:
                share = float(plain.count_nonzero()) / count
            return slot.error**2 / 3 * share, square(plain) / count
        if slot.gate is None and isinstance(source, RecomputedSource | CombinedSource):
            # What is computed from a few rows tells as much, if it can be.
            with contextlib.suppress(RuntimeError, EnckeError):
                return self._compared(source, lambda t: Rows.of(t, most=_DRAWN, seed=0))
        return self._compared(source, lambda t: Rows.of(t, most=t.numel() + 1, seed=0))

    def _compared(
        self, source: TensorSource, rows_of: Callable[[Tensor], Rows]
    ) -> tuple[float, float]:
        """Mean squares of the difference that the error makes, and of the values."""

        def cut(decoded: Tensor) -> Tensor:
            rows = rows_of(decoded)
            return decoded if rows.times == 1 else rows.cut(decoded, decoded.ndim).clone()

        others = [slot for slot in source.slots() if slot is not self._slot]
        with contextlib.ExitStack() as handing:
            for slot in others:
                handing.enter_context(handing_out(slot, cut))
            with handing_out(self._slot, cut):
                plain = _sample(source.get())
            with handing_out(self._slot, lambda decoded: self._added_in_place(cut(decoded))):
                noisy = _sample(source.get())
        count = max(1, plain.numel())
        return square(noisy - plain) / count, square(plain) / count


def _sample(t: Tensor) -> Tensor:
    """Values spread over a tensor, in memory of their own."""
    flat = t.reshape(-1)
    # An odd distance meets every place of rows whose length is a power of two.
    return flat[:: 1 | max(1, flat.numel() // _DRAWN)].clone()


def _apart(seed: int) -> int:
    """A seed far from the small ones that people take for their own random numbers."""
    return (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & ((1 << 63) - 1)


@cache
def _table(dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(_apart(0))
    drawn = torch.empty(2 * _ERRORS).uniform_(-1, 1, generator=generator)
    return drawn.to(device=device, dtype=dtype)


def drawn_errors(like: Tensor, place: int) -> Tensor:
    """Random numbers between -1 and 1 in the shape and memory order of `like`; not for writing.

    They are drawn once and handed out from another place each time: drawing them anew takes
    longer than what is measured with them.
    """
    count = like.numel()
    table = _table(like.dtype, like.device)
    begin = place % _ERRORS
    if count > _ERRORS:  # a single row that is longer
        table = table.repeat(-(-(count + begin) // table.numel()))
    return _shaped_like(table[begin : begin + count], like)


def _shaped_like(flat: Tensor, like: Tensor) -> Tensor:
    """In the memory order of `like`, where that is dense."""
    if like.is_contiguous() or not is_dense(like):
        return flat.view(like.shape)
    return flat.as_strided(like.shape, like.stride(), flat.storage_offset())


class Change(NamedTuple):
    """How gradients differ.

    own     ‖Δ‖² in those of parameters
    stream  ‖Δ‖²/‖·‖² in those that flow on
    tail    in the row of those that suffers most: ‖Δ‖² over the row's own ‖·‖², or a mean
            row's where that is larger
    """

    own: float
    stream: float
    tail: float


def difference(
    one: Gradients, other: Gradients, parameters: Sequence[int], onward: Sequence[int]
) -> Change:
    """How the gradients of one call of a node differ from another's.

    Of several that flow on, the one that suffers most counts: attention's dv is often a
    hundred times larger than dq and dk, and an error that is small beside all three may
    still drown the two.
    """
    own = flow = tail = 0.0
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a is None or b is None:
            continue
        # The engine has summed `a` to its receiver's shape (a bias); a node called does not.
        delta = a - b.sum_to_size(a.shape)
        change = square(delta)
        if index in parameters:
            own += change
        elif index in onward and change > 0:
            whole = square(a)
            flow = max(flow, change / whole if whole > 0 else 1.0)
            tail = max(tail, _worst_row(delta, a))
    return Change(own, flow, tail)


def _worst_row(delta: Tensor, whole: Tensor) -> float:
    """The largest ‖Δ‖² of a row, over that of the row itself or of a mean one."""
    if whole.ndim < 2 or whole.is_complex() or whole.layout != torch.strided:
        return 0.0
    changes, rows = (t.flatten(1).norm(dim=1).double() ** 2 for t in (delta, whole))
    usual = rows.mean()
    if not bool(usual > 0):
        return 0.0
    return float((changes / rows.clamp(min=usual)).max())


def _tuple(result: Any) -> Gradients:
    return result if isinstance(result, tuple) else (result,)


def _seen_shape(node: Any, role: str) -> Sequence[int]:
    sizes = getattr(node, f"_saved_{role}_sym_sizes", None)
    if sizes is not None:
        return tuple(sizes)
    handle = kept_for(node, role)
    return tuple(handle.shape)
