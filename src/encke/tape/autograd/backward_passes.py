"""What is known of the backward passes that a tape's tensors were asked for in."""

from __future__ import annotations

import torch

from encke.tape.autograd.nodes import current_backward
from encke.tape.cost.pace import Pace, now
from encke.tape.cost.summit import StepSummit
from encke.tape.policy import Site


class BackwardPasses:
    """Notes that a backward pass ran, and whether its result is differentiated again.

    pace          counts the time that it takes to give tensors back
    ran           whether a saved tensor was asked for since `take`
    create_graph  whether that was in a backward pass which makes a graph of its own, as for a
                  gradient penalty or a Hessian
    """

    __slots__ = ("_summit", "create_graph", "pace", "ran")

    def __init__(self, pace: Pace | None = None, summit: StepSummit | None = None) -> None:
        self.ran = self.create_graph = False
        self.pace = Pace() if pace is None else pace
        self._summit = summit

    def notice(self, order: int | None = None) -> None:
        """A saved tensor is asked for, before gradients are switched off to decode it.

        order  place in the forward pass of the op that asks
        """
        self.ran = True
        if order is not None and self._summit is not None:
            self._summit.backward(order)
        if torch.is_grad_enabled() and current_backward() >= 0:
            self.create_graph = True

    def gave(self, site: Site, since: float) -> None:
        """A tensor was given back; work on that began at `since`."""
        seconds = now() - since
        self.pace.spend(seconds)
        self.pace.spend_on(site, seconds)

    def take(self) -> tuple[bool, bool]:
        """What was noticed since the last call: `ran` and `create_graph`."""
        found = self.ran, self.create_graph
        self.ran = self.create_graph = False
        return found
