"""A model in DDP, its gradients exchanged in the way that suits the machine: one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from encke.errors import UnsupportedError
from encke.wire.comm import CompressedComm
from encke.wire.message import CODECS
from encke.wire.plan import Plan
from encke.wire.protocol import BoundPolicy
from encke.wire.tuner import Loss, tune

WAYS = ("auto", "off", *CODECS)


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """The DDP module to train; what exchanges its gradients, if not DDP itself; and why."""

    model: nn.parallel.DistributedDataParallel
    comm: CompressedComm | None
    plan: Plan | None

    @property
    def current_plan(self) -> Plan | None:
        """The plan as it is now, with what was observed; None if there is none."""
        if self.comm is not None and self.comm.planner is not None:
            return self.comm.planner.plan
        return self.plan

    def explain(self) -> str:
        plan = self.current_plan
        return plan.explain() if plan is not None else "no plan was made"


def ddp(
    model: nn.Module,
    *,
    wire: str = "auto",
    tolerance: float = 0.01,
    sample_batch: Any = None,
    loss: Loss | None = None,
    plan: Plan | None = None,
    policy: BoundPolicy | None = None,
    replan: int = 200,
    group: Any = None,
    **options: Any,
) -> Wrapped:
    """`model` in DistributedDataParallel, with its gradients exchanged as `wire` says.

    wire          "auto": as `tune` finds best for `sample_batch`, which may be exactly;
                  "entropy" or "fixed": compressed with that codec; "off": plain DDP
    plan          with "auto": one that was made before, instead of measuring
    policy        sets the bounds instead of the rule for `tolerance`
    replan        with "auto": every so many steps look again; 0: never
    options       for DistributedDataParallel

    All ranks must call it.
    """
    if wire not in WAYS:
        raise UnsupportedError(f"wire is {wire!r}, allowed are {', '.join(WAYS)}")
    if plan is not None:
        _check(plan, wire, group)
    elif wire == "auto":
        if sample_batch is None:
            raise UnsupportedError(
                "wire='auto' measures a step; give sample_batch= or plan=, or wire='entropy' "
                "or 'off'"
            )
        cap = options.get("bucket_cap_mb") or 25.0
        plan = tune(
            model,
            sample_batch,
            group,
            tolerance=tolerance,
            loss=loss,
            bucket_cap_mb=cap,
        )
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group, **options)
    if wire == "off" or (plan is not None and not plan.compresses and not replan):
        return Wrapped(model=wrapped, comm=None, plan=plan)
    comm = CompressedComm(
        tolerance,
        policy=policy,
        group=group,
        codec="entropy" if wire == "auto" else wire,
        names=model,
        plan=plan,
        replan=replan if plan is not None else 0,
    )
    wrapped.register_comm_hook(comm, comm.hook)
    return Wrapped(model=wrapped, comm=comm, plan=plan)


def _check(plan: Plan, wire: str, group: Any) -> None:
    if wire != "auto":
        raise UnsupportedError(f"wire is {wire!r} and a plan is given; a plan is for 'auto'")
    world = dist.get_world_size(group)
    if plan.link.world != world:
        raise UnsupportedError(
            f"the plan is for {plan.link.world} ranks, these are {world}; measure again with "
            "wire='auto' and without a plan"
        )
