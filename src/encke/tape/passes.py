"""What is known of the backward passes that a tape's tensors were asked for in."""

from __future__ import annotations

import torch

from encke.tape.graph import current_backward


class BackwardPasses:
    """Notes that a backward pass ran, and whether its result is differentiated again.

    ran           whether a saved tensor was asked for since `take`
    create_graph  whether that was in a backward pass which makes a graph of its own, as for a
                  gradient penalty or a Hessian
    """

    __slots__ = ("create_graph", "ran")

    def __init__(self) -> None:
        self.ran = self.create_graph = False

    def notice(self) -> None:
        """A saved tensor is asked for, before gradients are switched off to decode it."""
        self.ran = True
        if torch.is_grad_enabled() and current_backward() >= 0:
            self.create_graph = True

    def take(self) -> tuple[bool, bool]:
        """What was noticed since the last call: `ran` and `create_graph`."""
        found = self.ran, self.create_graph
        self.ran = self.create_graph = False
        return found
