"""Computing a tensor from another kept one, instead of keeping both.

`value_of(node, shape)` follows the graph from the op that made a tensor back to something
that is kept with its values: ReLU's output comes from its exact mask and its input, a norm's
from its input and its exact statistics, GELU's from its input, a reshaped copy from the
original. What is found is a `Source`; None means that the tensor has to be stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from encke.codec import layout
from encke.ops.select import select
from encke.tape.channels import statistics
from encke.tape.graph import kept_for, leaf_behind, op_name
from encke.tape.kept import Derived, Sides, Source, TwoValued, Whole, Window

Recipe = Callable[["Deriver", Any, tuple[int, ...]], Source | None]
_recipes: dict[str, Recipe] = {}
_DEEPEST = 8


def recipe(*ops: str) -> Callable[[Recipe], Recipe]:
    """Register how the output of `ops` follows from what those ops keep."""

    def register(function: Recipe) -> Recipe:
        for op in ops:
            _recipes[op] = function
        return function

    return register


class Deriver:
    """Looks for a way to compute an op's output.

    arithmetic  whether norms may be evaluated again, which is exact but for rounding
    recompute   whether products (linear layers, convolutions) may be run again
    """

    def __init__(self, *, arithmetic: bool = True, recompute: bool = False) -> None:
        self.arithmetic, self.recompute = arithmetic, recompute
        self._depth = 0

    def value_of(self, node: Any, shape: tuple[int, ...]) -> Source | None:
        if node is None or self._depth >= _DEEPEST:
            return None
        found = _recipes.get(op_name(node))
        if found is None:
            return None
        self._depth += 1
        try:
            return found(self, node, shape)
        finally:
            self._depth -= 1

    def kept(self, node: Any, role: str) -> Source | None:
        """What the tape keeps of a role, if that gives values."""
        source = self.source(node, role)
        if isinstance(source, Whole | Window):
            # A source counts who will ask for its slot: each consumer has its own.
            return type(source)(*source.again())
        return source if isinstance(source, Derived) else None

    @staticmethod
    def source(node: Any, role: str) -> Source | None:
        return getattr(kept_for(node, role), "source", None)


class Affine(Derived):
    """A batch norm with its statistics known: gain and shift for each channel.

    own  the norm's weight and bias
    """

    __slots__ = ("_gain", "_own", "_shift")

    def __init__(
        self,
        of: Source,
        gain: Tensor,
        shift: Tensor,
        own: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> None:
        def compute(x: Tensor) -> Tensor:
            channels = (1, -1) + (1,) * (x.ndim - 2)
            return torch.addcmul(
                shift.view(channels).to(x.dtype), x, gain.view(channels).to(x.dtype)
            )

        super().__init__(of, compute, "batch norm")
        self._gain, self._shift, self._own = gain, shift, own

    def behind(self, sides: Sides) -> Derived:
        """The same with a ReLU after it, in one pass where memory allows."""
        plain, gain, shift = self._compute, self._gain, self._shift

        def compute(x: Tensor) -> Tensor:
            order = layout.memory_order(x)
            channel = order.index(1)
            inner = math.prod(x.shape[d] for d in order[channel + 1 :])
            bits = sides.bits
            if bits is None or order != sides.order or gain.dtype != x.dtype:
                return _where(sides, plain(x))
            kernels = select(x.device)
            memory = layout.to_memory(x, order)
            y = kernels.affine_where(memory, bits, gain, shift, inner)
            return layout.from_memory(y, order)

        return Passed(self._of, compute, sides, self._own, f"mask of {self.how}")


class Passed(Derived):
    """A batch norm with a ReLU after it; from a gated slot in one pass."""

    __slots__ = ("_own", "_sides")

    def __init__(
        self,
        of: Source,
        compute: Callable[[Tensor], Tensor],
        sides: Sides,
        own: tuple[Tensor | None, Tensor | None],
        how: str,
    ) -> None:
        super().__init__(of, compute, how)
        self._sides, self._own = sides, own

    def get(self) -> Tensor:
        slot = self._of.slot if isinstance(self._of, Whole) else None
        gain, shift = self._own
        gated = slot is not None and slot.gate is not None and slot.gate.is_of(self._sides)
        if not gated or slot is None or slot.noise is not None or gain is None or shift is None:
            return super().get()
        return slot.passed(gain, shift)


def _where(sides: Sides, x: Tensor) -> Tensor:
    """x on the one side, zero on the other (not a product, which would keep a NaN)."""
    return torch.where(sides.mask(), x, torch.zeros((), dtype=x.dtype, device=x.device))


def _parent(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    return d.value_of(node.next_functions[0][0], shape)


@recipe("Relu")
def _relu(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    sides = d.source(node, "result")
    if not isinstance(sides, Sides):
        return None
    parent = _parent(d, node, shape)
    if parent is None:
        return None
    if isinstance(parent, Affine):
        return parent.behind(sides)

    return Derived(parent, lambda x: _where(sides, x), f"mask of {parent.how}")


def _elementwise(function: Callable[..., Tensor], name: str) -> Recipe:
    def found(d: Deriver, node: Any, _shape: tuple[int, ...]) -> Source | None:
        source = d.kept(node, "self")
        if source is None:
            return None
        options = {}
        if name == "gelu":
            options["approximate"] = node._saved_approximate
        return Derived(source, lambda x: function(x, **options), name)

    return found


recipe("Gelu")(_elementwise(F.gelu, "gelu"))
recipe("Silu")(_elementwise(F.silu, "silu"))
recipe("Mish")(_elementwise(F.mish, "mish"))
recipe("Hardswish")(_elementwise(F.hardswish, "hardswish"))


def _offset(node: Any, edge: int, scale: Tensor | None) -> tuple[bool, Tensor | None]:
    """Whether a norm's bias is known, and the bias, which autograd has only as an edge."""
    if len(node.next_functions) > edge and node.next_functions[edge][0] is not None:
        leaf = leaf_behind(node.next_functions[edge][0])
        return leaf is not None, None if leaf is None else leaf.detach()
    return scale is None, None


@recipe("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")
def _batch_norm(d: Deriver, node: Any, _shape: tuple[int, ...]) -> Source | None:
    source = d.kept(node, "input") if d.arithmetic else None
    if source is None:
        return None
    scale = node._saved_weight
    known, offset = _offset(node, 2, scale)
    if not known:
        return None
    mean, spread = statistics(node, op_name(node))
    gain = spread if scale is None else spread * scale.detach()
    shift = -mean * gain if offset is None else offset - mean * gain

    own = None if scale is None else scale.detach()
    return Affine(source, gain, shift, (own, None if offset is None else offset.detach()))


@recipe("NativeLayerNorm")
def _layer_norm(d: Deriver, node: Any, _shape: tuple[int, ...]) -> Source | None:
    source = d.kept(node, "input") if d.arithmetic else None
    if source is None:
        return None
    mean, spread = node._saved_result1.detach(), node._saved_result2.detach()
    scale, offset = node._saved_weight, node._saved_bias

    def compute(x: Tensor) -> Tensor:
        y = torch.addcmul((-mean * spread).to(x.dtype), x, spread.to(x.dtype))
        if scale is not None:
            y = y.mul_(scale.detach())
        return y if offset is None else y.add_(offset.detach())

    return Derived(source, compute, "layer norm")


@recipe("Mul")
def _dropout(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    noise = d.source(node, "other")
    if not isinstance(noise, TwoValued):
        return None
    maker, number = node.next_functions[0]
    if maker is None or tuple(maker._input_metadata[number].shape) != shape:
        return None  # it was broadcast
    parent = _parent(d, node, shape)
    if parent is None:
        return None
    return Derived(parent, lambda x: x * noise.get(), f"dropout of {parent.how}")


@recipe(
    "ScaledDotProductFlashAttentionForCpu",
    "ScaledDotProductFlashAttention",
    "ScaledDotProductEfficientAttention",
    "ScaledDotProductCudnnAttention",
)
def _attention(d: Deriver, node: Any, _shape: tuple[int, ...]) -> Source | None:
    return d.kept(node, "output") or d.kept(node, "out")


@recipe("View", "UnsafeView", "ReshapeAlias")
def _view(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    before = getattr(node, "_saved_self_sym_sizes", None)
    if before is None:
        return None
    parent = _parent(d, node, tuple(before))
    return parent and Derived(parent, lambda x: x.reshape(shape), parent.how)


@recipe("Transpose")
def _transpose(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    one, other = (_signed(i, len(shape)) for i in (node._saved_dim0, node._saved_dim1))
    before = list(shape)
    before[one], before[other] = before[other], before[one]
    parent = _parent(d, node, tuple(before))
    return parent and Derived(parent, lambda x: x.transpose(one, other), parent.how)


@recipe("Permute")
def _permute(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    order = tuple(_signed(i, len(shape)) for i in node._saved_dims)
    before = [0] * len(shape)
    for place, dimension in enumerate(order):
        before[dimension] = shape[place]
    parent = _parent(d, node, tuple(before))
    return parent and Derived(parent, lambda x: x.permute(order), parent.how)


@recipe("T")
def _t(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    parent = _parent(d, node, shape[::-1])
    return parent and Derived(parent, lambda x: x.t(), parent.how)


@recipe("Clone", "Contiguous", "Alias", "ToCopy")
def _same(d: Deriver, node: Any, shape: tuple[int, ...]) -> Source | None:
    return _parent(d, node, shape)


def _signed(dimension: int, count: int) -> int:
    """A dimension as torch's nodes store it: negative ones as unsigned 64-bit numbers."""
    if dimension >= 1 << 63:
        dimension -= 1 << 64
    return dimension % count


@recipe("Addmm")
def _linear(d: Deriver, node: Any, _shape: tuple[int, ...]) -> Source | None:
    if not d.recompute or node._saved_alpha != 1 or node._saved_beta != 1:
        return None
    source = d.kept(node, "mat1")
    bias = leaf_behind(node.next_functions[0][0])
    weight = node._saved_mat2 if source is not None and bias is not None else None
    if source is None or bias is None or weight is None:
        return None
    product = weight.detach(), bias.detach()
    return Derived(source, lambda x: torch.addmm(product[1], x, product[0]), "linear again")


@recipe("Convolution")
def _convolution(d: Deriver, node: Any, _shape: tuple[int, ...]) -> Source | None:
    if not d.recompute:
        return None
    source = d.kept(node, "input")
    weight = node._saved_weight
    has_bias = node._saved_bias_sym_sizes_opt not in (None, (0,), [0])
    bias = leaf_behind(node.next_functions[2][0]) if has_bias else None
    if source is None or (has_bias and bias is None):
        return None
    product = weight.detach(), None if bias is None else bias.detach()
    geometry = (
        node._saved_stride,
        node._saved_padding,
        node._saved_dilation,
        node._saved_transposed,
        node._saved_output_padding,
        node._saved_groups,
    )

    def compute(x: Tensor) -> Tensor:
        return torch.convolution(x, *product, *(_signed_all(g) for g in geometry))

    return Derived(source, compute, "convolution again")


def _signed_all(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
