"""How long K-FAC's parts take on this model: measured, then planned."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from encke.bound import Bound
from encke.ops.select import select
from encke.wire.collectives import group_of_its_own
from encke.wire.cost import Coding, again_of
from encke.wire.curvature import CurvaturePlan, CurvatureWork, UnitWork, plan_curvature
from encke.wire.failure import answered
from encke.wire.kfac.collectives import Pending, Rounded
from encke.wire.kfac.preconditioner import KFAC
from encke.wire.kfac.sampling import LossName, SampledLoss
from encke.wire.kfac.unit import Side
from encke.wire.lattice import shares
from encke.wire.link import slowest
from encke.wire.message import Coder, Stretch
from encke.wire.plan import Plan
from encke.wire.reduce import in_one_round
from encke.wire.tuner import timed_coding

_TURNS = 5  # of which the first warms up
_LATER = 64  # updates after which a factor's average is what it will be
_FLOAT = 4

Forward = Callable[[nn.Module, Any], Tensor]


def tune_curvature(
    model: nn.Module,
    sample_batch: Any,
    plan: Plan,
    *,
    loss: LossName | SampledLoss = "cross_entropy",
    forward: Forward | None = None,
    group: Any = None,
    codec: str = "entropy",
    overhead: float = 0.25,
    memory: float | None = None,
    **options: Any,
) -> CurvaturePlan:
    """Measure K-FAC on this model and choose fraction, intervals and exchange of factors.

    plan      of the gradients' exchange, from `tune`
    loss      as for `KFAC.sample`
    forward   forward(model, sample_batch); by default the model of the pair's first
    codec     of factors
    overhead  by how much a step may become longer
    memory    bytes of solutions that a rank may hold
    options   of `KFAC`

    All ranks must call it. The model comes out as it went in, its gradients cleared.
    `KFAC(model, comm=comm, **found.chosen.options)` follows the choice.
    """
    work = measure_curvature(
        model,
        sample_batch,
        loss=loss,
        forward=forward or _first_of_pair,
        group=group,
        codec=codec,
        options=options,
    )
    return plan_curvature(work, plan, overhead=overhead, memory=memory)


class _Overheard(Rounded):
    """Remembers the factors' message as it would travel."""

    message: Tensor | None = None

    def all_reduce_mean(self, tensor: Tensor, *, bound: Bound | None, name: str) -> Pending:
        if bound is not None:
            self.message = tensor
        return super().all_reduce_mean(tensor, bound=None, name=name)


def measure_curvature(
    model: nn.Module,
    batch: Any,
    *,
    loss: LossName | SampledLoss,
    forward: Forward,
    group: Any,
    codec: str,
    options: dict[str, Any],
) -> CurvatureWork:
    """Seconds and bytes of every part, of the slowest rank, with all ranks busy."""
    own = group_of_its_own(group)
    comm = _Overheard()
    pre = KFAC(
        model,
        comm=comm,
        **{**options, "uncovered": "ignore", "factor_interval": 1, "inverse_interval": 1},
    )
    device = next(model.parameters()).device
    buffers = [buffer.clone() for buffer in model.buffers()]
    turns: list[list[float]] = []
    try:
        with torch.random.fork_rng():
            for _ in range(_TURNS):
                with answered(own, "the tuner's measurements"):
                    dist.barrier(group=own)
                turns.append(_turn(pre, model, batch, forward, loss, device))
                pre._factors.updates = [_LATER] * len(pre._factors.units)
        seconds = [
            slowest(statistics.median(part), own, device)
            for part in zip(*turns[1:], strict=True)
        ]
        assert comm.message is not None
        coding = _coding(comm.message, codec, own)
    finally:
        pre.detach()
        model.zero_grad(set_to_none=True)
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
        dist.destroy_process_group(own)
    until_sampled, sample, average, solve, multiply = seconds
    return CurvatureWork(
        forward=until_sampled,
        sample=sample,
        average=average,
        factors=float(comm.message.nbytes),
        coding=coding,
        units=_units(pre, solve, multiply),
    )


def _turn(
    pre: KFAC,
    model: nn.Module,
    batch: Any,
    forward: Forward,
    loss: LossName | SampledLoss,
    device: torch.device,
) -> list[float]:
    """Seconds of forward, sampling, averaging, solving and preconditioning."""
    times = [_now(device)]
    output = forward(model, batch)
    times.append(_now(device))
    pre.sample(output, loss=loss, dim=-1)
    times.append(_now(device))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
        sampled = _now(device)
        pre._renew_factors()
        averaged = _now(device)
        pre._solutions.renew(damping=pre.damping, refuse=lambda _: None)
        solved = _now(device)
        pre._solutions.precondition(kl_clip=1e-3, lr=0.1)
        done = _now(device)
    pre._backwards = 0
    pre._capture.forget()
    pre._capture.active = True
    return [
        times[1] - times[0],
        times[2] - times[1],
        averaged - sampled,
        solved - averaged,
        done - solved,
    ]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _coding(message: Tensor, codec: str, group: Any) -> Coding:
    """Of factors, each in units of the error that it may have."""
    world = dist.get_world_size(group)
    share = 1.0 if in_one_round(message.numel(), world) else shares(world)[0]
    coder = Coder(codec=codec, backend=select(message.device, None))
    whole = [Stretch("factors", 0, message.numel(), share)]
    encode, decode, size = timed_coding(coder, message, whole, group)
    # Ranks see much the same curvature: little of it is noise that a mean would lower.
    again = again_of(size, world=world, noise_share=0.0, itemsize=message.element_size())
    return Coding(encode=encode, decode=decode, size=size, again=again)


def _units(pre: KFAC, solve: float, multiply: float) -> tuple[UnitWork, ...]:
    units = pre._factors.units
    products = [
        u.groups * u.rows.size * u.columns.size * _other(u.rows, u.columns) for u in units
    ]
    costs, total = sum(unit.cost for unit in units), sum(products)
    return tuple(
        UnitWork(
            solve=solve * unit.cost / costs,
            multiply=multiply * product / total,
            cost=unit.cost,
            held=_FLOAT * unit.groups * (_entries(unit.rows) + _entries(unit.columns)),
            sent=_FLOAT
            * unit.groups
            * (_entries(unit.rows, half=True) + _entries(unit.columns, half=True)),
            gradient=_FLOAT * unit.groups * unit.rows.size * unit.columns.size,
        )
        for unit, product in zip(units, products, strict=True)
    )


def _other(rows: Side, columns: Side) -> int:
    return sum(1 if side.diagonal else side.size for side in (rows, columns))


def _entries(side: Side, *, half: bool = False) -> float:
    if side.diagonal:
        return side.size
    return side.size * (side.size + 1) / 2 if half else side.size**2


def _first_of_pair(model: nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(batch[0])
    return found
