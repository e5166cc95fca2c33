"""`lossless`: every bit of every dtype, through zstd.

The bytes of equal significance go together: signs and exponents repeat and compress,
the low bytes of a mantissa do not and are kept as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from encke.codec.contract import BOOLS, FLOATS, INTEGERS, Codec, Encoded, Request
from encke.codec.frames import bytes_of, frame_of
from encke.errors import CorruptStreamError
from encke.ops.backend import Backend

CHUNK = 1 << 18
_LEVEL = 3
_PARALLEL_BYTES = 1 << 20

_Bytes = npt.NDArray[np.uint8]
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class LosslessPlanes(Codec):
    """Byte planes of 262,144 values, each a zstd frame (docs/format.md, section 12).

    NaNs come back with their payload bits. A frame is decompressed only after its header
    has named the one size that fits, so no frame can ask for memory of its own choosing.

    >>> from encke import Lossless, compress, decompress
    >>> x = torch.arange(3000.0)
    >>> packed = compress(x, Lossless(), codec="lossless")
    >>> packed.ratio > 3, torch.equal(decompress(packed), x)
    (True, True)
    """

    name = "lossless"
    id = 7
    lossy = False
    dtypes = FLOATS | INTEGERS | BOOLS

    def encode(self, x: Tensor, request: Request) -> Encoded:
        self.no_rate(request.promise)
        flat = x.reshape(-1)
        if x.dtype == torch.bool:
            flat = flat.view(torch.uint8) != 0  # a bool's byte may be anything but 0
        size = x.dtype.itemsize
        if flat.numel() == 1:  # one value counts as contiguous whatever its stride
            flat = flat.new_empty(1).copy_(flat)
        values: _Bytes = flat.view(torch.uint8).cpu().numpy().reshape(-1, size)
        planes = [
            np.ascontiguousarray(values[start : start + CHUNK, plane])
            for start in range(0, len(values), CHUNK)
            for plane in range(size)
        ]
        stored = _each(_squeezed, planes, total=values.size)
        table = np.array([len(part) for part in stored], dtype="<u4").tobytes()
        payload = bytearray(b"".join((table, *stored)))
        data = torch.frombuffer(payload, dtype=torch.uint8) if payload else None
        if data is None:
            data = torch.empty(0, dtype=torch.uint8)
        return Encoded(data.to(x.device), 0.0)

    def decode(
        self, payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, backend: Backend
    ) -> Tensor:
        count, size = math.prod(shape), dtype.itemsize
        planes = -(-count // CHUNK) * size
        data: _Bytes = payload.cpu().numpy()
        if len(data) < 5 * planes:  # a length in the table, and at least one byte
            raise CorruptStreamError(
                f"payload has {len(data)} bytes, {count} values in {planes} planes need "
                f"at least {5 * planes}"
            )
        lengths = data[: 4 * planes].copy().view("<u4").tolist()
        ends = list(accumulate(lengths, initial=4 * planes))
        if ends[-1] != len(data):
            raise CorruptStreamError(
                f"payload has {len(data)} bytes, its planes' lengths say {ends[-1]}"
            )
        values = np.empty((count, size), dtype=np.uint8)

        def restore(number: int) -> None:
            chunk, plane = divmod(number, size)
            target = values[chunk * CHUNK : (chunk + 1) * CHUNK, plane]
            target[:] = _restored(data[ends[number] : ends[number + 1]], len(target))

        _each(restore, range(planes), total=values.size)
        if dtype == torch.bool and bool((values > 1).any()):
            raise CorruptStreamError("payload has truth values other than 0 and 1")
        out = torch.from_numpy(values.reshape(-1)).view(dtype).view(shape)
        return out.to(payload.device)


def _squeezed(plane: _Bytes) -> bytes:
    """The plane as a zstd frame, or as it is where that is not longer."""
    frame = frame_of(plane.data, level=_LEVEL)
    return frame if len(frame) < len(plane) else plane.tobytes()


def _restored(stored: _Bytes, size: int) -> _Bytes:
    if len(stored) == size:
        return stored
    if not 0 < len(stored) < size:
        raise CorruptStreamError(f"a plane of {size} values takes {len(stored)} bytes")
    return np.frombuffer(bytes_of(stored.tobytes(), size), dtype=np.uint8)


def _each(
    task: Callable[[_Task], _Result], over: Iterable[_Task], *, total: int
) -> list[_Result]:
    """task(item) for every item, over torch's threads where there is enough to do.

    zstd releases the interpreter's lock, so threads help.
    """
    workers = torch.get_num_threads()
    if workers < 2 or total < _PARALLEL_BYTES:
        return [task(item) for item in over]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(task, over))
