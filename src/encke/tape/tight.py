"""Bytes of masks and places, squeezed where neighbours are alike.

One bit a value is all that a mask of noise can be kept in. Those of a network's first layers
are patches as large as what is in the image: zstd's fastest level finds that, at some hundred
megabytes a second, and gives up at once where there is nothing to find.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from encke.codec.frames import bytes_of, frame_of

_LEVEL = 1
_SMALLEST = 2048  # bytes: below, nothing is gained
_WORTH = 0.95  # of the bytes: a frame that is longer is not kept


class Tight:
    """A tensor of bytes, as it is or as a zstd frame.

    >>> alike, noise = torch.zeros(8192).byte(), torch.randint(0, 256, (8192,)).byte()
    >>> Tight(alike).nbytes < 100, Tight(noise).nbytes
    (True, 8192)
    >>> torch.equal(Tight(alike).get(), alike), torch.equal(Tight(noise).get(), noise)
    (True, True)
    """

    __slots__ = ("_bytes", "_frame", "_size")

    def __init__(self, data: Tensor) -> None:
        self._bytes: Tensor | None = data
        self._frame, self._size = b"", data.numel()
        if data.device.type == "cpu" and self._size >= _SMALLEST:
            frame = frame_of(data.numpy().data, level=_LEVEL)
            if len(frame) < _WORTH * self._size:
                self._frame, self._bytes = frame, None

    @property
    def nbytes(self) -> int:
        return self._size if self._bytes is not None else len(self._frame)

    def get(self) -> Tensor:
        if self._bytes is not None:
            return self._bytes
        found = torch.empty(self._size, dtype=torch.uint8)
        found.numpy()[:] = np.frombuffer(bytes_of(self._frame, self._size), dtype=np.uint8)
        return found
