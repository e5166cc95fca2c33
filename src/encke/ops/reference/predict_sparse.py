"""The adaptive coder of docs/format.md, section 8, for runs that are short or nearly zero.

Plain Python: one loop over the codes that are not zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops.reference.bit_coder import BitReader, BitWriter, Chance, IntegerModel

_LARGEST_CODE = 2**31 - 1


def encode(codes: Tensor) -> bytes:
    """The bytes of int32 codes, which `decode` reads with their number of non-zeros.

    >>> codes = torch.tensor([0, 0, 3, -1, 0], dtype=torch.int32)
    >>> decode(encode(codes), 2, 5).tolist()
    [0, 0, 3, -1, 0]
    """
    positions = torch.nonzero(codes).flatten().tolist()
    values = codes[codes != 0].tolist()
    writer = BitWriter()
    gap, size = IntegerModel(), IntegerModel()
    negative = [Chance() for _ in range(3)]
    before, at = 0, 0
    for position, code in zip(positions, values, strict=True):
        writer.integer(gap, position - at + 1)
        writer.learned(int(code < 0), negative[before])
        before = 2 if code < 0 else 1
        writer.integer(size, abs(code))
        at = position + 1
    return writer.finish()


def decode(data: bytes, nonzero: int, count: int) -> Tensor:
    """The `count` codes of which `nonzero` are not 0."""
    reader = BitReader(data)
    gap, size = IntegerModel(), IntegerModel()
    negative = [Chance() for _ in range(3)]
    before, at = 0, 0
    positions, values = [], []
    for _ in range(nonzero):
        at += reader.integer(gap) - 1
        sign = reader.learned(negative[before]) if at < count else 0
        magnitude = reader.integer(size) if at < count else 0
        if at >= count or magnitude > _LARGEST_CODE:
            raise CorruptStreamError(f"payload has a run of {count} codes with one outside it")
        before = 2 if sign else 1
        positions.append(at)
        values.append(-magnitude if sign else magnitude)
        at += 1
    codes = torch.zeros(count, dtype=torch.int32)
    codes[torch.tensor(positions, dtype=torch.int64)] = torch.tensor(values, dtype=torch.int32)
    return codes
