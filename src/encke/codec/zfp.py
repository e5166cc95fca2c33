"""`zfp`: the transform codec of Lindstrom's zfp library, with its promise made strict.

zfp misses its tolerance where values exceed it some 1e9 times, and turns a block with a
NaN or an infinity into noise. So `encode` decodes what it has made, checks every value
in float64, and keeps those that fail, and those that are not finite, verbatim.

Security. zfp's decoder trusts its input: it takes shape and mode from a header in the
stream and reads as many bits as they ask for, beyond the end of the buffer if need be.
Neither is left to the stream here. No zfp header is written or read: the shape is the
container's, checked there, the mode is checked below. And the decoder is given a buffer
with zeros up to the largest size that blocks of this shape and mode can have, so whatever
bits it meets, every read stays inside. The zeros cost address space, not memory.
"""

from __future__ import annotations

import math
import struct
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from encke.codec.contract import Codec, Encoded, Request
from encke.errors import BoundError, CorruptStreamError, UnsupportedError
from encke.ops.backend import Backend

_HEAD = struct.Struct("<B7sdQQ")  # mode, zeros, tolerance or rate, exceptions, stream bytes
_TOLERANCE, _RATE = 0, 1
_EXPONENT_BITS = {4: 8, 8: 11}
_BEYOND = 64  # bytes; zfp reads whole words and one ahead

_Floats = npt.NDArray[Any]


class Zfp(Codec):
    """zfp at a rate or within an error, exceptions verbatim (docs/format.md, section 13)."""

    name = "zfp"
    id = 8
    keeps_zeros = False
    dtypes = frozenset({torch.float32, torch.float64})

    def encode(self, x: Tensor, request: Request) -> Encoded:
        if request.dither or request.keep_nonzero:
            raise UnsupportedError(
                "codec 'zfp' has neither dither nor keep_nonzero; use codec='fixed' or "
                "'entropy', or leave both off"
            )
        zfpy = _library()
        promise = request.promise
        block = _Blocks(tuple(x.shape))
        if promise.rate is not None:
            mode, number = _RATE, promise.rate
            _check_rate(number, block, x.dtype)
        elif promise.error is not None:
            mode, number = _TOLERANCE, promise.error
        else:
            raise BoundError(
                "codec 'zfp' keeps an absolute error or a rate, not an error relative to each "
                "value; use codec='fixed', 'entropy' or 'lossless'"
            )
        if x.numel() == 0:
            return Encoded(_payload(mode, number, b"", np.zeros(0), x), 0.0)
        values = x.cpu().numpy().reshape(block.shape)
        finite = np.isfinite(values)
        whole = np.where(finite, values, values.dtype.type(0))
        option = {"rate" if mode == _RATE else "tolerance": number}
        stream: bytes = zfpy.compress_numpy(whole, write_header=False, **option)
        decoded = _decoded(zfpy, stream, block, whole.dtype, mode, number)
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(decoded.astype(np.float64) - whole.astype(np.float64))
        limit = number if mode == _TOLERANCE else np.finfo(np.float64).max
        kept = finite & (error <= limit)  # an error of NaN is not kept either
        promised = float(error[kept].max(initial=0.0)) if mode == _RATE else number
        exceptions = np.flatnonzero(~kept)
        return Encoded(_payload(mode, number, stream, exceptions, x), promised)

    def decode(
        self, payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend
    ) -> Tensor:
        data: npt.NDArray[np.uint8] = payload.cpu().numpy()
        if len(data) < _HEAD.size:
            raise CorruptStreamError(f"payload has {len(data)} bytes, a header {_HEAD.size}")
        mode, zeros, number, exceptions, size = _HEAD.unpack(data[: _HEAD.size].tobytes())
        count, item = math.prod(shape), dtype.itemsize
        if len(data) != _HEAD.size + size + exceptions * (8 + item) or exceptions > count:
            raise CorruptStreamError(
                f"payload has {len(data)} bytes, its header says otherwise"
            )
        if mode not in (_TOLERANCE, _RATE) or any(zeros) or not 0 <= number < math.inf:
            raise CorruptStreamError(f"payload has zfp mode {mode} with {number}")
        if count == 0:
            if size:
                raise CorruptStreamError("payload has a zfp stream for no values")
            return torch.empty(shape, dtype=dtype, device=payload.device)
        block = _Blocks(shape)
        if mode == _RATE:
            try:
                _check_rate(number, block, dtype)
            except BoundError as error:
                raise CorruptStreamError(f"payload has an impossible rate: {error}") from None
        # The least a block takes is one bit; so no few bytes can claim a huge tensor.
        if not block.count <= 8 * size <= 8 * block.capacity(item, mode, number):
            raise CorruptStreamError(
                f"payload has {size} bytes of zfp stream for {block.count} blocks"
            )
        body = data[_HEAD.size :]
        values = _decoded(
            _library(), body[:size], block, np.dtype(f"f{item}"), mode, number
        ).reshape(-1)
        positions = body[size : size + 8 * exceptions].copy().view("<u8")
        rising = bool((positions[:-1] < positions[1:]).all())
        if exceptions and not (rising and positions[-1] < count):
            raise CorruptStreamError("payload has exceptions out of order or range")
        pattern = np.dtype(f"<u{item}")
        values.view(pattern)[positions.astype(np.int64)] = (
            body[size + 8 * exceptions :].copy().view(pattern)
        )
        return torch.from_numpy(values).view(shape).to(payload.device)


class _Blocks:
    """A tensor as zfp sees it: one to four dimensions, in blocks of four along each."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        # Dimensions of 1 would fill three quarters of every block with padding.
        wide = [extent for extent in shape if extent != 1] or [1]
        self.shape: tuple[int, ...] = tuple(wide)
        if len(wide) > 4:
            self.shape = (math.prod(wide[:-3]), *wide[-3:])
        self.values: int = 4 ** len(self.shape)
        self.count = math.prod(-(-extent // 4) for extent in self.shape)

    def rate_bits(self, rate: float) -> int:
        """Bits of a block at a fixed rate, rounded as zfp does."""
        return math.floor(self.values * rate + 0.5)

    def capacity(self, item: int, mode: int, number: float) -> int:
        """Bytes that the longest stream of this shape and mode can have.

        A block has an exponent, up to one bit for each value in each bit plane, and one
        more for each value when it becomes significant.
        """
        bits = 16 + self.values * (8 * item + 1)
        if mode == _RATE:
            bits = max(bits, self.rate_bits(number))
        return -(-self.count * bits // 8) + _BEYOND


def _check_rate(rate: float, block: _Blocks, dtype: torch.dtype) -> None:
    # Below sign and exponent of a block zfp's own encoder overruns its counters.
    least = 1 + _EXPONENT_BITS[dtype.itemsize]
    most = 8 * dtype.itemsize
    if block.rate_bits(rate) < least or rate > most:
        raise BoundError(
            f"codec 'zfp' takes rates from {least / block.values:g} to {most} bits a value "
            f"for {dtype} in {len(block.shape)} dimensions, not {rate:g}"
        )


def _decoded(
    zfpy: ModuleType,
    stream: bytes | npt.NDArray[np.uint8],
    block: _Blocks,
    dtype: np.dtype[Any],
    mode: int,
    number: float,
) -> _Floats:
    """The values of a stream, decoded from a copy that zfp cannot read beyond."""
    source = np.frombuffer(stream, dtype=np.uint8) if isinstance(stream, bytes) else stream
    size = max(block.capacity(dtype.itemsize, mode, number), len(source) + _BEYOND)
    try:
        padded = np.zeros(-(-size // 8), dtype=np.uint64).view(np.uint8)
        out = np.empty(block.shape, dtype=dtype)
    except (MemoryError, ValueError):
        raise CorruptStreamError(f"no memory for a tensor of {block.shape}") from None
    padded[: len(source)] = source
    option = {"rate" if mode == _RATE else "tolerance": number}
    try:
        zfpy._decompress(padded, zfpy.dtype_to_ztype(dtype), block.shape, out=out, **option)
    except RuntimeError as error:
        raise CorruptStreamError(f"zfp cannot decode its stream: {error}") from None
    return out


def _payload(
    mode: int, number: float, stream: bytes, exceptions: npt.NDArray[Any], x: Tensor
) -> Tensor:
    positions = exceptions.astype("<u8")
    verbatim = x.reshape(-1)[torch.from_numpy(exceptions.astype(np.int64)).to(x.device)]
    head = _HEAD.pack(mode, bytes(7), number, len(positions), len(stream))
    raw = bytearray(
        b"".join((head, stream, positions.tobytes(), verbatim.cpu().numpy().tobytes()))
    )
    return torch.frombuffer(raw, dtype=torch.uint8).to(x.device)


def _library() -> ModuleType:
    try:
        import zfpy
    except ImportError as error:
        raise UnsupportedError(
            f"codec 'zfp' needs the library zfpy, which cannot be imported ({error}); "
            "install it with: pip install 'encke[zfp]'"
        ) from None
    module: ModuleType = zfpy
    return module


def available() -> bool:
    """Whether zfpy can be imported."""
    try:
        _library()
    except UnsupportedError:
        return False
    return True
