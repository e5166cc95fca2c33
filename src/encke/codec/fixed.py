"""`fixed`: quantised codes in blocks of 32, each block as wide as its largest code.

The codec for speed: one pass, no tables, at the speed of memory.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.codec.contract import FLOATS, Codec, Encoded, Request
from encke.codec.quantised import promised_error, quantiser_for
from encke.ops.backend import Backend


class Fixed(Codec):
    """Fixed-length blocks (docs/format.md, section 5)."""

    fills = True
    name = "fixed"
    id = 1
    dtypes = FLOATS

    def encode(self, x: Tensor, request: Request) -> Encoded:
        q = quantiser_for(request, x.dtype, codec=self.name)
        return Encoded(request.backend.fixed_encode(x, q), promised_error(request.promise))

    def decode(
        self,
        payload: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        backend: Backend,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        flat = None if out is None else out.view(-1)
        return backend.fixed_decode(payload, math.prod(shape), dtype, flat).view(shape)
