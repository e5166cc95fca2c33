"""What the ranks of a test do; each function runs on every rank and returns what it saw."""

from __future__ import annotations

import copy
import math
import os
import random
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from encke.bound import Absolute, RmsRelative
from encke.wire import (
    KFAC,
    Choice,
    CompressedComm,
    Plan,
    ddp,
    merged_states,
    tune,
    tune_curvature,
)
from encke.wire.cost import Coding
from encke.wire.exchange import Exchange
from encke.wire.lattice import deviation
from encke.wire.link import Line, Link
from encke.wire.message import Stretch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, for comparisons in which NaN equals itself."""
    return tensor.detach().clone().contiguous().view(-1).view(torch.uint8)


def one_after_another(rank: int, jobs: list[tuple[Any, ...]]) -> list[Any]:
    """Several functions of this module in one world: starting ranks is what costs."""
    return [function(rank, *arguments) for function, *arguments in jobs]


# -- collectives -----------------------------------------------------------------------------


def _cases(count: int) -> list[dict[str, Any]]:
    draw = random.Random(7)
    sizes = [0, 1, 2, 255, 257, 16_385, 1_000_003]
    return [
        {
            "size": sizes[case] if case < len(sizes) else int(10 ** draw.uniform(0, 5)),
            "dtype": FLOATS[case % 4] if case >= len(sizes) else torch.float32,
            "scale": 10 ** draw.uniform(-6, 3),
            "bound": 10 ** draw.uniform(-4, 0.5),
            "common": draw.choice([0.0, 1.0, 30.0]),
            "special": case % 5 == 4,
        }
        for case in range(count)
    ]


def _input(case: dict[str, Any], seed: int, rank: int) -> Tensor:
    """The tensor of one rank: something common to all, and noise; perhaps with specials."""
    own = torch.Generator().manual_seed(1000 * seed + rank)
    all_ranks = torch.Generator().manual_seed(seed)
    x = torch.randn(case["size"], generator=own)
    x += case["common"] * torch.randn(case["size"], generator=all_ranks)
    x *= case["scale"]
    if case["special"] and case["size"] > 2:
        x[1], x[2] = math.inf, math.nan
    return x.to(case["dtype"])


def means(rank: int, messages: str, cases: int) -> list[dict[str, Any]]:
    """Means of random tensors, and what the error was against all ranks' inputs."""
    world = dist.get_world_size()
    comm = CompressedComm(messages=messages)
    found = []
    for seed, case in enumerate(_cases(cases)):
        inputs = [_input(case, seed, r) for r in range(world)]
        bound = case["bound"] * case["scale"]
        mean = comm.all_reduce_mean(inputs[rank], bound=Absolute(bound), name="x").wait()
        part = comm.reduce_scatter_mean(inputs[rank], bound=Absolute(bound), name="y").wait()
        wide = torch.stack([x.double() for x in inputs])
        exact, magnitude = wide.mean(0), wide.abs().mean(0)
        finite = torch.isfinite(exact)
        rounding = (world + 1) * 2.0**-23 * magnitude[finite]
        rounding = rounding + torch.finfo(case["dtype"]).eps * exact[finite].abs()
        size = -(-case["size"] // world)
        own = slice(min(rank * size, case["size"]), min((rank + 1) * size, case["size"]))
        error = (mean.double() - exact)[finite]
        part_error = torch.where(finite, 0.0, math.nan)[own] + part.double() - exact[own]
        found.append(
            {
                **case,
                "bits": bits(mean),
                "shape": mean.shape == inputs[0].shape and mean.dtype == inputs[0].dtype,
                "excess": float((error.abs() - rounding).max()) / bound if len(error) else 0.0,
                "part_excess": float((part_error.abs().nan_to_num() - bound).max())
                / (bound + float(magnitude[finite].max()))
                if part.numel() and len(error)
                else 0.0,
                "part_size": part.numel() == own.stop - own.start,
                "deviation": float(error.square().mean().sqrt()) / deviation(bound, world)
                if len(error) and case["dtype"] in FLOATS[:2]
                else 0.0,
                "bias": float(error.mean()) / deviation(bound, world) if len(error) else 0.0,
                "finite_kept": bool((torch.isfinite(mean) == finite).all()),
            }
        )
    comm.close()
    return found


def letters(rank: int) -> list[bool]:
    """Messages of very different sizes, none among them, in slots and without."""
    world = dist.get_world_size()
    came = []
    for fixed in (True, False):
        exchange = Exchange(dist.group.WORLD, rank=rank, world=world, fixed=fixed)
        for turn in range(8):
            # A size for every pair; in each turn another rank's letters are the long ones.
            sizes = [
                [
                    (a * 31 + b * 17 + turn) % 5 * (20_000 if turn % world == a else 3)
                    for b in range(world)
                ]
                for a in range(world)
            ]
            if turn == 5:
                sizes = [[0] * world for _ in range(world)]
            sent = [
                torch.full((n,), 10 * rank + b, dtype=torch.uint8)
                for b, n in enumerate(sizes[rank])
            ]
            received = exchange.all_to_all(sent, name="letters")
            came += [
                torch.equal(
                    received[a],
                    torch.full((sizes[a][rank],), 10 * a + rank, dtype=torch.uint8),
                )
                for a in range(world)
            ]
    return came


def moves(rank: int) -> dict[str, Any]:
    """Gathers and broadcasts, in subgroups too, exact and within a bound, out of step."""
    world = dist.get_world_size()
    comm = CompressedComm()
    shapes = [(3, 5), (0,), (40, 50), ()]
    own = torch.randn(shapes[rank % 4], generator=torch.Generator().manual_seed(rank))
    pair = comm.subgroup([0, world - 1]) if world > 2 else comm
    futures = {
        "gathered": comm.all_gather(own, bound=Absolute(0.01), name="a"),
        "exact": comm.all_gather(own, bound=None, name="b"),
        "integers": comm.all_gather(torch.arange(rank + 3), bound=None, name="c"),
        "half": comm.all_gather(own.bfloat16(), bound=Absolute(0.05), name="d"),
    }
    sources = range(world)
    for source in sources:
        x = torch.full((300,), float(rank)) + torch.linspace(0, 1, 300)
        futures[f"from {source}"] = comm.broadcast(
            x, source=source, bound=RmsRelative(0.01), name="e"
        )
    if rank in (0, world - 1):
        futures["pair"] = pair.all_reduce_mean(torch.ones(4) * rank, bound=None, name="p")
    found: dict[str, Any] = {name: future.wait() for name, future in futures.items()}
    comm.close()
    return found


def noise(rank: int) -> dict[str, Any]:
    """What the rule learns of a gradient that is long enough to be cut between ranks."""
    comm = CompressedComm(0.01)
    values, seen = 60_000, []
    for step in range(1, 5):
        own = torch.Generator().manual_seed(10 * step + rank)
        common = torch.randn(values, generator=torch.Generator().manual_seed(step))
        buffer = 3.0 * torch.randn(values, generator=own) + common
        stretches = [Stretch("long", 0, values)]
        comm.submit(
            partial(comm.gradients.all_reduce, buffer, stretches, step=step), buffer
        ).wait()
        seen.append(comm.gradients.policy.noise["long"])
    comm.close()
    return {"noise": seen, "sent": comm.exchange.sent_bytes, "plain": 4 * 4 * values}


# -- trainings -------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 90)
        self.norm = nn.LayerNorm(90)
        self.second = nn.Linear(90, 70)
        self.last = nn.Linear(70, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.norm(self.first(x)))
        result: Tensor = self.last(F.relu(self.second(y)))
        return result


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    own = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 40, generator=own)
    teacher = torch.randn(40, 10, generator=torch.Generator().manual_seed(5))
    return x, (x @ teacher).argmax(1)


class Run:
    """A DDP training with a compressed hook that can be saved and taken up again."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Net()
        # Small buckets: there are several, and DDP builds them anew after the first step.
        self.ddp = nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=0.01)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.comm = CompressedComm(names=self.model, **options)
        self.ddp.register_comm_hook(self.comm, self.comm.hook)

    def steps(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            x, target = batch(dist.get_rank(), step)
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.ddp(x), target)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        torch_state = {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
        }
        buffers = torch_state["optimizer"]["state"]
        torch_state["optimizer"]["state"] = {
            k: {n: v.clone() for n, v in s.items()} for k, s in buffers.items()
        }
        return {**torch_state, "comm": self.comm.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.comm.load_state_dict(state["comm"])

    def parameters(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def trainings(rank: int, steps: int) -> dict[str, Any]:
    """Training through, and the same stopped in the middle and resumed."""
    found: dict[str, Any] = {}
    for how, options in {
        "dither": {"check": 10},
        "feedback": {"error_feedback": True, "check": 10},
        "fixed": {"codec": "fixed", "messages": "fixed"},
    }.items():
        run = Run(**options)
        losses = run.steps(0, steps // 2)
        middle = run.state()
        consolidated = run.comm.consolidated_state_dict()
        losses += run.steps(steps // 2, steps)
        again = Run(**options)
        again.load(middle)
        again.steps(steps // 2, steps)
        found[how] = {
            "losses": losses,
            "parameters": run.parameters(),
            "resumed": again.parameters(),
            "state": middle,
            "consolidated": consolidated,
            "sent": run.comm.exchange.sent_bytes,
            "plain": run.comm.gradients.plain_bytes,
        }
        run.comm.close()
        again.comm.close()
    return found


def resumed_elsewhere(rank: int, state: dict[str, Any], own: Any, steps: int) -> dict[str, Any]:
    """A state of other ranks taken up; what a single rank's own state does."""
    run = Run(error_feedback=True, check=5)
    refusal = ""
    try:
        run.comm.load_state_dict(own)
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    run.load(copy.deepcopy(state))  # as given, it is memory that all ranks share
    mean = run.comm.consolidated_state_dict()["residuals"]
    losses = run.steps(steps // 2, steps)
    run.comm.close()
    return {
        "refusal": refusal,
        "residuals": mean,
        "losses": losses,
        "parameters": run.parameters(),
        "noise": run.comm.gradients.policy.state_dict(),
    }


def sharded(rank: int) -> dict[str, Any]:
    """Gradients of FSDP2 units, plain and through the wire from the same weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {}
    for how, options in {
        "plain": None,
        "wire": {},
        "feedback": {"error_feedback": True},
    }.items():
        torch.manual_seed(0)
        model = Net()
        for layer in (model.first, model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        comm = None if options is None else CompressedComm(**options)
        units = comm.attach_fsdp2(model) if comm is not None else 0
        steps = []
        for step in range(3):
            x, target = batch(rank, step)
            model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            steps.append({n: p.grad.full_tensor() for n, p in model.named_parameters()})
        noise = comm.gradients.policy.noise if comm is not None else {}
        found[how] = {"units": units, "steps": steps, "noise": dict(noise)}
        if comm is not None:
            found[how]["state"] = comm.state_dict()
            comm.close()
    return found


def tuned(rank: int) -> dict[str, Any]:
    """A plan, and a training that follows one it is told is wrong."""
    torch.manual_seed(0)
    model = Net()
    x, target = batch(rank, 0)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    plan = tune(model, (x, target), bucket_cap_mb=0.01)
    curvature = tune_curvature(model, (x, target), plan, overhead=1e3)
    kept = all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    # A link said to be so slow that compression wins by far; what is seen says otherwise.
    slow = Line(latency=1e-6, bandwidth=100.0)
    wrong = Plan(
        link=Link(world=dist.get_world_size(), exchange=slow, reduce=slow),
        workload=replace(plan.workload, seconds=0.01),
        codings={
            Choice(codec, 0.01): Coding(encode=1e-9, decode=1e-9, size=0.1, again=0.1)
            for codec in ("entropy", "fixed")
        },
    )
    chosen_first = wrong.chosen
    run = Run(plan=wrong, replan=5)
    run.steps(0, 40)
    assert run.comm.planner is not None
    after = run.comm.planner.plan
    auto = ddp(Net(), sample_batch=(x, target), replan=0)
    off = ddp(Net(), wire="off")
    found = {
        "chosen": str(plan.chosen),
        "rows": len(plan.rows()),
        "explained": plan.explain(),
        "curvature": [
            (row.fraction, row.compressed, row.seconds > curvature.base > 0)
            for row in curvature.rows
            if row.inverse_interval == 1
        ],
        "curvature options": KFAC(model, **curvature.chosen.options).settings.inverse_interval,
        "kept": kept,
        "gradients": [p.grad for p in model.parameters()],
        "at first": str(chosen_first),
        "link": (slow.bandwidth, after.link.exchange.bandwidth),
        "at last": str(after.chosen),
        "observed": after.explain(),
        "parameters": run.parameters(),
        "auto": auto.explain(),
        "auto hooked": auto.comm is not None,
        "off": off.comm is None and off.plan is None,
    }
    run.comm.close()
    return found


def dying(rank: int, folder: str) -> str:
    """Rank 1 dies in the middle of a backward; what the others hear."""
    run = Run()
    run.steps(0, 3)
    if rank == 1:
        os._exit(0)
    try:
        run.steps(3, 1000)
    except Exception as error:
        heard = f"{type(error).__name__}: {error}"
    else:
        heard = "nothing"
    with open(f"{folder}/{rank}", "w") as file:
        file.write(heard)
    os._exit(0)  # the group cannot be taken apart in good order any more


def merged_state(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The consolidated communication state with the weights of rank 0."""
    return {**states[0], "comm": merged_states([state["comm"] for state in states])}
