"""`mask`: truth values, one bit each. Exact."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.codec.contract import BOOLS, Codec, Encoded, Request
from encke.ops.backend import Backend


class Mask(Codec):
    """One bit a value (docs/format.md, section 10).

    >>> from encke import Lossless, compress
    >>> compress(torch.arange(16) % 3 == 0, Lossless(), codec="mask").payload.tolist()
    [73, 146]
    """

    name = "mask"
    id = 5
    lossy = False
    dtypes = BOOLS

    def encode(self, x: Tensor, request: Request) -> Encoded:
        self.no_rate(request.promise)
        return Encoded(request.backend.mask_encode(x), 0.0)

    def decode(
        self, payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend
    ) -> Tensor:
        return backend.mask_decode(payload, math.prod(shape)).view(shape)
