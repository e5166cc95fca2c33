"""What a lazy tensor stands for, and which functions give another lazy tensor.

A `Form` says from which hidden states a tensor's rows come, where its class dimension is, and
what was done to the logits: a scale, a soft cap, log-softmax. A function stays lazy if its
result has a `Form`; `STEPS` lists those functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from encke.head.blocks import HALF


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """What a lazy tensor stands for.

    rows           for each row, which of the flat hidden states it comes from
    whole          whether the rows are all hidden states in order
    class_dim      the dimension of the classes, counted from 0
    scale, cap     the values are cap · tanh(scale · product), or scale · product without cap
    log_softmax    whether log-softmax was taken of that
    """

    rows: Tensor
    whole: bool
    class_dim: int
    classes: int
    dtype: torch.dtype
    scale: float = 1.0
    cap: float | None = None
    log_softmax: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        lead = list(self.rows.shape)
        lead.insert(self.class_dim, self.classes)
        return tuple(lead)

    @property
    def dims(self) -> int:
        return self.rows.dim() + 1

    @property
    def classes_last(self) -> bool:
        return self.class_dim == self.rows.dim()

    def slope(self, loss: Form) -> tuple[float, bool]:
        """The derivative of what `loss` stands for by what this stands for.

        A factor, and whether 1 - tanh² multiplies it. `loss` was made from this.
        """
        if loss.cap is None:
            return loss.scale / self.scale, False
        if self.cap is not None:
            return loss.cap / self.cap, False
        return loss.cap * loss.scale / self.scale, True


def whole_form(lead: tuple[int, ...], classes: int, *, dtype: torch.dtype, device: Any) -> Form:
    """The form of fresh logits."""
    rows = torch.arange(math.prod(lead), device=device).view(lead)
    return Form(rows=rows, whole=True, class_dim=len(lead), classes=classes, dtype=dtype)


def _with_rows(form: Form, rows: Tensor, *, ordered: bool = True) -> Form:
    whole = form.whole and ordered and rows.numel() == form.rows.numel()
    return replace(form, rows=rows, whole=whole, class_dim=rows.dim())


def _reshape(form: Form, *shape: Any) -> Form | None:
    sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
    if not form.classes_last or not sizes or not all(type(n) is int for n in sizes):
        return None
    count = form.rows.numel() * form.classes
    if sizes.count(-1) == 1:
        rest = math.prod(n for n in sizes if n != -1)
        if rest == 0 or count % rest:
            return None
        sizes[sizes.index(-1)] = count // rest
    if sizes[-1] != form.classes or min(sizes) < 0 or math.prod(sizes) != count:
        return None
    return _with_rows(form, form.rows.reshape(sizes[:-1]))


def _flatten(form: Form, start_dim: int = 0, end_dim: int = -1) -> Form | None:
    start, end = start_dim % form.dims, end_dim % form.dims
    if not form.classes_last or end >= form.class_dim or start > end:
        return None
    return _with_rows(form, form.rows.flatten(start, end))


def _index(form: Form, key: Any) -> Form | None:
    if not form.classes_last:
        return None
    if isinstance(key, Tensor):
        if type(key) is not Tensor or key.dtype != torch.bool or not 0 < key.dim() < form.dims:
            return None
        return _with_rows(form, form.rows[key])
    keys = list(key) if isinstance(key, tuple) else [key]
    if not all(k is None or k is ... or type(k) in (int, slice) for k in keys):
        return None
    missing = form.dims - sum(k is not None and k is not ... for k in keys)
    places = [n for n, k in enumerate(keys) if k is ...]
    if len(places) > 1 or missing < 0:
        return None
    place = places[0] if places else len(keys)
    keys[place : place + 1] = [slice(None)] * missing
    last = keys.pop()  # of the classes, unless a new dimension comes after them
    if not isinstance(last, slice) or last.indices(form.classes) != (0, form.classes, 1):
        return None
    try:
        return _with_rows(form, form.rows[tuple(keys)])
    except (IndexError, TypeError, ValueError):
        return None  # the real tensor raises what torch raises


def _permute(form: Form, *order: Any) -> Form | None:
    dims = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
    wanted = [d % form.dims for d in dims if type(d) is int]
    if sorted(wanted) != list(range(form.dims)):
        return None
    row_dims = [d - (d > form.class_dim) for d in wanted if d != form.class_dim]
    return replace(
        form,
        rows=form.rows.permute(row_dims),
        whole=form.whole and row_dims == sorted(row_dims),
        class_dim=wanted.index(form.class_dim),
    )


def _transpose(form: Form, dim0: Any, dim1: Any) -> Form | None:
    if type(dim0) is not int or type(dim1) is not int:
        return None
    if not all(-form.dims <= d < form.dims for d in (dim0, dim1)):
        return None
    order = list(range(form.dims))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permute(form, order)


def _contiguous(form: Form) -> Form:
    return form if form.whole and form.classes_last else replace(form)


def _to_float(form: Form) -> Form | None:
    return _to(form, torch.float32)


def _to(form: Form, *wanted: Any, **named: Any) -> Form | None:
    if not set(named) <= {"dtype", "device"} or len(wanted) > 2:
        return None
    result = form
    for value in (*wanted, *(v for v in named.values() if v is not None)):
        if isinstance(value, torch.dtype):
            if value == torch.float32 and form.dtype in HALF:
                result = replace(form, dtype=value)
            elif value != form.dtype:
                return None
        elif isinstance(value, str | torch.device):
            try:
                device = torch.device(value)
            except RuntimeError:
                return None
            if device != form.rows.device:
                return None
        else:
            return None
    return result


def _times(form: Form, factor: Any, *, divide: bool = False) -> Form | None:
    if type(factor) not in (int, float) or not math.isfinite(factor) or factor == 0:
        return None
    if form.log_softmax:
        return None
    by = 1 / factor if divide else float(factor)
    if not math.isfinite(by) or by == 0:
        return None
    if form.cap is None:
        return replace(form, scale=form.scale * by)
    return replace(form, cap=form.cap * by)


def _divided(form: Form, factor: Any) -> Form | None:
    return _times(form, factor, divide=True)


def _tanh(form: Form) -> Form | None:
    if form.cap is not None or form.log_softmax:
        return None
    return replace(form, cap=1.0)


def _log_softmax(
    form: Form,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Form | None:
    if type(dim) is not int or dim % form.dims != form.class_dim or form.log_softmax:
        return None
    result = form.dtype if dtype is None else dtype
    if dtype is None and torch.is_autocast_enabled(form.rows.device.type):
        result = torch.float32
    if result != form.dtype and (result != torch.float32 or form.dtype not in HALF):
        return None
    return replace(form, dtype=result, log_softmax=True)


def _log_softmax_of_torch(form: Form, dim: Any, dtype: Any = None) -> Form | None:
    return _log_softmax(form, dim, dtype=dtype)


#: Functions that may stay lazy: each gives the form of the result, or None to compute it. The
#: same form means that the function returns the tensor it was given.
STEPS: dict[Any, Callable[..., Form | None]] = {
    Tensor.view: _reshape,
    Tensor.reshape: _reshape,
    torch.reshape: _reshape,
    Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    Tensor.__getitem__: _index,
    Tensor.permute: _permute,
    torch.permute: _permute,
    Tensor.transpose: _transpose,
    torch.transpose: _transpose,
    Tensor.contiguous: _contiguous,
    Tensor.float: _to_float,
    Tensor.to: _to,
    Tensor.mul: _times,
    torch.mul: _times,
    Tensor.div: _divided,
    torch.div: _divided,
    Tensor.tanh: _tanh,
    torch.tanh: _tanh,
    F.log_softmax: _log_softmax,
    Tensor.log_softmax: _log_softmax_of_torch,
    torch.log_softmax: _log_softmax_of_torch,
}

_ATTRIBUTES = """
    device dtype grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_nested is_quantized
    is_sparse is_sparse_csr is_xla is_xpu itemsize layout nbytes ndim output_nr
    requires_grad shape
"""
_METHODS = """
    __len__ dim element_size get_device is_complex is_floating_point ndimension nelement
    numel size
"""
#: What a lazy tensor tells without being computed.
METADATA = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES.split()),
        *(getattr(Tensor, name) for name in _METHODS.split()),
    ]
)
