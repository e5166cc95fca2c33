"""`index`: integers of a narrow range, such as the positions that max-pooling keeps. Exact."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.codec.contract import INTEGERS, Codec, Encoded, Request
from encke.errors import CorruptStreamError
from encke.ops.backend import Backend
from encke.ops.reference.index import CHUNK, ENTRY_BYTES


class Index(Codec):
    """Distances from a chunk's smallest, in as many bits as they need (format.md, section 11).

    >>> from encke import Lossless, compress
    >>> packed = compress(torch.arange(1000, 1016), Lossless(), codec="index")
    >>> packed.payload.numel()  # a base, a width, 16 codes of 4 bits
    17
    """

    name = "index"
    id = 6
    lossy = False
    dtypes = INTEGERS

    def encode(self, x: Tensor, request: Request) -> Encoded:
        self.no_rate(request.promise)
        return Encoded(request.backend.index_encode(x), 0.0)

    def decode(
        self, payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend
    ) -> Tensor:
        count = math.prod(shape)
        # Chunks of equal values have no codes: without their table a few bytes could
        # claim any amount of memory.
        least = ENTRY_BYTES * -(-count // CHUNK)
        if payload.numel() < least:
            raise CorruptStreamError(
                f"payload has {payload.numel()} bytes, {count} values need at least {least}"
            )
        return backend.index_decode(payload, count, dtype).view(shape)
