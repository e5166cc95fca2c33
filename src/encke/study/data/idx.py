"""The idx format of the MNIST family, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from encke.study.data.errors import BrokenDataError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> Tensor:
    """The uint8 tensor in an idx file; gzipped if its name ends with .gz."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise BrokenDataError(f"{path} cannot be unzipped: {error}") from error
    if len(raw) < 4 or raw[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise BrokenDataError(f"{path} does not begin like an idx file of bytes: {raw[:4]!r}")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise BrokenDataError(f"{path} ends within its header")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise BrokenDataError(
            f"{path} holds {len(raw) - start} values, its header says {math.prod(shape)}"
        )
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).reshape(shape)
