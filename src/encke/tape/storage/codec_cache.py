"""Which codec a place in the model takes: tried on the tensor now and then, not each step."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any
from zlib import crc32

from encke.tape.policy import Site

#: Steps after which a choice is made anew.
REFRESH = 200


class CodecCache:
    """Remembers what `codec="auto"` came to, place by place.

    Which codec is smallest depends on what the tensor is like (sparse, smooth, peaked) and
    that changes slowly; a change of the bound by more than a factor of two counts as new.
    """

    def __init__(self, refresh: int = REFRESH) -> None:
        self._refresh = refresh
        self._made: dict[Site, tuple[str, int, float]] = {}

    def get(self, site: Site, step: int, error: float) -> str | None:
        made = self._made.get(site)
        if made is None:
            return None
        codec, when, at = made
        # Places take turns, so that no one step has to choose for all of them.
        due = when + self._refresh + crc32(str(site).encode()) % self._refresh
        if step >= due or not at / 2 <= error <= at * 2:
            return None
        return codec

    def put(self, site: Site, step: int, error: float, codec: str) -> None:
        self._made[site] = (codec, step, error)

    def state_dict(self) -> list[list[Any]]:
        """The choices, as plain lists."""
        return [[*astuple(site), *made] for site, made in self._made.items()]

    def load_state_dict(self, state: list[list[Any]]) -> None:
        self._made = {Site(*one[:4]): (one[4], one[5], one[6]) for one in state}
