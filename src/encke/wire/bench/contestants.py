"""The ways to exchange gradients that are compared: torch's own hooks, and ours."""

# No `from __future__ import annotations`: DDP compares hooks' annotations with classes.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from encke.wire.bench.workload import loss_of
from encke.wire.comm import CompressedComm
from encke.wire.tuner import tune


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """name, what registers its hook, and what the table must say about it.

    register takes the DDP module and a batch to measure with
    whole    one bucket for all gradients
    warm_up  steps before it works as it will
    """

    name: str
    register: Callable[[Any, Any], CompressedComm | None]
    whole: bool = False
    warm_up: int = 2
    remark: str = ""


def _none(ddp: Any, batch: Any) -> None:
    """DDP's own all-reduce."""


def _fp16(ddp: Any, batch: Any) -> None:
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _bf16(ddp: Any, batch: Any) -> None:
    # torch refuses its hook by name where there is no NCCL; gloo adds bfloat16 all the same.
    def as_bf16(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.bf16_compress_hook(state, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(None, as_bf16)


def _power_sgd(rank: int) -> Callable[[Any, Any], None]:
    def register(ddp: Any, batch: Any) -> None:
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=2,
            use_error_feedback=True,
            warm_start=True,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return register


def _ours(tolerance: float, codec: str) -> Callable[[Any, Any], CompressedComm]:
    def register(ddp: Any, batch: Any) -> CompressedComm:
        comm = CompressedComm(tolerance, codec=codec, names=ddp.module)
        ddp.register_comm_hook(comm, comm.hook)
        return comm

    return register


def _auto(ddp: Any, batch: Any) -> CompressedComm | None:
    plan = tune(ddp.module, batch, loss=loss_of)
    if not plan.compresses:
        return None
    comm = CompressedComm(plan=plan, names=ddp.module)
    ddp.register_comm_hook(comm, comm.hook)
    return comm


def ours(tolerance: float, codec: str = "entropy") -> Contestant:
    """Ours: bounds of √(3·tolerance) σ."""
    bound = (3 * tolerance) ** 0.5
    return Contestant(
        name=f"encke {codec} {tolerance:g}",
        register=_ours(tolerance, codec),
        warm_up=3,
        remark=f"bound {bound:.3f} σ between ranks",
    )


ONE_BUCKET = "one bucket: with more, torch's hook starts collectives in different order"

CONTESTANTS = {
    one.name: one
    for one in (
        Contestant(name="none", register=_none),
        Contestant(name="fp16", register=_fp16),
        Contestant(name="bf16", register=_bf16),
        *(
            Contestant(
                name=f"powersgd {rank}",
                register=_power_sgd(rank),
                whole=True,
                warm_up=4,
                remark=ONE_BUCKET,
            )
            for rank in (1, 2, 4)
        ),
        *(ours(tolerance) for tolerance in (0.003, 0.01, 0.03)),
        ours(0.01, "fixed"),
        Contestant(
            name="encke auto",
            register=_auto,
            warm_up=3,
            remark="as the tuner chose, or not at all",
        ),
    )
}
