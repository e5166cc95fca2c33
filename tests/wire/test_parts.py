"""Promises of the wire's parts that need no other rank."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from encke.bound import Absolute, FixedRate, RangeRelative
from encke.errors import BoundError, CorruptStreamError, UnsupportedError
from encke.ops.select import select
from encke.wire import ClosedError, CompressedComm, NoiseRule, Observation, Segment
from encke.wire.cost import Bucket, Coding, Stages, Workload, step_seconds
from encke.wire.curvature import CurvaturePlan, CurvatureWork, UnitWork, plan_curvature
from encke.wire.feedback import Feedback, merged
from encke.wire.lattice import deviation, shares
from encke.wire.link import Line, Link
from encke.wire.message import Coder, Stretch, compacted
from encke.wire.names import ParameterNames
from encke.wire.noise import variance_between
from encke.wire.order import Queue
from encke.wire.plan import EXACT, Choice, Plan
from encke.wire.plan_file import read_plan, write_plan
from encke.wire.reduce import Moments, part_of, sample_of


@pytest.mark.parametrize("world", [3, 4, 5, 6, 7, 16, 64, 1000])
def test_shares_of_a_bound_keep_its_largest_error_and_its_variance(world: int) -> None:
    first, second = shares(world)
    assert first + second <= 1 + 1e-12
    variance = first**2 / (3 * world) + second**2 / 3
    assert variance <= deviation(1.0, world) ** 2 * (1 + 1e-12)
    # No other pair within both limits has a larger product, so none takes fewer bits.
    for a in (k / 200 for k in range(1, 200)):
        b = min(1 - a, math.sqrt(max(0.0, (1 - a * a) / world)))
        assert a * b <= first * second * (1 + 1e-9)


@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 255, 256, 300, 5000]), min_size=1, max_size=6),
    bounds=st.lists(st.sampled_from([None, 1e-12, 0.01, 0.3, 40.0]), min_size=6, max_size=6),
    codec=st.sampled_from(["entropy", "fixed"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    dither=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_message_brings_every_stretch_within_its_bound(
    sizes: list[int],
    bounds: list[float | None],
    codec: str,
    dtype: torch.dtype,
    dither: bool,
) -> None:
    flat = torch.randn(sum(sizes), dtype=dtype, generator=torch.Generator().manual_seed(1))
    stretches = compacted(
        [Stretch(str(i), 0, n, b) for i, (n, b) in enumerate(zip(sizes, bounds, strict=False))]
    )
    coder = Coder(codec=codec, dither=dither, backend=select(flat.device, None))
    side = torch.tensor([1.5, -2.0], dtype=torch.float64)
    message = coder.encode(flat, stretches, seed=3, side=side)
    assert message.numel() <= flat.nbytes + 16 * len(stretches) + 16
    out = torch.full_like(flat, math.nan)
    assert torch.equal(coder.decode(message, stretches, out, side=2), side)
    for stretch in stretches:
        here = slice(stretch.start, stretch.stop)
        error = (out[here].double() - flat[here].double()).abs()
        assert bool((error <= (stretch.bound or 0.0)).all())


def test_a_damaged_message_is_refused() -> None:
    coder = Coder(backend=select(torch.device("cpu"), None))
    flat = torch.randn(1000)
    stretches = [Stretch("a", 0, 600, 0.1), Stretch("b", 600, 1000)]
    message = coder.encode(flat, stretches, seed=0)
    for damaged in (message[:8], message[:-8], torch.cat([message, message[:8]])):
        with pytest.raises(CorruptStreamError):
            coder.decode(damaged, stretches, torch.empty(1000))
    wrong = [Stretch("a", 0, 600), Stretch("b", 600, 900)]
    with pytest.raises(CorruptStreamError, match="for b, not"):
        coder.decode(message, wrong, torch.empty(1000))
    with pytest.raises(UnsupportedError, match="allowed on the wire"):
        Coder(codec="zfp", backend=coder.backend)


@given(values=st.integers(0, 1000), parts=st.integers(1, 9))
def test_parts_of_a_stretch_cover_it_once(values: int, parts: int) -> None:
    whole = Stretch("x", 5, 5 + values)
    ends = [(p.start, p.stop) for p in (part_of(whole, k, parts) for k in range(parts))]
    assert ends[0][0] == 5
    assert ends[-1][1] == 5 + values
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))


def test_the_queue_works_in_order_and_stops_at_a_failure() -> None:
    queue, seen, gate = Queue("test"), [], threading.Event()
    first = queue.submit(lambda: (gate.wait(10), seen.append(1)))
    second = queue.submit(lambda: seen.append(2))
    assert seen == []
    gate.set()
    first.wait()
    second.wait()
    assert seen == [1, 2]

    def fails() -> None:
        raise OSError("the cable")

    with pytest.raises(OSError, match="the cable"):
        queue.submit(fails).wait()
    with pytest.raises(ClosedError, match="the cable"):
        queue.submit(lambda: seen.append(3)).wait()
    queue.close()
    with pytest.raises(ClosedError, match="closed"):
        queue.submit(lambda: seen.append(4)).wait()
    assert seen == [1, 2]


def test_noise_is_what_ranks_differ_by_without_what_coding_added() -> None:
    world, values, bound = 4, 200_000, 0.5
    own = torch.Generator().manual_seed(0)
    common = torch.randn(values, generator=own)
    ranks = [common + 2.0 * torch.randn(values, generator=own) for _ in range(world)]
    coded = [x + bound * (2 * torch.rand(values, generator=own) - 1) for x in ranks]
    mean = torch.stack(coded).mean(0)
    moments = Moments(
        sum(float(x.square().sum()) for x in coded), float(mean.square().sum()), values
    )
    noise, square = variance_between(moments, world=world, added=bound**2 / 3)
    assert noise == pytest.approx(4.0, rel=0.02)
    assert square == pytest.approx(1.0 + (4.0 + bound**2 / 3) / world, rel=0.02)


def test_the_rule_adds_the_share_of_variance_that_is_tolerated() -> None:
    segment = Segment(name="w", values=10, world=2)
    rule = NoiseRule(0.02)
    rule.observe(Observation(segment=segment, step=1, bound=None, noise=9.0, square=1.0))
    bound = rule.bound(segment, step=2)
    assert bound is not None
    assert deviation(bound, 2) ** 2 == pytest.approx(0.02 * 9.0 / 2)
    rule.observe(Observation(segment=segment, step=2, bound=bound, noise=math.nan, square=1.0))
    assert rule.bound(segment, step=3) == bound
    other = NoiseRule(0.02)
    other.load_state_dict(rule.state_dict())
    assert other.bound(segment, step=3) == bound
    for tolerance in (0.0, -1.0, 2.0, math.nan):
        with pytest.raises(UnsupportedError, match="tolerance is"):
            NoiseRule(tolerance)


def test_feedback_sends_again_what_was_lost_also_in_several_stretches() -> None:
    feedback = Feedback()
    stretches = [Stretch("a", 0, 3), Stretch("b", 3, 5), Stretch("a", 5, 8)]
    flat = torch.arange(8.0)
    feedback.keep(flat, flat - 0.5, stretches)
    assert feedback.residuals["a"].tolist() == [0.5] * 6
    assert torch.equal(feedback.added(flat, stretches), flat + 0.5)
    # One more rank pads a parameter by other values: they have no residual.
    assert feedback.added(torch.zeros(7), [Stretch("a", 0, 7)]).tolist() == [0.5] * 6 + [0.0]
    lost = torch.tensor([math.inf, 1.0])
    feedback.keep(lost, lost, [Stretch("c", 0, 2)])
    assert feedback.residuals["c"].tolist() == [0.0, 0.0]
    both = merged([{"a": torch.ones(2)}, {"a": 3 * torch.ones(2)}])
    assert both["a"].tolist() == [2.0, 2.0]


def test_parameters_are_named_by_their_model_or_by_appearance() -> None:
    model = nn.Linear(2, 2)
    names = ParameterNames()
    assert names.of(model.bias) == "parameter.0"
    with pytest.raises(UnsupportedError, match=r"'bias' has been exchanged as 'parameter.0'"):
        names.learn(model)
    known = ParameterNames()
    known.learn(model)
    assert known.of(model.weight) == "weight"


# -- plans -------------------------------------------------------------------------------------


def plan(bandwidth: float, *, world: int = 2, limit: float | None = None) -> Plan:
    line = Line(latency=1e-4, bandwidth=bandwidth)
    buckets = [Bucket(values=10**6, nbytes=4 * 10**6, ready=r) for r in (0.02, 0.04)]
    return Plan(
        link=Link(world=world, exchange=line, reduce=line),
        workload=Workload(seconds=0.05, buckets=buckets, together=0.5),
        codings={
            Choice("entropy", 0.01): Coding(encode=1e-9, decode=5e-10, size=0.11, again=0.12),
            Choice("entropy", 0.001): Coding(encode=1e-9, decode=5e-10, size=0.16, again=0.17),
            Choice("fixed", 0.01): Coding(encode=3e-10, decode=2e-10, size=0.14, again=0.15),
        },
        limit=limit,
    )


def test_a_plan_compresses_on_a_slow_link_and_declines_on_a_fast_one() -> None:
    slow, fast = plan(10e6), plan(20e9)
    assert slow.chosen == Choice("entropy", 0.01)
    assert fast.chosen == EXACT
    assert "worth it from" in fast.explain()
    assert "as fast as exact" in slow.explain()
    assert slow.rows()[0].seconds == min(row.seconds for row in slow.rows())
    assert slow.corrected(link=1e-4, coding=1.0).chosen == EXACT
    assert fast.corrected(link=1e4, coding=1.0).compresses


def test_a_plan_keeps_the_memory_limit() -> None:
    tight = plan(10e6, limit=1000.0)
    assert tight.chosen == EXACT
    assert [row.choice for row in tight.rows()] == [EXACT]
    with pytest.raises(UnsupportedError, match="memory limit"):
        plan(10e6, limit=-1.0)


def test_a_plan_comes_back_from_its_file_with_its_choice(tmp_path: Path) -> None:
    made = plan(1e7)
    made.chosen = made.choices()[-1]
    made.saw(made.chosen, 0.25)
    write_plan(tmp_path / "plan.json", made)
    found = read_plan(tmp_path / "plan.json")
    assert found == made
    assert found.explain() == made.explain()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "format 'list'"),
        ('{"format": 1}', "not one that Encke wrote"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UnsupportedError, match=said):
        read_plan(tmp_path / "plan.json")


def test_the_noise_of_a_kernel_whose_corners_see_only_padding_is_seen() -> None:
    gradient = torch.zeros(256, 512, 9)
    gradient[..., 4] = torch.randn(256, 512)
    flat = gradient.flatten()
    seen = sample_of(flat, Stretch("kernel", 0, flat.numel()))
    assert float(seen.square().mean()) == pytest.approx(1 / 9, rel=0.2)


def test_a_plan_shows_what_was_observed() -> None:
    slow = plan(10e6)
    slow.saw(slow.chosen, 0.123)
    assert "123.0" in slow.explain()


@given(
    compute=st.floats(0.01, 1.0),
    ready=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    encode=st.floats(0.0, 0.2),
    travel=st.floats(0.0, 0.5),
    together=st.floats(0.5, 1.0),
    busy=st.floats(0.0, 1.0),
)
def test_a_step_takes_no_less_than_its_parts_and_no_more_than_their_sum(
    compute: float,
    ready: list[float],
    encode: float,
    travel: float,
    together: float,
    busy: float,
) -> None:
    buckets = [Bucket(values=1, nbytes=4, ready=compute * r) for r in sorted(ready)]
    work = Workload(seconds=compute, buckets=buckets, together=together)
    stages = [Stages(encode=encode, first=travel, decode=encode, busy=busy)] * len(buckets)
    seconds = step_seconds(work, stages)
    idle = [replace(stage, busy=0.0) for stage in stages]
    assert seconds >= step_seconds(work, idle) - 1e-9
    cpu, link = (2 * encode + busy * travel) * len(buckets), travel * len(buckets)
    assert seconds >= max(compute, buckets[-1].ready + 2 * encode + travel) - 1e-9
    assert seconds <= (compute + cpu) / together + link + 1e-9


# -- one rank ----------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_one_rank_gets_back_what_it_gave() -> None:
    comm = CompressedComm()
    x = torch.randn(1000)
    assert torch.equal(comm.all_reduce_mean(x, bound=Absolute(0.1), name="x").wait(), x)
    (gathered,) = comm.all_gather(x, bound=None, name="x").wait()
    assert torch.equal(gathered, x)
    model = nn.Linear(4, 3)
    ddp = nn.parallel.DistributedDataParallel(model)
    ddp.register_comm_hook(comm, comm.hook)
    ddp(torch.ones(2, 4)).sum().backward()
    assert torch.equal(model.bias.grad, torch.full((3,), 2.0))
    comm.close()


@pytest.mark.usefixtures("alone")
def test_what_cannot_be_meant_is_refused_with_a_reason() -> None:
    comm = CompressedComm()
    x = torch.randn(10)
    with pytest.raises(BoundError, match="one lattice"):
        comm.all_reduce_mean(x, bound=RangeRelative(0.1), name="x")
    with pytest.raises(UnsupportedError, match="a mean is taken of"):
        comm.all_reduce_mean(torch.arange(3), bound=None, name="x")
    with pytest.raises(BoundError, match="the wire keeps"):
        comm.all_gather(x, bound=FixedRate(4), name="x").wait()
    with pytest.raises(UnsupportedError, match="source is 3"):
        CompressedComm().broadcast(x, source=3, bound=None, name="x")
    with pytest.raises(UnsupportedError, match="replan needs a plan"):
        CompressedComm(replan=10)
    with pytest.raises(UnsupportedError, match="messages is"):
        CompressedComm(messages="some")
    with pytest.raises(UnsupportedError, match="no FSDP2 unit"):
        comm.attach_fsdp2(nn.Linear(2, 2))


def test_a_comm_without_torch_distributed_says_how_to_start() -> None:
    with pytest.raises(UnsupportedError, match="torchrun"):
        CompressedComm()


# -- curvature ---------------------------------------------------------------------------------


def curvature_for(**limits: Any) -> CurvaturePlan:
    """Twelve units of three shapes on four ranks that exchange 100 MB a second."""
    line = Line(latency=1e-4, bandwidth=1e8)
    gradients = Plan(
        link=Link(world=4, exchange=line, reduce=line),
        workload=Workload(
            seconds=0.1, together=1.0, buckets=[Bucket(values=1000, nbytes=4000, ready=0.05)]
        ),
        codings={},
    )
    units = tuple(
        UnitWork(
            solve=1e-8 * (r**3 + c**3),
            multiply=1e-11 * r * c * (r + c),
            cost=float(r**3 + c**3),
            held=4.0 * (r * r + c * c),
            sent=2.0 * (r * r + c * c),
            gradient=4.0 * r * c,
        )
        for r, c in [(64, 128), (128, 128), (256, 64)] * 4
    )
    work = CurvatureWork(
        forward=0.03,
        sample=0.02,
        average=0.001,
        factors=2e7,
        coding=Coding(encode=1e-9, decode=1e-9, size=0.25, again=0.25),
        units=units,
    )
    return plan_curvature(work, gradients, **limits)


def test_curvature_is_as_fresh_as_the_overhead_and_the_memory_allow() -> None:
    generous, tight = curvature_for(overhead=10.0), curvature_for(overhead=0.25)
    assert generous.chosen.inverse_interval == 1
    assert tight.chosen.inverse_interval > 1
    assert tight.base < tight.chosen.seconds <= tight.allowed
    assert "→" in tight.explain()
    spread = min(row.memory for row in generous.rows)
    small = curvature_for(overhead=10.0, memory=spread)
    assert small.chosen.memory == spread
    assert small.chosen.fraction < 1.0
    with pytest.raises(UnsupportedError, match="memory limit"):
        curvature_for(overhead=10.0, memory=spread - 1)
    # Nothing fits so small an overhead: then the fastest there is.
    none = curvature_for(overhead=0.0)
    assert none.chosen.seconds == min(row.seconds for row in none.rows)


def test_factors_cost_less_compressed_and_less_often() -> None:
    rows = {
        (row.fraction, row.factor_interval, row.inverse_interval, row.compressed): row.seconds
        for row in curvature_for(intervals=[(1, 10), (10, 10)]).rows
    }
    for fraction in (0.25, 0.5, 1.0):
        assert rows[fraction, 1, 10, True] < rows[fraction, 1, 10, False]
        assert rows[fraction, 10, 10, True] < rows[fraction, 1, 10, True]
