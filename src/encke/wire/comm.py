"""`CompressedComm`: what a training gives its gradients, factors and inverses to."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with classes.

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from encke.errors import UnsupportedError
from encke.wire.collectives import GroupCollectives, Settings, group_of_its_own
from encke.wire.feedback import Feedback, merged
from encke.wire.gradients import Gradients
from encke.wire.message import Stretch
from encke.wire.names import ParameterNames
from encke.wire.noise import NoiseRule
from encke.wire.order import Queue
from encke.wire.plan import Choice, Plan
from encke.wire.planner import Planner
from encke.wire.protocol import BoundPolicy

_FORMAT = 1


class CompressedComm(GroupCollectives):
    """Exchanges gradients and other tensors between ranks, within bounds.

    tolerance       variance that compression may add to a gradient, as a share of its own
                    variance between ranks; see `encke.wire.noise`
    policy          sets the bounds instead of that rule
    group           whose ranks take part; by default all of them
    error_feedback  what a message lost is added to the next one; rounding is then plain
    check           every so many steps hold the result against an exact all-reduce, and
                    raise `CertificateError` if it breaks its promise
    names           a model whose parameter names are to be used
    plan            what `tune` found; its choice goes before `tolerance` and `codec`
    replan          every so many steps rank 0 compares the plan with what was seen, and may
                    choose anew for all; 0: never

    For the others see `Settings`. All ranks must make it, and with the same arguments: it
    has a process group of its own.

        comm = encke.wire.CompressedComm(tolerance=0.01)
        ddp.register_comm_hook(comm, comm.hook)
    """

    def __init__(
        self,
        tolerance: float = 0.01,
        *,
        policy: BoundPolicy | None = None,
        group: Any = None,
        codec: str = "entropy",
        dither: bool | None = None,
        error_feedback: bool = False,
        messages: str = "variable",
        check: int = 0,
        seed: int = 0,
        backend: str | None = None,
        names: nn.Module | None = None,
        plan: Plan | None = None,
        replan: int = 0,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise UnsupportedError(
                "CompressedComm needs torch.distributed; start the script with torchrun and "
                "call torch.distributed.init_process_group() first"
            )
        for option, given in (("check", check), ("replan", replan)):
            if given < 0:
                raise UnsupportedError(
                    f"{option} is {given!r}, allowed is 0 (never) or more steps"
                )
        if replan and plan is None:
            raise UnsupportedError("replan needs a plan to start from; give plan=tune(...)")
        policy = NoiseRule(tolerance) if policy is None else policy
        settings = Settings(
            codec=codec,
            dither=not error_feedback if dither is None else dither,
            messages=messages,
            seed=seed,
            backend=backend,
        )
        super().__init__(group_of_its_own(group), Queue("encke.wire"), settings)
        self.feedback = Feedback() if error_feedback else None
        self.gradients = Gradients(self, policy, feedback=self.feedback, check=check)
        self.names = ParameterNames()
        if names is not None:
            self.names.learn(names)
        self.step = 0
        self.planner = Planner(self, plan, every=replan) if plan is not None else None

    # -- trainings ---------------------------------------------------------------------------

    def hook(
        self,
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """The hook for `DistributedDataParallel.register_comm_hook(comm, comm.hook)`."""
        if bucket.index() == 0:
            self.step += 1
            if self.planner is not None:
                self.planner.step_begins(self.step)
        step, buffer = self.step, bucket.buffer()
        stretches = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            start = gradient.storage_offset() - buffer.storage_offset()
            stretches.append(Stretch(self.names.of(parameter), start, start + gradient.numel()))
        future = self.submit(
            lambda: self.gradients.all_reduce(buffer, stretches, step=step),
            buffer,
            what=_bucket_in_words(bucket.index(), stretches, step),
            completes=step if bucket.is_last() else None,
        )
        _raise_in_backward(future)
        return future

    def attach_fsdp2(self, module: nn.Module) -> int:
        """Let every FSDP2 unit in `module` reduce its gradients here; how many there are."""
        from encke.wire.fsdp2 import attach

        return attach(self, module)

    def close(self) -> None:
        """Finish what is queued and end the thread; afterwards nothing can be exchanged."""
        self.queue.close()

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank must have again to go on as if it had not stopped.

        With error feedback it differs between ranks, so each rank saves its own. For another
        number of ranks see `consolidated_state_dict`.
        """
        return self._state(
            rank=self.rank,
            residuals={n: r.clone() for n, r in self._residuals().items()},
        )

    def consolidated_state_dict(self) -> dict[str, Any]:
        """One state for any number of ranks; all ranks must call it, and get the same."""
        done: Future[dict[str, Any]] = self.queue.submit(
            lambda: self._state(
                rank=None,
                residuals=self.feedback.mean_over_ranks(self.group, self.world)
                if self.feedback is not None
                else {},
            )
        )
        return done.wait()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`: this rank's own, or a consolidated one."""
        if state.get("format") != _FORMAT:
            raise UnsupportedError(
                f"state has format {state.get('format')!r}, this Encke reads {_FORMAT}"
            )
        theirs, ours = (state["rank"], state["world"]), (self.rank, self.world)
        if state["residuals"] and theirs[0] is not None and theirs != ours:
            raise UnsupportedError(
                f"state is that of rank {theirs[0]} of {theirs[1]}, this is rank {ours[0]} of "
                f"{ours[1]}, and residuals differ between ranks; load what "
                "consolidated_state_dict() gave, or merged_states() of all ranks' states"
            )
        self.step = int(state["step"])
        self.queue.completed_step = self.step
        self.calls = {str(name): int(count) for name, count in state["calls"].items()}
        self.gradients.policy.load_state_dict(state["policy"])
        if self.planner is not None and state.get("choice") is not None:
            codec, tolerance = state["choice"]
            choice = Choice(codec, tolerance)
            if choice in self.planner.plan.choices():
                self.planner.use(choice)
        if self.feedback is not None:
            self.feedback.residuals = {n: r.clone() for n, r in state["residuals"].items()}

    def _residuals(self) -> dict[str, torch.Tensor]:
        return self.feedback.residuals if self.feedback is not None else {}

    def _state(self, *, rank: int | None, residuals: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "rank": rank,
            "world": self.world,
            "step": self.step,
            "calls": dict(self.calls),
            "policy": self.gradients.policy.state_dict(),
            "residuals": residuals,
            "choice": None if self.planner is None else list(self.planner.plan.chosen.pair),
        }


def _bucket_in_words(index: int, stretches: list[Stretch], step: int) -> str:
    """
    >>> _bucket_in_words(1, [Stretch("a.weight", 0, 9), Stretch("a.bias", 9, 12)], 4)
    'bucket 1 (a.weight … a.bias) of step 4'
    """
    names = dict.fromkeys(s.name for s in (*stretches[:1], *stretches[-1:]))
    return f"bucket {index} ({' … '.join(names)}) of step {step}"


def _raise_in_backward(future: Future[Any]) -> None:
    """Let the end of the backward that runs raise what `future` fails with.

    DDP waits for it there too, but takes an exception for a result and says that it cannot be
    cast to a tensor.
    """
    with suppress(RuntimeError):  # no backward runs: then DDP's error has the message in it
        torch.autograd.Variable._execution_engine.queue_callback(future.wait)


def merged_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The consolidated state of all ranks' own states, for a resume with other ranks."""
    found = sorted(state["rank"] for state in states if state["rank"] is not None)
    world = states[0]["world"] if states else 0
    if found != list(range(world)):
        raise UnsupportedError(
            f"states are of the ranks {found} of {world}; give one of each rank"
        )
    return {
        **states[0],
        "rank": None,
        "residuals": merged([state["residuals"] for state in states]),
    }
