"""The output of an element-wise op, from its operands.

An RMS norm, a gated unit or a GELU that is written out saves every step on the way. All of
them follow from one or two tensors that are kept: `x * rsqrt(...)` from x and the row's
statistic, `silu(gate) * up` from both factors, `1 + tanh(...)` from x. Divisions by anything
but a number, exponentials, roots and high powers are not repeated: they would make the error
of what is kept larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from encke.tape.autograd.nodes import has_hooks, notes, op_name, raw_saved, saved_tensor
from encke.tape.batch_norm.channels import NORMS
from encke.tape.recompute.finder import Recipe, RecomputeFinder, recipe
from encke.tape.storage.sources import (
    CombinedSource,
    RecomputedSource,
    TensorSource,
    TwoValueMask,
    Unstored,
)

_NUMBER = "encke.number"
_SUMS: frozenset[Any] = frozenset(
    [
        torch.add,
        torch.sub,
        torch.rsub,
        Tensor.add,
        Tensor.add_,
        Tensor.sub,
        Tensor.sub_,
        Tensor.__add__,
        Tensor.__radd__,
        Tensor.__iadd__,
        Tensor.__sub__,
        Tensor.__rsub__,
        Tensor.__isub__,
    ]
)


def note_number(function: Any, arguments: Any, result: Any) -> None:
    """Remember the number that was added to a tensor: autograd does not."""
    if function in _SUMS and len(arguments) == 2 and isinstance(result, Tensor):
        number = next((a for a in arguments if isinstance(a, int | float)), None)
        if number is not None and result.grad_fn is not None:
            notes(result.grad_fn)[_NUMBER] = number


def _operand(d: RecomputeFinder, node: Any, edge: int, role: str) -> TensorSource | None:
    """The values of an operand: saved by the op itself, or computed like any other tensor."""
    raw = raw_saved(node, role) if role else None
    if raw is not None and has_hooks(raw):
        return d.kept(node, role)
    try:
        t = None if raw is None else saved_tensor(node, role)
    except RuntimeError:
        return None  # changed in place since: autograd will say so in backward
    if t is None:
        return d.input_of(node, edge)
    # A parameter or a buffer, which the tape leaves alone.
    return Unstored(t, f"{role} of {op_name(node)}")


def _combined(
    d: RecomputeFinder,
    node: Any,
    roles: tuple[str, ...],
    function: Callable[..., Tensor],
    how: str,
) -> TensorSource | None:
    operands = []
    for edge, role in enumerate(roles):
        found = _operand(d, node, edge, role)
        if found is None:
            return None
        operands.append(found)
    if not any(True for one in operands for _ in one.slots()):
        return None  # of parameters and numbers alone
    dtype = node._input_metadata[0].dtype
    return CombinedSource(operands, lambda *x: function(*x).to(dtype), how)


def _activation(function: Callable[..., Tensor], name: str, *, exact: bool = False) -> Recipe:
    """`exact`: where the same function of the same values has been taken before."""

    def found(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
        if not (exact or d.arithmetic):
            return None
        options = {"approximate": node._saved_approximate} if name == "gelu" else {}
        role = "" if raw_saved(node, "self") is None else "self"
        return _combined(d, node, (role,), lambda x: function(x, **options), name)

    return found


recipe("Gelu")(_activation(F.gelu, "gelu", exact=True))
recipe("Silu")(_activation(F.silu, "silu", exact=True))
recipe("Mish")(_activation(F.mish, "mish", exact=True))
recipe("Hardswish")(_activation(F.hardswish, "hardswish", exact=True))
recipe("Tanh")(_activation(torch.tanh, "tanh"))
recipe("Sigmoid")(_activation(torch.sigmoid, "sigmoid"))
recipe("Erf")(_activation(torch.erf, "erf"))
recipe("Sin")(_activation(torch.sin, "sin"))
recipe("Cos")(_activation(torch.cos, "cos"))
recipe("Neg")(_activation(torch.neg, "negative"))


@recipe("Pow")
def _power(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    exponent = node._saved_exponent
    if not d.arithmetic or not isinstance(exponent, int | float) or exponent not in (2, 3):
        return None
    return _combined(d, node, ("self",), lambda x: x.pow(exponent), "power")


@recipe("Mul")
def _product(d: RecomputeFinder, node: Any, shape: tuple[int, ...]) -> TensorSource | None:
    noise = d.source(node, "other")
    if isinstance(noise, TwoValueMask):
        parent = d.input_of(node, 0)
        if parent is None or not any(True for _ in parent.slots()):
            return None
        return RecomputedSource(parent, lambda x: x * noise.get(), f"dropout of {parent.how}")
    return _combined(d, node, ("self", "other"), torch.mul, "product") if d.arithmetic else None


@recipe("Div")
def _quotient(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    """By a number; anything else would divide an error by a value that may be small."""
    divisor = d.source(node, "other")
    slot = next(divisor.slots(), None) if divisor is not None else None
    if not d.arithmetic or slot is None or slot.values != 1 or node.next_functions[1][0]:
        return None
    return _combined(d, node, ("self", "other"), torch.div, "quotient")


def _sum(sign: int) -> Recipe:
    def found(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
        makers = [maker for maker, _ in node.next_functions]
        if not d.arithmetic or any(m is not None and op_name(m) in NORMS for m in makers):
            return None  # a residual block's last norm: `tape.batch_norm.residual` does better
        scale = sign * node._saved_alpha
        number = notes(node).get(_NUMBER)
        if number is None:
            return _combined(
                d, node, ("", ""), lambda a, b: torch.add(a, b, alpha=scale), "sum"
            )
        return _combined(d, node, ("",), lambda a: a + scale * number, "sum")

    return found


recipe("Add")(_sum(1))
recipe("Sub")(_sum(-1))


@recipe("Rsub")
def _difference(d: RecomputeFinder, node: Any, _shape: tuple[int, ...]) -> TensorSource | None:
    """A number less a tensor."""
    number, scale = notes(node).get(_NUMBER), node._saved_alpha
    if number is None or not d.arithmetic:
        return None
    return _combined(d, node, ("",), lambda a: number - scale * a, "difference")
