"""Backward kernels that use the memory of the tensors a tape has just decoded.

A node's backward is torch's own, and holds several tensors of the activation's size at a time:
what comes in, what is decoded, what goes out, and copies in a layout that suits a convolution.
Three of torch's CPU kernels are therefore replaced by ones that work as before, except on a
tensor that a tape has lent to them:

- a convolution takes a few samples at a time, and writes their gradient over them;
- a batch norm writes the gradient of its input over its input;
- a ReLU is told its bits, and gets no mask of the gradient's size.

What is lent is known by the address of its memory, and only for as long as it lives. Tensors
that no tape has decoded never take these ways, nor does anything while a graph of the backward
pass itself is built.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from encke.ops.select import select

#: Bytes of a convolution's samples that are worked on together.
_SLICE = 4 << 20
#: Convolutions whose input and output have fewer bytes are done at once.
_LARGE = 6 << 20

_OWNED = "owned"
_lent: dict[int, tuple[weakref.ref[Any], Any]] = {}
_library: Any = None
_originals: dict[str, Any] = {}
_installing = threading.Lock()


def can_lend() -> bool:
    """Whether the kernels are in place; puts them there when first asked."""
    if _library is None:
        with _installing:
            if _library is None:
                _install()
    return bool(_originals)


def lend(t: Tensor) -> None:
    """Let the op that gets `t` next use its memory for what it returns."""
    _note(t, _OWNED)


def stand_in(like: Tensor | Sequence[int], block: Callable[[Tensor], Tensor]) -> Tensor:
    """Something of a ReLU's shape that takes no memory, in place of the ReLU's result.

    block  sets a gradient to zero where the ReLU does
    """
    one = torch.ones(1)
    _note(one, block)
    return one.expand(tuple(like))


def _note(t: Tensor, what: Any) -> None:
    storage = t.untyped_storage()
    key = storage.data_ptr()
    _lent[key] = weakref.ref(storage, lambda _: _lent.pop(key, None)), what


def _taken(t: Tensor) -> Any:
    """What was noted of a tensor; it is forgotten."""
    if not _lent:
        return None
    found = _lent.pop(t.untyped_storage().data_ptr(), None)
    return None if found is None else found[1]


def _install() -> None:
    global _library
    get_kernel = getattr(torch.library, "get_kernel", None)
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    if get_kernel is None:  # an older torch: everything stays as it is
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced
        for name, kernel in _KERNELS.items():
            _originals[name] = get_kernel(f"aten::{name}", "CPU")
            _library.impl(name, kernel, "CPU", with_keyset=True)


def _threshold(keys: Any, dy: Tensor, result: Tensor, threshold: float) -> Tensor:
    block = _taken(result) if _lent else None
    if callable(block):
        blocked: Tensor = block(dy)
        return blocked
    found: Tensor = _originals["threshold_backward"].call_boxed(keys, dy, result, threshold)
    return found


def _norm(keys: Any, dy: Tensor, x: Tensor, *rest: Any) -> Any:
    weight, _, _, mean, spread, training, _, wanted = rest
    if (
        _lent
        and _taken(x) is _OWNED
        and training
        and wanted[0]
        and x.is_contiguous()
        and dy.is_contiguous()
        and all(t is None or t.dtype == torch.float32 for t in (x, dy, weight, mean, spread))
    ):
        kernels = select(x.device)
        if hasattr(kernels, "norm_backward"):
            found = kernels.norm_backward(dy, x, mean, spread, weight)
            sums = (g if want else None for g, want in zip(found, wanted[1:], strict=True))
            return x.detach(), *sums
    return _originals["native_batch_norm_backward"].call_boxed(keys, dy, x, *rest)


def _convolution(keys: Any, dy: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    original = _originals["convolution_backward"].call_boxed
    count = 0
    if _lent and _taken(x) is _OWNED:
        count = samples_at_a_time(x, dy, weight)
    if not count:
        return original(keys, dy, x, weight, *rest)
    wanted = rest[-1]
    through = x.detach() if wanted[0] else None
    sums: list[Tensor | None] = [None, None]
    for begin in range(0, x.shape[0], count):
        rows = slice(begin, begin + count)
        found = original(keys, dy[rows], x[rows], weight, *rest)
        if through is not None:
            through[rows].copy_(found[0])
        for place in (0, 1):
            one = found[place + 1]
            if wanted[place + 1] and one is not None:
                before = sums[place]
                sums[place] = one if before is None else before.add_(one)
    return through, *sums


def samples_at_a_time(x: Tensor, dy: Tensor, weight: Tensor) -> int:
    """How many samples of a convolution to work on together; 0 for all of them.

    Not where the weights' gradients, which every slice adds to, are as large as what is spared.

    >>> x = torch.empty(16, 64, 64, 64)
    >>> samples_at_a_time(x, x, torch.empty(64, 64, 3, 3))
    4
    >>> samples_at_a_time(x[:4], x[:4], torch.empty(64, 64, 3, 3))
    0
    """
    batch = x.shape[0]
    size = max(x.numel() * x.element_size(), dy.numel() * dy.element_size())
    slices = min(batch, -(-size // _SLICE))
    if size < _LARGE or slices < 2 or x.dtype != torch.float32:
        return 0
    if slices * weight.numel() * weight.element_size() > size:
        return 0
    return -(-batch // slices)


_KERNELS = {
    "threshold_backward": _threshold,
    "native_batch_norm_backward": _norm,
    "convolution_backward": _convolution,
}
