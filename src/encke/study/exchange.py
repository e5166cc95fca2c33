"""How the ranks of a training exchange their gradients: what `--wire` says, put to work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from encke.control import Adaptive
from encke.control.budget import Budget
from encke.control.wire import WireBounds
from encke.errors import UnsupportedError
from encke.study.measure.settled import settled
from encke.study.training import Training
from encke.study.zoo import Batch
from encke.wire.noise import NoiseRule
from encke.wire.plan import Plan
from encke.wire.plan_file import read_plan
from encke.wire.wrap import Wrapped, ddp

DEFAULT = 0.01


@dataclass(frozen=True, kw_only=True)
class Wire:
    """What ranks do with their gradients.

    how        "auto", "off", or a codec
    tolerance  of the codec; with "auto" None: the training's own is shared with the tape
    plan       for "auto", where one was made before
    """

    how: str
    tolerance: float | None = None
    plan: Plan | None = None


def parse(text: str) -> Wire:
    """`auto`, `off`, a tolerance, or the file of a plan.

    >>> parse("0.02")
    Wire(how='entropy', tolerance=0.02, plan=None)
    """
    if text in ("auto", "off"):
        return Wire(how=text)
    try:
        tolerance = float(text)
    except ValueError:
        pass
    else:
        return Wire(how="entropy", tolerance=NoiseRule(tolerance).tolerance)
    path = Path(text)
    if not path.is_file():
        raise UnsupportedError(
            f"--wire is {text!r}, allowed are auto, off, a tolerance as 0.01, and the file of "
            "a plan (wire.json of an earlier training)"
        )
    return Wire(how="auto", plan=read_plan(path))


def wrap(training: Training, wire: Wire) -> Wrapped:
    """The training's network in DDP; all ranks must call it.

    Where the controller rules the tape and nothing else is said, its tolerance is shared
    between the tape and the wire.
    """
    policy: NoiseRule | WireBounds
    controller = _controller(training)
    if wire.tolerance is None and controller is not None and wire.how != "off":
        policy = WireBounds(controller.tolerance, tape=controller)
    else:
        policy = NoiseRule(wire.tolerance or DEFAULT)
    options: dict[str, Any] = {"wire": wire.how, "plan": wire.plan}
    if wire.how == "auto" and wire.plan is None:
        # A user's own batches may draw from torch's generator: the training will draw again.
        with torch.random.fork_rng(devices=[]):
            options["sample_batch"] = next(iter(training.subject.train(0)))
    tape = training.fitted.tape
    if tape is None:
        return _wrapped(training, policy, options)
    with settled(tape):
        return _wrapped(training, policy, options)


def _wrapped(
    training: Training, policy: NoiseRule | WireBounds, options: dict[str, Any]
) -> Wrapped:
    def loss(network: nn.Module, batch: Batch) -> Tensor:
        with training.fitted.around():
            return training.subject.loss(network(*batch.inputs), batch.target)

    return ddp(
        training.network, tolerance=policy.tolerance, policy=policy, loss=loss, **options
    )


def _controller(training: Training) -> Adaptive | None:
    tape = training.fitted.tape
    policy = None if tape is None else tape.policy
    policy = policy.inner if isinstance(policy, Budget) else policy
    return policy if isinstance(policy, Adaptive) else None


def told(wrapped: Wrapped) -> str:
    """In a line: what was exchanged and how many bytes that took."""
    comm = wrapped.comm
    if comm is None:
        return "gradients exchanged by DDP itself, exactly"
    plain, sent = comm.gradients.plain_bytes, comm.exchange.sent_bytes
    how = comm.planner.plan.chosen if comm.planner is not None else comm.settings.codec
    if comm.gradients.exact or not sent:
        return f"gradients exchanged exactly, {plain / 1e6:.1f} MB of each rank"
    return (
        f"gradients exchanged with {how}: a rank sent {sent / 1e6:.1f} MB for its "
        f"{plain / 1e6:.1f} MB"
    )
