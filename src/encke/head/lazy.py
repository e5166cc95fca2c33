"""Logits that are computed only if somebody looks at them.

Inside `LazyHead`, or another function mode that calls `intercept`, F.linear with many more
outputs than inputs gives `LazyLogits`. Shapes, slices of rows, casts to float32, factors and
soft caps stay lazy (`forms.STEPS`), and F.cross_entropy is computed without logits. Anything
else computes the logits once and goes on with them as an ordinary tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from encke.errors import EnckeError, UnsupportedError
from encke.head import hooked
from encke.head.criterion import REDUCTIONS, Criterion
from encke.head.cross_entropy import are_class_indices, cross_entropy, is_class_weight
from encke.head.eligible import is_head, is_plain_autograd, may_be_shared, not_a_head
from encke.head.embedding import embedding, shared
from encke.head.family import Family
from encke.head.forms import METADATA, STEPS, Form, whole_form
from encke.head.lazy_nodes import LazyCrossEntropy, LazyLinear, LazyStep, Replay, node_of
from encke.head.linear_cross_entropy import product_dtype


class LazyLogits(torch.Tensor):
    """A tensor with a shape and a place in autograd's graph; values only if they are needed."""

    family: Family
    form: Form
    parent: LazyLogits | None
    path: tuple[Replay, ...]
    ordinary: Tensor | None
    #: Whether a loss was computed without values from it or from a tensor made from it.
    fused: bool
    retained: Tensor | None

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        lazy = first if isinstance(first, LazyLogits) else None
        if lazy is not None and not lazy.is_computed:
            if func in METADATA:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            found = _stay_lazy(func, lazy, args[1:], kwargs)
            if found is not None:
                return found
        if func in _LOSSES:
            return _loss(func, args, kwargs)
        if func in hooked.FUNCTIONS:
            return hooked.call(func, args, kwargs)
        args, kwargs = computed((args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Reached from C++ only: autograd has done its part with the tensor without values.
        if func._schema.is_mutable:
            raise UnsupportedError(
                f"{func} would change logits that are not computed; call it on "
                "`logits.clone()`, or switch the lazy head off"
            )
        args, kwargs = tree_map_only(LazyLogits, LazyLogits.plain_values, (args, kwargs or {}))
        return func(*args, **kwargs)

    @property
    def is_computed(self) -> bool:
        """Whether its family has been computed."""
        return self.family.is_computed

    def plain_values(self) -> Tensor:
        """Its values without a history, for code below autograd."""
        if self.ordinary is not None:
            return self.ordinary.detach()
        value = self.family.values()
        for step in self.path:
            value = step(value)
        return value

    def compute(self) -> Tensor:
        """The ordinary tensor that it is from now on."""
        if self.ordinary is None:
            if not self.family.fused:
                not_a_head(self.family.weight)
            self.family.compute()
        assert self.ordinary is not None
        return self.ordinary


def computed(tree: Any) -> Any:
    """The same with ordinary tensors in place of lazy ones."""
    return tree_map_only(LazyLogits, lambda lazy: lazy.compute(), tree)


def _make(form: Form) -> Tensor:
    made: Tensor = torch.Tensor._make_wrapper_subclass(
        LazyLogits, form.shape, dtype=form.dtype, device=form.rows.device
    )
    return made


def _adopt(
    made: Any, family: Family, form: Form, parent: LazyLogits | None, path: tuple[Replay, ...]
) -> LazyLogits:
    made.family, made.form, made.parent, made.path = family, form, parent, path
    made.ordinary = made.retained = None
    made.fused = False
    family.members.append(weakref.ref(made))
    return cast(LazyLogits, made)


def _stay_lazy(func: Any, lazy: LazyLogits, args: Any, kwargs: Any) -> Any:
    """The lazy result of a function; None if it must be computed."""
    step = STEPS.get(func)
    if step is None or not is_plain_autograd():
        return None
    try:
        form = step(lazy.form, *args, **kwargs)
    except TypeError:
        return None  # arguments that the real function takes, or refuses
    if form is None:
        return None
    if form is lazy.form:
        return lazy
    path = (*lazy.path, _replay(func, args, kwargs, lazy.form.rows.device.type))
    root = lazy.family.root
    made = LazyStep.apply(lazy, (lazy.form, form), path, root, _make)  # type: ignore[no-untyped-call]
    return _adopt(made, lazy.family, form, lazy, path)


def _replay(func: Any, args: Any, kwargs: Any, device: str) -> Replay:
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def replay(value: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            result: Tensor = func(value, *args, **kwargs)
            return result

    return replay


def _loss_arguments(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Any, Any, Any, Criterion] | None:
    """The arguments of F.cross_entropy and F.nll_loss; None if torch must look at them."""
    if size_average is not None or reduce is not None or reduction not in REDUCTIONS:
        return None
    if type(label_smoothing) not in (int, float) or not 0 <= label_smoothing <= 1:
        return None
    criterion = Criterion(
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=float(label_smoothing),
    )
    return input, target, weight, criterion


_LOSSES: dict[Any, bool] = {F.cross_entropy: False, F.nll_loss: True}


def _loss(func: Any, args: Any, kwargs: Any) -> Any:
    try:
        given = _loss_arguments(*args, **kwargs)
    except TypeError:
        given = None
    if given is not None and isinstance(given[0], LazyLogits):
        found = _fused_loss(given[0], *given[1:], log_softmax=_LOSSES[func])
        if found is not None:
            return found
    args, kwargs = computed((args, kwargs))
    found = intercept(func, args, kwargs)
    return func(*args, **kwargs) if found is NotImplemented else found


def _fused_loss(
    lazy: LazyLogits, target: Any, weight: Any, criterion: Criterion, *, log_softmax: bool
) -> Tensor | None:
    form, family = lazy.form, lazy.family
    if lazy.is_computed or form.log_softmax != log_softmax or not is_plain_autograd():
        return None
    if form.class_dim != min(1, form.dims - 1) or not are_class_indices(
        target, form.rows.device
    ):
        return None
    if target.shape != form.rows.shape or not is_class_weight(weight, lazy):
        return None
    if family.change() is not None:
        return None  # computing it raises the error
    loss_dtype = form.dtype
    if torch.is_autocast_enabled(form.rows.device.type) and loss_dtype != torch.float64:
        loss_dtype = torch.float32
    family.fused = True
    member: LazyLogits | None = lazy
    while member is not None:  # the gradient passes through all of them
        member.fused, member = True, member.parent
    loss: Tensor = LazyCrossEntropy.apply(
        lazy, family, form, target, weight, criterion, loss_dtype, lazy.path, family.root
    )  # type: ignore[no-untyped-call]
    return loss


def intercept(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of a torch function that this module computes; NotImplemented for others.

    For a function mode: it calls this first, and the function itself if it gets NotImplemented.

    >>> intercept(torch.relu, (torch.ones(2),), {})
    NotImplemented
    """
    if func is F.linear:
        return _linear(*args, **(kwargs or {}))
    if func is F.embedding:
        return _embedding(*args, **(kwargs or {}))
    if func is F.cross_entropy and is_plain_autograd():
        try:
            given = _loss_arguments(*args, **(kwargs or {}))
        except TypeError:
            return NotImplemented
        if given is None or type(given[0]) is not Tensor:
            return NotImplemented
        found = cross_entropy(*given)
        return NotImplemented if found is None else found
    return NotImplemented


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    if not is_head(input, weight, bias):
        return NotImplemented
    try:
        dtype, _ = product_dtype(input, weight, bias)
    except EnckeError:
        return NotImplemented
    form = whole_form(
        tuple(input.shape[:-1]), weight.shape[0], dtype=dtype, device=input.device
    )
    made = LazyLinear.apply(input, shared(weight), bias, form, _make, [weight])  # type: ignore[no-untyped-call]
    family = Family(input, weight, bias, dtype=dtype, root=node_of(made))
    return _adopt(made, family, form, None, ())


def _embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    if max_norm is not None or scale_grad_by_freq or sparse or not may_be_shared(input, weight):
        return NotImplemented
    return embedding(input, weight, padding_idx)


class LazyHead(TorchFunctionMode):
    """While entered, F.linear and F.cross_entropy of a language model's head are lazy.

    >>> with LazyHead():
    ...     loss = F.cross_entropy(torch.randn(4, 9, requires_grad=True), torch.arange(4))
    >>> loss.shape
    torch.Size([])
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = intercept(func, args, kwargs)
        return func(*args, **(kwargs or {})) if found is NotImplemented else found
