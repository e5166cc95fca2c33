"""`entropy`: the codes of `fixed`, coded near their entropy.

The codec for ratio at speed. Efficient below one bit a value too. A sample says whether the
neighbour in the row before predicts a value, as in the feature maps of early layers; then
what is left over is coded. What more neighbours would save is left to `predict`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.codec.contract import FLOATS, Codec, Encoded, Request
from encke.codec.quantised import promised_error, quantiser_for
from encke.ops.backend import Backend


class Entropy(Codec):
    """Interleaved rANS over digits (docs/format.md, sections 6 and 7)."""

    fills = True
    name = "entropy"
    id = 2
    dtypes = FLOATS

    def encode(self, x: Tensor, request: Request) -> Encoded:
        q = quantiser_for(request, x.dtype, codec=self.name)
        return Encoded(request.backend.entropy_encode(x, q), promised_error(request.promise))

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
        return backend.entropy_decode(payload, math.prod(shape), dtype, flat).view(shape)
