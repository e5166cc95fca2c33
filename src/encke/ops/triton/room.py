"""How much room a payload gets before its length is known.

The most that a codec can need is about the tensor itself, and to reserve that for a moment
defeats the purpose. A training step packs the same shapes under nearly the same bounds as
the one before, so the last length, and a little more, is enough almost always. Where it is
not, nothing is lost: the device says what is needed and the encoder runs again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

#: Room beyond the last length. Below `later._SLACK`, so that a payload stays where it is.
_MORE = 1 / 32
_MOST_KEYS = 4096


class Rooms:
    """The largest recent length of payloads by what they are of."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[Hashable, int] = OrderedDict()

    def of(self, key: Hashable, most: int) -> int:
        """Bytes to reserve: `most` for a key that is new.

        >>> rooms = Rooms()
        >>> rooms.note("conv1", 3200)
        >>> rooms.of("conv1", 10_000), rooms.of("conv2", 10_000)
        (3300, 10000)
        """
        last = self._lengths.get(key)
        return most if last is None else min(most, last + int(last * _MORE))

    def note(self, key: Hashable, length: int) -> None:
        """Remember a length. A longer one counts at once, a shorter one by and by."""
        last = self._lengths.pop(key, length)
        self._lengths[key] = max(length, last - int(last * _MORE))
        if len(self._lengths) > _MOST_KEYS:
            self._lengths.popitem(last=False)
