"""The tuner: about two seconds of measurement, then a plan.

Every rank measures at the same time as all others, as they will work in the training: what
they take from each other on one machine is then part of the figures.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.ops import processors
from encke.ops.select import select
from encke.wire.collectives import group_of_its_own
from encke.wire.cost import Bucket, Coding, Workload, again_of
from encke.wire.failure import answered
from encke.wire.lattice import shares
from encke.wire.link import Link, measure_link, slowest
from encke.wire.message import CODECS, Coder, Stretch
from encke.wire.noise import NoiseRule, moments_over_ranks, variance_between
from encke.wire.plan import Choice, Plan
from encke.wire.protocol import Observation, Segment
from encke.wire.reduce import in_one_round, sample_of

_FIRST_BUCKET = 1 << 20  # DDP's, so that the exchange begins early
_WARM = 2  # steps that are not counted
_STEPS = 5  # that are; more while they are short
_MOST_STEPS = 15
_LONG = 0.8  # seconds of steps that suffice
_MEASURED = 16 << 20  # bytes of gradients that codecs are timed on
_ROUNDS = 4  # of which the first warms up

Loss = Callable[[nn.Module, Any], Tensor]


def tune(
    model: nn.Module,
    sample_batch: Any,
    group: Any = None,
    *,
    tolerance: float = 0.01,
    loss: Loss | None = None,
    memory: float | None = None,
    bucket_cap_mb: float = 25.0,
    codecs: Sequence[str] = CODECS,
) -> Plan:
    """Measure this model on these ranks and choose how to exchange its gradients.

    tolerance      the most that may be chosen; see `CompressedComm`
    loss           loss(model, sample_batch); by default cross-entropy for a pair with
                   integer targets, the mean squared error for other pairs, else the mean
                   of what the model returns
    memory         bytes that an exchange may take beside the gradients
    bucket_cap_mb  as DDP was given

    All ranks must call it. The model's gradients are cleared; its weights and buffers and
    torch's random state come out as they went in.
    """
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    parameters = [p for p in inner.parameters() if p.requires_grad]
    if not parameters:
        raise UnsupportedError("the model has no parameter that requires a gradient")
    device = parameters[0].device
    own = group_of_its_own(group)
    try:
        link = measure_link(own, device=device)
        workload, flats = _workload(
            inner, parameters, sample_batch, loss or default_loss, own, bucket_cap_mb
        )
        codings = (
            _codings(flats, workload, link, own, tolerance, codecs) if link.world > 1 else {}
        )
    finally:
        dist.destroy_process_group(own)
    return Plan(link=link, workload=workload, codings=codings, limit=memory)


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy, mean squared error or mean, by what the batch is."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, target = batch
        output = model(inputs)
        if not target.is_floating_point():
            return F.cross_entropy(output.flatten(0, -2), target.flatten())
        return F.mse_loss(output, target)
    output = model(**batch) if isinstance(batch, dict) else model(batch)
    output = getattr(output, "loss", output)
    if not isinstance(output, Tensor):
        raise UnsupportedError(
            f"the model returns {type(output).__name__}; give tune(loss=...) to make a loss"
        )
    return output.float().mean()


def _workload(
    model: nn.Module,
    parameters: list[nn.Parameter],
    batch: Any,
    loss: Loss,
    group: Any,
    cap_mb: float,
) -> tuple[Workload, list[Tensor]]:
    """A step without exchange, timed; and the gradients it gave, in the model's order."""
    device = parameters[0].device
    buffers = [buffer.clone() for buffer in model.buffers()]
    arrival: dict[int, float] = {}
    began = 0.0

    def arrived(parameter: Tensor) -> None:
        arrival[id(parameter)] = time.perf_counter() - began

    handles = [
        p.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
        for p in parameters
    ]
    steps: list[tuple[float, dict[int, float]]] = []
    try:
        with torch.random.fork_rng():
            while len(steps) < _WARM + _STEPS or (
                len(steps) < _WARM + _MOST_STEPS
                and sum(taken for taken, _ in steps) < _LONG  # the same on every rank
            ):
                model.zero_grad()
                arrival.clear()
                with answered(group, "the tuner's measurements"):
                    dist.barrier(group=group)
                began = time.perf_counter()
                loss(model, batch).backward()  # type: ignore[no-untyped-call]
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                taken = slowest(time.perf_counter() - began, group, device)
                steps.append((taken, dict(arrival)))
    finally:
        for handle in handles:
            handle.remove()
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    counted = sorted(steps[_WARM:], key=lambda step: step[0])
    seconds, times = counted[(len(counted) - 1) // 2]
    ordered = sorted(parameters, key=lambda p: times.get(id(p), seconds))
    buckets = _buckets(ordered, times, cap_mb)
    flats = [
        (torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten()
        for p in parameters
    ]
    model.zero_grad(set_to_none=True)
    room = _room(group)
    work = Workload(
        seconds=seconds,
        buckets=buckets,
        together=min(1.0, room / 2) / min(1.0, room),
        alone=min(1.0, room),
    )
    # The order of arrival may differ between ranks in the last digits of time; rank 0's counts.
    shared = [work]
    with answered(group, "the tuner's measurements"):
        dist.broadcast_object_list(shared, group_src=0, group=group)
    return shared[0], flats


def _buckets(
    parameters: Sequence[nn.Parameter], arrival: dict[int, float], cap_mb: float
) -> list[Bucket]:
    """As DDP groups them: in order of arrival, a small one first."""
    found, values, nbytes, ready = [], 0, 0, 0.0
    limit = float(min(_FIRST_BUCKET, cap_mb * 2**20))
    for parameter in parameters:
        values, nbytes = values + parameter.numel(), nbytes + parameter.nbytes
        ready = max(ready, arrival.get(id(parameter), 0.0))
        if nbytes >= limit:
            found.append(Bucket(values=values, nbytes=nbytes, ready=ready))
            values, nbytes, limit = 0, 0, cap_mb * 2**20
    if nbytes:
        found.append(Bucket(values=values, nbytes=nbytes, ready=ready))
    return found


def _room(group: Any) -> float:
    """Processors of this machine for each thread of the ranks on it."""
    hosts: list[Any] = [None] * dist.get_world_size(group)
    with answered(group, "the tuner's measurements"):
        dist.all_gather_object(hosts, socket.gethostname(), group=group)
    here = hosts.count(socket.gethostname())
    return processors.usable() / (here * torch.get_num_threads())


def _codings(
    flats: list[Tensor],
    workload: Workload,
    link: Link,
    group: Any,
    tolerance: float,
    codecs: Sequence[str],
) -> dict[Choice, Coding]:
    """Sizes and speeds of every codec and tolerance on this step's gradients."""
    taken, total = [], 0
    for flat in sorted(flats, key=lambda f: -f.numel()):
        taken.append(flat.float() if flat.dtype not in (torch.float32, torch.float64) else flat)
        total += taken[-1].nbytes
        if total >= _MEASURED:
            break
    flat = torch.cat(taken)
    stretches, start = [], 0
    for place, one in enumerate(taken):
        stretches.append(Stretch(str(place), start, start + one.numel()))
        start += one.numel()
    rule, noise_share = _noise(flat, stretches, link.world, group)
    plain = all(in_one_round(b.values, link.world) for b in workload.buckets)
    share = 1.0 if plain else shares(link.world)[0]
    found: dict[Choice, Coding] = {}
    for codec in codecs:
        coder = Coder(codec=codec, backend=select(flat.device, None))
        times = float("inf"), float("inf")
        for tolerated in (tolerance / 10, tolerance / 3, tolerance):
            rule.tolerance = tolerated
            bounded = [
                Stretch(s.name, s.start, s.stop, _bound(rule, s, share)) for s in stretches
            ]
            encode, decode, size = timed_coding(coder, flat, bounded, group)
            # Fewer bits take no longer: what seems to is another program's doing.
            encode, decode = times = min(encode, times[0]), min(decode, times[1])
            found[Choice(codec, tolerated)] = Coding(
                encode=encode,
                decode=decode,
                size=size,
                again=again_of(
                    size,
                    world=link.world,
                    noise_share=noise_share,
                    itemsize=flat.element_size(),
                ),
            )
    return found


def _bound(rule: NoiseRule, stretch: Stretch, share: float) -> float | None:
    segment = Segment(name=stretch.name, values=stretch.values, world=1)
    bound = rule.bound(segment, step=0)
    return None if bound is None else share * bound


def _noise(
    flat: Tensor, stretches: Sequence[Stretch], world: int, group: Any
) -> tuple[NoiseRule, float]:
    """The noise between ranks by stretch, and its share in the variance of all values."""
    samples = [sample_of(flat, s) for s in stretches]
    sample = torch.cat(samples)
    places, start = [], 0
    for s, found in zip(stretches, samples, strict=True):
        places.append(Stretch(s.name, start, start + found.numel()))
        start += found.numel()
    mean = sample / world
    with answered(group, "the tuner's measurements"):
        dist.all_reduce(mean, group=group)
    rule, noise, squares = NoiseRule(), 0.0, 0.0
    seen = moments_over_ranks(sample, mean, places, group=group)
    for stretch, moments in zip(stretches, seen, strict=True):
        between, square = variance_between(moments, world=world, added=0.0)
        segment = Segment(name=stretch.name, values=stretch.values, world=world)
        rule.observe(
            Observation(segment=segment, step=1, bound=None, noise=between, square=square)
        )
        noise += stretch.values * between
        squares += stretch.values * (square + between * (1 - 1 / world))
    return rule, min(1.0, noise / squares) if squares else 1.0


def timed_coding(
    coder: Coder, flat: Tensor, stretches: Sequence[Stretch], group: Any
) -> tuple[float, float, float]:
    """Seconds a byte to encode and to decode, and the size; of the slowest rank."""
    out, total = torch.empty_like(flat), torch.zeros_like(flat)
    encodes, decodes, size = [], [], 0
    for seed in range(_ROUNDS):
        with answered(group, "the tuner's measurements"):
            dist.barrier(group=group)
        begin = time.perf_counter()
        message = coder.encode(flat, stretches, seed=seed)
        middle = time.perf_counter()
        coder.decode(message, stretches, out)
        total.add_(out)
        if seed:
            encodes.append(middle - begin)
            decodes.append(time.perf_counter() - middle)
        size = message.numel()
    figures = torch.tensor(
        [statistics.median(encodes), statistics.median(decodes), float(size)],
        dtype=torch.float64,
        device=flat.device,
    )
    with answered(group, "the tuner's measurements"):
        dist.all_reduce(figures, op=dist.ReduceOp.MAX, group=group)
    encode, decode, largest = (figures / flat.nbytes).tolist()
    return encode, decode, largest
