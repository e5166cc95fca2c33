"""The payload of `predict` beside its numbers: integers, entries of runs, a reader."""

from __future__ import annotations

from encke.errors import CorruptStreamError

RUN_ZERO, RUN_SPARSE, RUN_STAGE = range(3)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class RunEntry:
    """A run as the directory describes it."""

    def __init__(self, coder: int, nonzero: int, own: bytes, size: int) -> None:
        self.coder, self.nonzero, self.own, self.size = coder, nonzero, own, size


class Reader:
    """Reads a payload from its front; `CorruptStreamError` where it ends too soon."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise CorruptStreamError(
                f"payload has {len(self.data) - self.at} bytes left where {size} are needed"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 63, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> 62:
                    break
                return value
        raise CorruptStreamError("payload has an integer beyond 2^62")

    def entry(self) -> RunEntry:
        coder = self.byte()
        if coder > RUN_STAGE:
            raise CorruptStreamError(
                f"payload has a run with coder {coder}, allowed are 0 to 2"
            )
        nonzero = self.varint() if coder == RUN_SPARSE else 0
        own = self.take(7) if coder == RUN_STAGE else b""
        return RunEntry(coder, nonzero, own, self.varint() if coder != RUN_ZERO else 0)

    def done(self) -> None:
        if self.at != len(self.data):
            raise CorruptStreamError(f"payload has {len(self.data) - self.at} bytes too many")

    def only_zeros(self) -> None:
        if any(self.data[self.at :]):
            raise CorruptStreamError("payload goes on after its last run")
