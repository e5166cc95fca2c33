"""Trying an error on a few rows of an op's backward.

Calling a node again costs as much as its backward, and as much memory. The ops here treat the
rows of a batch alike, so some rows say what the error does to all of them: their backward is
computed twice, as it is and with a fresh error, and what changes is scaled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from encke.tape.autograd.nodes import has_hooks, raw_saved, saved_tensor
from encke.tape.batch_norm.channels import statistics
from encke.tape.effects.rows import ExactRows, Rows
from encke.tape.effects.squares import square
from encke.tape.storage.sources import (
    CombinedSource,
    RecomputedSource,
    StoredSource,
    TensorSource,
)
from encke.tape.storage.stored_tensor import StoredTensor

Gradients = Sequence[Tensor | None]
#: Gives what a node saved under a role, cut to the rows of the trial.
Saved = Callable[[str], Tensor]
Backward = Callable[[Any, Tensor, Saved], Gradients]

TRIED = 1 << 16  # values of the gradient that comes in
_aten = torch.ops.aten
_backwards: dict[str, Backward] = {}


def can_try(op: str, dy: Tensor | None) -> bool:
    """Whether a trial on some rows tells what the error of a saved tensor does."""
    return op in _backwards and dy is not None and dy.ndim >= 2 and type(dy) is Tensor


class RowTrial:
    """The backward of one op on some rows: as it is, once, and with an error in each tensor.

    dy  the gradient that came in
    """

    def __init__(self, node: Any, op: str, dy: Tensor, rows: Rows) -> None:
        self._node, self._backward, self.rows = node, _backwards[op], rows
        self._dimensions = dy.ndim
        self._dy = rows.cut(dy, dy.ndim)
        self._clean: dict[str, Tensor] = {}
        self._before: Gradients | None = None

    def differences(
        self, slot: StoredTensor, noise: Callable[[Tensor], Tensor]
    ) -> Iterator[tuple[Tensor, Tensor] | None]:
        """For each gradient that the op returns: of the rows tried, and by how much it changes.

        noise  gives values of the slot with an error added
        """
        if self._before is None:
            self._before = self._backward(self._node, self._dy, self._exact)
        after = self._backward(self._node, self._dy, partial(self._noisy, slot, noise))
        for edge, (a, b) in enumerate(zip(self._before, after, strict=True)):
            if a is None or b is None:
                yield None
                continue
            maker, number = self._node.next_functions[edge]
            shape = self.rows.size(maker._input_metadata[number].shape, self._dimensions)
            a, b = a.sum_to_size(shape), b.sum_to_size(shape)
            yield a, b.sub_(a) if b.data_ptr() != a.data_ptr() else b - a

    def _exact(self, role: str) -> Tensor:
        if role not in self._clean:
            found = _some_rows(self._node, role, self.rows, self._dimensions, {})
            if found is None:
                found = self.rows.cut(_look(self._node, role), self._dimensions)
            self._clean[role] = found
        return self._clean[role]

    def _noisy(
        self, slot: StoredTensor, noise: Callable[[Tensor], Tensor], role: str
    ) -> Tensor:
        source = _source(self._node, role)
        if source is None or all(one is not slot for one in source.slots()):
            return self._exact(role)
        if isinstance(source, StoredSource) and slot.channels is None and slot.gate is None:
            return noise(self._exact(role))
        found = _some_rows(self._node, role, self.rows, self._dimensions, {id(slot): noise})
        if found is not None:
            return found
        with handing_out(slot, noise):
            return self.rows.cut(_look(self._node, role), self._dimensions)


def _source(node: Any, role: str) -> TensorSource | None:
    """Where a saved tensor comes from, if the tape keeps it."""
    raw = raw_saved(node, role)
    handle = raw.data if raw is not None and has_hooks(raw) else None
    source = getattr(handle, "source", None)
    return source if isinstance(source, TensorSource) else None


def _look(node: Any, role: str) -> Tensor:
    """What a node saved, without counting as a use of it."""
    source = _source(node, role)
    if source is None:
        found = saved_tensor(node, role)
        assert found is not None
        return found.detach()
    with ExitStack() as handing:
        for slot in source.slots():
            if slot.noise is None:
                handing.enter_context(handing_out(slot, as_it_is))
        return source.get()


class _NotByRowsError(Exception):
    """Raised where some rows of a tensor do not follow from the same rows of another."""


def _some_rows(
    node: Any,
    role: str,
    rows: Rows,
    dimensions: int,
    changes: Mapping[int, Callable[[Tensor], Tensor]],
) -> Tensor | None:
    """Some rows of a tensor that is computed from others, from the same rows of those.

    changes  by the identities of slots: what to make of their rows

    None where all of it has to be computed.
    """
    source = _source(node, role)
    if not isinstance(source, RecomputedSource | CombinedSource):
        return None
    slots = list(source.slots())
    if any(
        s.channels is not None or s.gate is not None or s.remainder is not None for s in slots
    ):
        return None

    def cut(change: Callable[[Tensor], Tensor], decoded: Tensor) -> Tensor:
        if decoded.ndim != dimensions or decoded.shape[0] != rows.batch:
            raise _NotByRowsError
        return change(rows.cut(decoded, dimensions))

    with ExitStack() as handing, suppress(_NotByRowsError, RuntimeError):
        for slot in slots:
            change = changes.get(id(slot), as_it_is)
            handing.enter_context(handing_out(slot, partial(cut, change)))
        found = source.get()
        shape = raw_saved(node, role).data.shape
        # Where the dimensions were exchanged, another than the first is shorter now.
        if tuple(found.shape) == rows.size(shape, dimensions):
            return found
    return None


def as_it_is(decoded: Tensor) -> Tensor:
    return decoded


@contextmanager
def handing_out(slot: StoredTensor, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, a slot hands out what `change` makes of its decoded values: once, to all."""
    handed: list[Tensor] = []

    def noise(decode: Callable[[], Tensor]) -> Tensor:
        if not handed:
            handed.append(change(decode()))
        return handed[0]

    before, slot.noise = slot.noise, noise
    try:
        yield
    finally:
        slot.noise = before


def weight_change(
    node: Any, op: str, slot: StoredTensor, source: TensorSource, dy: Tensor, exact: ExactRows
) -> float | None:
    """‖ΔdW‖² of a product or a batch norm by the true error of the rows known exactly.

    dW is linear in the op's input, so the difference of those rows tells. None where the
    rows of what `source` gives are not those of the tensor in `slot`.
    """
    rows = exact.rows
    if op not in _WEIGHTS or dy.shape[0] != rows.batch:
        return None

    def some() -> Tensor:
        t = source.get()
        return t[rows.begin : rows.end].clone() if t.shape[0] == rows.batch else t[:0]

    with handing_out(slot, as_it_is):
        decoded = some()
    with handing_out(slot, exact.put_into):
        difference = some().sub_(decoded)
    if not difference.numel():
        return None
    return square(_WEIGHTS[op](node, dy[rows.begin : rows.end], difference))


def _convolved(node: Any, dy: Tensor, x: Tensor) -> Tensor:
    gradients = _aten.convolution_backward(
        dy,
        x,
        node._saved_weight,
        None,
        node._saved_stride,
        node._saved_padding,
        node._saved_dilation,
        node._saved_transposed,
        node._saved_output_padding,
        node._saved_groups,
        [False, True, False],
    )
    found: Tensor = gradients[1]
    return found


def _multiplied(_node: Any, dy: Tensor, x: Tensor) -> Tensor:
    return x.flatten(0, -2).t() @ dy.flatten(0, -2)


def _normed(node: Any, dy: Tensor, x: Tensor) -> Tensor:
    _, spread = statistics(node, "NativeBatchNorm")
    return (dy * x).sum([d for d in range(dy.ndim) if d != 1]) * spread


_WEIGHTS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "Convolution": _convolved,
    "Addmm": _multiplied,
    "Mm": _multiplied,
    "NativeBatchNorm": _normed,
}


# -- the ops -------------------------------------------------------------------------------


def _backward(*ops: str) -> Callable[[Backward], Backward]:
    def register(function: Backward) -> Backward:
        _backwards.update(dict.fromkeys(ops, function))
        return function

    return register


@_backward("Gelu")
def _gelu(node: Any, dy: Tensor, saved: Saved) -> Gradients:
    return (_aten.gelu_backward(dy, saved("self"), approximate=node._saved_approximate),)


@_backward("Silu")
def _silu(_node: Any, dy: Tensor, saved: Saved) -> Gradients:
    return (_aten.silu_backward(dy, saved("self")),)


@_backward("Mish")
def _mish(_node: Any, dy: Tensor, saved: Saved) -> Gradients:
    return (_aten.mish_backward(dy, saved("self")),)


@_backward("Hardswish")
def _hardswish(_node: Any, dy: Tensor, saved: Saved) -> Gradients:
    return (_aten.hardswish_backward(dy, saved("self")),)


@_backward("Tanh")
def _tanh(_node: Any, dy: Tensor, saved: Saved) -> Gradients:
    return (_aten.tanh_backward(dy, saved("result")),)


@_backward("Sigmoid")
def _sigmoid(_node: Any, dy: Tensor, saved: Saved) -> Gradients:
    return (_aten.sigmoid_backward(dy, saved("result")),)


@_backward("Softmax", "SafeSoftmax")
def _softmax(node: Any, dy: Tensor, saved: Saved) -> Gradients:
    result, dimension = saved("result"), _signed(node._saved_dim)
    if dimension % dy.ndim == 0:  # rows are not alike there
        return (None,)
    return (_aten._softmax_backward_data(dy, result, dimension, result.dtype),)


def _signed(number: int) -> int:
    """Autograd shows a negative number as one of 64 bits without a sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


@_backward("Mul")
def _mul(node: Any, dy: Tensor, saved: Saved) -> Gradients:
    one, other = (edge is not None for edge, _ in node.next_functions[:2])
    return (dy * saved("other") if one else None, dy * saved("self") if other else None)


@_backward("Pow")
def _pow(node: Any, dy: Tensor, saved: Saved) -> Gradients:
    exponent = node._saved_exponent
    return (dy * saved("self").pow(exponent - 1).mul_(exponent),)


@_backward("Bmm")
def _bmm(node: Any, dy: Tensor, saved: Saved) -> Gradients:
    one, other = (edge is not None for edge, _ in node.next_functions)
    return (
        dy @ saved("mat2").mT if one else None,
        saved("self").mT @ dy if other else None,
    )


@_backward("ScaledDotProductFlashAttentionForCpu")
def _attention(node: Any, dy: Tensor, saved: Saved) -> Gradients:
    mask = None if node._saved_attn_mask is None else saved("attn_mask")
    gradients: Gradients = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy,
        *(saved(role) for role in ("query", "key", "value", "output", "logsumexp")),
        node._saved_dropout_p,
        node._saved_is_causal,
        attn_mask=mask,
        scale=node._saved_scale,
    )
    return tuple(
        gradient if edge is not None else None
        for gradient, (edge, _) in zip(gradients, node.next_functions, strict=False)
    )
