"""What one training step gets: inputs and target."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """The arguments of a network's `forward`, and what its loss compares the output with."""

    inputs: tuple[Tensor, ...]
    target: Tensor

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`."""
        return Batch(tuple(x.to(device) for x in self.inputs), self.target.to(device))
