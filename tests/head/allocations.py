"""The largest tensor that code makes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from encke.head.lazy import LazyLogits
from encke.head.lazy_gradient import LazyGradient


class LargestTensor(TorchDispatchMode):
    """While entered, notes the bytes of the largest storage behind an op's result."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and not isinstance(one, LazyLogits | LazyGradient):
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return result
