"""Training loops as people write them run with a tape as they run without."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import data_parallel, fully_sharded, run_on_ranks
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import encke
from encke.tape.autograd.nodes import has_hooks

LOSSLESS = encke.Fixed(encke.Lossless())


class Net(nn.Module):
    """A convolution, a norm, a linear layer; `middle` says how its middle is run."""

    def __init__(self, middle: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        )
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(8 * 8 * 8, 10)
        self.run = middle

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.middle(x) if self.run is None else self.run(self.middle, x)
        result: Tensor = self.last(self.drop(F.max_pool2d(x, 2).flatten(1)))
        return result


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return (
        torch.randn(8, 3, 16, 16, generator=generator),
        torch.randint(0, 10, (8,), generator=generator),
    )


def train(
    model: nn.Module, steps: int = 3, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Tensor]:
    """The weights after a few steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        torch.manual_seed(step)
        x, target = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimizer.step()
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def with_and_without(loop: Callable[[bool], dict[str, Tensor]]) -> None:
    assert same(loop(False), loop(True))


def attached(model: nn.Module, yes: bool) -> nn.Module:
    if yes:
        encke.attach(model, policy=LOSSLESS)
    return model


# -- one process ---------------------------------------------------------------------------


def test_gradients_accumulate_over_micro_batches() -> None:
    def loop(tape: bool) -> dict[str, Tensor]:
        model = attached(Net(), tape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(2):
            torch.manual_seed(step)
            optimizer.zero_grad()
            for micro in range(3):
                x, target = batch(3 * step + micro)
                (F.cross_entropy(model(x), target) / 3).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model.state_dict()

    with_and_without(loop)


def test_losses_accumulate_before_one_backward() -> None:
    def loop(tape: bool) -> dict[str, Tensor]:
        model = attached(Net(), tape)
        torch.manual_seed(0)
        losses = [F.cross_entropy(model(x), t) for x, t in (batch(0), batch(1))]
        torch.stack(losses).sum().backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    with_and_without(loop)


@pytest.mark.parametrize("policy", [LOSSLESS, None], ids=["lossless", "controller"])
def test_autocast_to_bfloat16(policy: Any) -> None:
    def loop(tape: bool) -> list[Tensor]:
        model = Net()
        if tape:
            encke.attach(model, policy=policy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            torch.manual_seed(step)
            x, target = batch(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    for a, b in zip(loop(False), loop(True), strict=True):
        if policy is LOSSLESS:
            assert torch.equal(a, b)
        # The tolerance allows a deviation of 0.1 on average over parameters; some have eight
        # values only, in bfloat16.
        assert torch.linalg.vector_norm(a - b) <= 0.2 * torch.linalg.vector_norm(a)


def _checkpointed(reentrant: bool) -> Callable[..., Tensor]:
    def run(module: nn.Module, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(module, x, use_reentrant=reentrant)
        return result

    return run


def _in_segments(module: nn.Sequential, x: Tensor) -> Tensor:
    result: Tensor = checkpoint_sequential(module, 2, x, use_reentrant=False)
    return result


def _on_the_host(module: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        result: Tensor = module(x)
    return result


def _with_hooks_of_its_own(module: nn.Module, x: Tensor) -> Tensor:
    def pack(t: Tensor) -> Tensor:
        return t.clone()

    def unpack(t: Tensor) -> Tensor:
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result: Tensor = module(x)
    return result


@pytest.mark.parametrize(
    "middle",
    [
        _checkpointed(False),
        _checkpointed(True),
        _on_the_host,
        _with_hooks_of_its_own,
    ],
    ids=["checkpoint", "reentrant", "save_on_cpu", "hooks"],
)
def test_a_part_that_saves_in_its_own_way_goes_on_doing_so(
    middle: Callable[..., Tensor],
) -> None:
    model = Net(middle)
    plain = train(model)
    model = Net(middle)
    tape = encke.attach(model, policy=LOSSLESS)
    assert same(plain, train(model))
    places = {r.site.module for r in tape.records}
    assert {"first.0", "last"} <= places
    assert not any(place.startswith("middle") for place in places)
    assert tape.stored_bytes == 0


def test_only_the_last_of_several_checkpointed_segments_is_kept() -> None:
    model = Net(_in_segments)
    plain = train(model)
    model = Net(_in_segments)
    tape = encke.attach(model, policy=LOSSLESS)
    assert same(plain, train(model))
    middle = {r.site.module for r in tape.records if r.site.module.startswith("middle")}
    assert middle == {"middle.2", "middle.3"}


def test_a_checkpointed_model_with_a_tape_inside_is_taped_when_it_runs_again() -> None:
    def loop(tape: bool) -> dict[str, Tensor]:
        model = Net(_checkpointed(False))
        attached(model.middle, tape)
        return train(model)

    with_and_without(loop)


@pytest.mark.parametrize("kind", ["average", "ema"])
def test_averaged_copies_of_the_weights(kind: str) -> None:
    def loop(tape: bool) -> dict[str, Tensor]:
        model = attached(Net(), tape)
        ema = get_ema_multi_avg_fn(0.9) if kind == "ema" else None
        averaged = AveragedModel(model, multi_avg_fn=ema)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = SWALR(optimizer, swa_lr=0.05)
        for _ in range(3):
            train(model, steps=1, optimizer=optimizer)
            averaged.update_parameters(model)
            schedule.step()
        update_bn([batch(i)[0] for i in range(2)], averaged)
        with torch.no_grad():
            averaged(batch(0)[0])
        return averaged.state_dict()

    with_and_without(loop)


def test_a_copy_of_a_model_is_a_model_of_its_own() -> None:
    model = Net()
    tape = encke.attach(model, policy=LOSSLESS)
    train(model, steps=1)
    twin = copy.deepcopy(model)
    train(twin, steps=2)
    assert tape.step == 1
    assert not same(model.state_dict(), twin.state_dict())
    other = encke.attach(twin, policy=LOSSLESS)
    train(twin, steps=1)
    assert (tape.step, other.step) == (1, 1)


def test_a_saved_and_loaded_model_has_no_tape() -> None:
    model = Net()
    tape = encke.attach(model)
    train(model, steps=2)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert same(model.state_dict(), loaded.state_dict())
    before = tape.step
    train(loaded, steps=1)
    assert tape.step == before
    encke.attach(loaded, policy=LOSSLESS).detach()


def test_two_optimizers_and_groups_of_parameters() -> None:
    def loop(tape: bool) -> dict[str, Tensor]:
        model = Net()
        one = torch.optim.SGD(
            [
                {"params": model.first.parameters(), "lr": 0.1},
                {"params": model.middle.parameters(), "weight_decay": 0.1, "momentum": 0.9},
            ],
            lr=0.01,
        )
        other = torch.optim.Adam(model.last.parameters(), lr=1e-2)
        if tape:
            encke.attach(model, [one, other], policy=LOSSLESS)
        for step in range(3):
            torch.manual_seed(step)
            x, target = batch(step)
            model.zero_grad()
            F.cross_entropy(model(x), target).backward()
            one.step()
            other.step()
        return model.state_dict()

    with_and_without(loop)


@pytest.mark.parametrize("reference", ["momentum", "second_moment", "noise", "magnitude"])
def test_the_controller_reads_the_state_of_several_optimizers(reference: Any) -> None:
    model = Net()
    one = torch.optim.SGD(model.first.parameters(), lr=0.01, momentum=0.9)
    other = torch.optim.AdamW([*model.middle.parameters(), *model.last.parameters()], lr=1e-3)
    tape = encke.attach(model, [one, other], reference=reference)
    losses = []
    for step in range(6):
        torch.manual_seed(0)
        x, target = batch(0)
        model.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        one.step()
        other.step()
        losses.append(loss.item())
        assert tape.step == step + 1
    assert losses[-1] < losses[0]
    assert tape.policy.bounds  # type: ignore[attr-defined]


def test_a_tape_continues_from_its_checkpoint_with_the_same_bounds() -> None:
    def tensors(tape: encke.Tape) -> dict[str, tuple[str, float]]:
        return {str(r.site): (r.how, r.error) for r in tape.records}

    model = Net()
    tape = encke.attach(model)
    train(model, steps=9)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "tape": tape.state_dict()}, file)
    train(model, steps=1)
    expected = tensors(tape)

    file.seek(0)
    state = torch.load(file)  # weights only: the tape's state is plain numbers
    again = Net()
    again.load_state_dict(state["model"])
    later = encke.attach(again)
    later.load_state_dict(state["tape"])
    assert later.step == 9
    train(again, steps=1)
    assert tensors(later) == expected
    assert any(error > 0 for _, error in expected.values())


def test_a_tapes_state_of_another_release_is_refused() -> None:
    tape = encke.attach(Net())
    with pytest.raises(encke.UnsupportedError, match="version 99"):
        tape.load_state_dict({**tape.state_dict(), "version": 99})


def test_weights_loaded_between_steps_are_used() -> None:
    def loop(tape: bool) -> dict[str, Tensor]:
        model = attached(Net(), tape)
        before = {n: t.clone() for n, t in model.state_dict().items()}
        train(model, steps=2)
        model.load_state_dict(before)
        return train(model, steps=1)

    with_and_without(loop)


def test_what_saves_in_its_own_way_is_recognised() -> None:
    x = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = F.gelu(x)
    assert has_hooks(y.grad_fn._raw_saved_self)


# -- several ranks -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("worker", [data_parallel, fully_sharded])
def test_ranks_agree_with_one_another_and_with_a_run_without_a_tape(
    worker: Callable[[int], dict[str, Any]],
) -> None:
    ranks = run_on_ranks(worker)
    for how, kept in ranks[0].items():
        for here, there in zip(kept["steps"], ranks[1][how]["steps"], strict=True):
            assert same(here, there), how
        if how.startswith("plain"):
            plain = kept["steps"]
            continue
        assert kept["held"] == 0
        assert 0 < kept["stored"] < kept["plain"]
        assert all(shape[0] == 96 for shape in kept["shapes"])  # activations, no weights
        for one, other in zip(plain, kept["steps"], strict=True):
            if how.startswith("lossless"):
                assert same(one, other), how
            else:
                assert distance(one, other) < 0.2, how


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """How far apart two sets of gradients are, as a share of the first's norm."""
    error = sum(float((one[k] - other[k]).square().sum()) for k in one)
    return (error / sum(float(g.square().sum()) for g in one.values())) ** 0.5
