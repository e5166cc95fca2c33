"""What the tape asks of whoever decides about bounds, and what it tells them in return.

The tape knows what autograd saved; it does not know how large an error may be. A `Policy`
answers that for every tensor through `treat`, and hears through `observe` what an error did
to the gradients. Policies live in `encke.control`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from encke.bound import Bound, Lossless


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the model where a tensor is kept: the same from step to step.

    >>> str(Site("layer1.0.bn1", "NativeBatchNorm", "input"))
    'layer1.0.bn1/NativeBatchNorm.input'
    """

    module: str
    op: str
    role: str
    index: int = 0

    def __str__(self) -> str:
        nth = f"#{self.index}" if self.index else ""
        return f"{self.module or '(top)'}/{self.op}.{self.role}{nth}"


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageDecision:
    """How a tensor that may lose precision is kept.

    bound    of the error; `Lossless()` keeps the values, `None` keeps the tensor itself
    normalise  whether the bound is for the values as a batch norm scales them, where the tensor
             is one's input: every channel then gets the error that suits its own variance
    gate     whether values that a ReLU behind a batch norm blocks may be left out of the norm's
             input: see `tape.batch_norm.masked`
    residual  whether the last norm of a residual block may follow from its output: see
             `tape.batch_norm.residual`
    derive   whether the tensor may be computed from another kept one instead of stored
    recompute  whether even a matrix product may be run again to derive it
    offload  whether the packed bytes leave the device (to the host, or from the host to disk)
    observe  whether its effect on gradients is measured in this step's backward
    probe    whether ops are called again for that, where no closed form tells the effect
    check    whether the exact tensor is kept beside, to compare gradients with
    why      in words
    """

    bound: Bound | None
    codec: str = "auto"
    prefer: str = "ratio"
    dither: bool = True
    normalise: bool = False
    gate: bool = False
    residual: bool = False
    derive: bool = True
    recompute: bool = False
    offload: bool = False
    observe: bool = False
    probe: bool = True
    check: bool = False
    why: str = ""


KEEP = StorageDecision(bound=None, why="kept as it is")
LOSSLESS = StorageDecision(bound=Lossless(), dither=False, derive=False, why="lossless")


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientEffect:
    """What the error of one kept tensor does to the gradients that one op returns.

    site              of the tensor whose error this is about
    consumer          the op that used it, straight or derived
    order             of the op in the forward pass
    call              number of that forward pass
    backward          number of the backward pass that found it
    error             the bound that the tensor was kept with, in its own units
                      (of the normalised values, where it was kept so)
    values            how many values the tensor has
    mean_square       mean square of the error in what the op saw (after deriving)
    input_square      mean square of what the op saw
    parameter         name of the parameter whose gradient the op computes, if any
    parameter_square  ‖dW‖² of that gradient
    gradient_square   ‖dY‖² of the gradient that came in
    products          for linear layers and convolutions: how many elements of dW each element
                      of dY enters; with it the closed form holds. Zero for other ops
    probed            for other ops: ‖ΔdW‖² under a fresh error of the same size
    stream            ‖Δdx‖² / ‖dx‖² in the gradient that flows on, under that error
    tail              as `stream`, in the row of the gradient that suffers most
    blocked           how many values a gate left out
    left_out          ‖Δdx‖² / ‖dx‖² by that, whatever the error
    measured          true (‖ΔdW‖², ‖Δdx‖² / ‖dx‖²), where the exact tensor was kept to compare
    """

    site: Site
    consumer: Site
    order: int
    error: float
    values: int
    mean_square: float = 0.0
    input_square: float = 0.0
    parameter: str | None = None
    parameter_square: float = 0.0
    gradient_square: float = 0.0
    products: float = 0.0
    probed: float = 0.0
    stream: float = 0.0
    tail: float = 0.0
    blocked: int = 0
    left_out: float = 0.0
    measured: tuple[float, float] | None = None
    call: int = 0
    backward: int = -1

    @property
    def predicted(self) -> float:
        """Expected ‖ΔdW‖²: the closed form where there is one, else what a probe measured."""
        if self.products:
            return self.mean_square * self.products * self.gradient_square
        return self.probed

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> GradientEffect:
        """What `dataclasses.asdict` was made of."""
        measured = state["measured"]
        sites = {name: Site(**state[name]) for name in ("site", "consumer")}
        return cls(**state | sites | {"measured": None if measured is None else (*measured,)})


@dataclass(kw_only=True, slots=True)
class SavedTensor:
    """A tensor that is about to be kept.

    order    of the op in the forward pass
    channels whether it is the input of a batch norm, whose channels can be normalised
    """

    site: Site
    tensor: Tensor
    step: int
    order: int
    channels: bool = False


class Policy(Protocol):
    """Decides how each lossy tensor is kept.

    A policy that has a method `backward_ran(*, create_graph: bool)` is told, before the next
    `begin`, that a backward pass ran and whether its result is differentiated again; one that
    has `kept(records, stored)`, what a forward pass has kept.
    """

    def begin(self, step: int) -> None:
        """A forward pass starts."""

    def treat(self, sight: SavedTensor) -> StorageDecision:
        """How this tensor is to be kept, now."""

    def observe(self, effect: GradientEffect) -> None:
        """What an error did, in a step for which `treat` asked to know."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
