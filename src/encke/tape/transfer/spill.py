"""Packed bytes that leave the device: to the host, or from the host to a temporary file."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from encke.codec import Packed


class Spooled:
    """A packed tensor whose payload lies elsewhere until it is asked for."""

    __slots__ = ("_device", "_file", "_host", "_packed", "_size")

    def __init__(self, packed: Packed) -> None:
        self._device = packed.payload.device
        self._size = packed.payload.numel()
        self._packed = replace(packed, payload=torch.empty(0, dtype=torch.uint8))
        self._host: Tensor | None = None
        self._file = None
        if self._device.type == "cpu":
            self._file = tempfile.TemporaryFile(prefix="encke-")  # noqa: SIM115
            packed.payload.numpy().tofile(self._file)
            self._file.flush()
        else:
            self._host = packed.payload.to("cpu", non_blocking=False)

    def decompress(self) -> Tensor:
        if self._file is not None:
            self._file.seek(0)
            data = np.fromfile(self._file, dtype=np.uint8, count=self._size)
            payload = torch.from_numpy(data)
        else:
            assert self._host is not None
            payload = self._host.to(self._device)
        return replace(self._packed, payload=payload).decompress()

    @property
    def nbytes(self) -> int:
        """Bytes that were moved."""
        return self._size
