"""Stretches of a flat tensor, each with its bound, as the bytes of one message.

    int64[k]    length of each stretch's payload; negative: verbatim, of that many bytes
    float64[m]  side information, if both sides expect some
    payloads    one after another, each filled up to a multiple of 8 bytes

A stretch goes verbatim when it has no bound, when it is short, and when its payload would
be no smaller: bytes never exceed those of the plain values by more than the lengths.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from encke.errors import CorruptStreamError, UnsupportedError
from encke.ops import quantiser
from encke.ops.backend import Backend

#: Values below which the codecs' headers eat what coding saves.
SHORT = 256
CODECS = ("entropy", "fixed")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Values `start` to `stop` of a flat tensor; `bound=None` keeps them exactly."""

    name: str
    start: int
    stop: int
    bound: float | None = None

    @property
    def values(self) -> int:
        return self.stop - self.start

    def scaled(self, share: float) -> Stretch:
        return self if self.bound is None else replace(self, bound=share * self.bound)


def compacted(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The same stretches side by side from position 0 on."""
    found, position = [], 0
    for stretch in stretches:
        end = position + stretch.values
        found.append(replace(stretch, start=position, stop=end))
        position = end
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Coder:
    """Writes and reads messages.

    codec   "entropy" (smaller) or "fixed" (faster)
    dither  whether errors are uniform and unbiased, or those of plain rounding
    """

    codec: str = "entropy"
    dither: bool = True
    backend: Backend

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise UnsupportedError(
                f"codec is {self.codec!r}, allowed on the wire are {', '.join(CODECS)}"
            )

    def encode(
        self,
        flat: Tensor,
        stretches: Sequence[Stretch],
        *,
        seed: int,
        side: Tensor | None = None,
    ) -> Tensor:
        """The message of these stretches of `flat`, a contiguous float32 or float64 tensor."""
        lengths, payloads = [], []
        for stretch in stretches:
            values = flat[stretch.start : stretch.stop]
            payload = self._payload(values, stretch, seed)
            if payload is None:
                payload = values.view(torch.uint8)
                lengths.append(-payload.numel())
            else:
                lengths.append(payload.numel())
            payloads.append(payload)
        head = torch.tensor(lengths, dtype=torch.int64, device=flat.device).view(torch.uint8)
        middle = [] if side is None else [side.to(flat.device).view(torch.uint8)]
        filler = head.new_zeros(8)
        filled = (
            part for payload in payloads for part in (payload, filler[: -payload.numel() % 8])
        )
        return torch.cat([head, *middle, *filled])

    def _payload(self, values: Tensor, stretch: Stretch, seed: int) -> Tensor | None:
        if not stretch.bound or values.numel() < SHORT:
            return None
        kind = quantiser.DITHER if self.dither else quantiser.PLAIN
        q = quantiser.linear(
            stretch.bound,
            values.dtype,
            kind=kind,
            seed=mixed(seed, zlib.crc32(stretch.name.encode())),
        )
        encode = (
            self.backend.entropy_encode
            if self.codec == "entropy"
            else self.backend.fixed_encode
        )
        payload = encode(values, q)
        return payload if payload.numel() < values.nbytes else None

    def decode(
        self, message: Tensor, stretches: Sequence[Stretch], out: Tensor, *, side: int = 0
    ) -> Tensor:
        """Fill these stretches of `out`; returns the `side` numbers of side information."""
        count = len(stretches)
        start = 8 * (count + side)
        if message.numel() < start:
            raise CorruptStreamError(
                f"message has {message.numel()} bytes, its head alone takes {start}"
            )
        lengths = message[: 8 * count].view(torch.int64).tolist()
        numbers = message[8 * count : start].view(torch.float64)
        if start + sum(_filled(length) for length in lengths) != message.numel():
            raise CorruptStreamError("message is not as long as its head says")
        for stretch, length in zip(stretches, lengths, strict=True):
            values = out[stretch.start : stretch.stop]
            payload = message[start : start + abs(length)]
            start += _filled(length)
            if length > 0:
                decode = (
                    self.backend.entropy_decode
                    if self.codec == "entropy"
                    else self.backend.fixed_decode
                )
                decode(payload, values.numel(), values.dtype, values)
            elif -length != values.nbytes:
                raise CorruptStreamError(
                    f"message has {-length} bytes for {stretch.name}, not {values.nbytes}"
                )
            else:
                values.view(torch.uint8).copy_(payload)
        return numbers


def _filled(length: int) -> int:
    return -(-abs(length) // 8) * 8


def mixed(*numbers: int) -> int:
    """64 bits in which every bit depends on every number (splitmix64's finaliser).

    >>> mixed(1, 2) != mixed(2, 1)
    True
    """
    state = 0x9E37_79B9_7F4A_7C15
    for number in numbers:
        state = (state ^ (number & _WORD)) * 0xBF58_476D_1CE4_E5B9 & _WORD
        state = (state ^ state >> 30) * 0x94D0_49BB_1331_11EB & _WORD
        state ^= state >> 31
    return state


_WORD = 0xFFFF_FFFF_FFFF_FFFF
