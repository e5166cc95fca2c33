"""One bound for everything: no controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from encke.bound import Bound, FixedRate, Lossless
from encke.control import arguments
from encke.tape.policy import LOSSLESS, GradientEffect, SavedTensor, StorageDecision


@dataclass(frozen=True)
class Fixed:
    """Keep every lossy tensor within the same bound.

    dither  subtractive dither, which makes the error unbiased; plain rounding without
    derive  compute what follows from other kept tensors instead of storing it
    watch   measure what the error does to gradients, in every step

    >>> from encke.bound import RangeRelative
    >>> Fixed(RangeRelative(0.02)).dither
    True
    """

    bound: Bound
    codec: str = "auto"
    prefer: str = "ratio"
    dither: bool = True
    derive: bool = True
    watch: bool = False

    def __post_init__(self) -> None:
        arguments.bound(self.bound)
        arguments.codec(self.codec)
        arguments.choice(self.prefer, of="prefer", allowed=("ratio", "speed"))

    def begin(self, step: int) -> None:
        """Nothing to learn."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        if isinstance(self.bound, Lossless):
            return LOSSLESS
        rate = isinstance(self.bound, FixedRate)
        return StorageDecision(
            bound=self.bound,
            codec="group" if rate and self.codec == "auto" else self.codec,
            prefer=self.prefer,
            dither=self.dither and not rate,
            derive=self.derive,
            observe=self.watch,
        )

    def observe(self, effect: GradientEffect) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing was learnt."""
