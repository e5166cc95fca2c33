"""A tape is entered however the loss is computed; if it has no effect, a warning says why."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.control.effectiveness import reasons
from encke.control.hooks import hooks_of
from encke.tape.observe.records import Record
from encke.tape.policy import Site


class LossInMethod(nn.Module):
    """Trained through `loss`, evaluated through `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Sequential(nn.Linear(128, 128), nn.GELU())
        self.last = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(nn.functional.gelu(self.first(x))))

    def loss(self, x: Tensor) -> Tensor:
        return self.last(self.second(nn.functional.gelu(self.first(x)))).square().mean()


def steps(model: LossInMethod, count: int) -> list[Tensor]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model.loss(torch.randn(256, 64)).backward()
        optimizer.step()
    return [p.grad for p in model.parameters() if p.grad is not None]


def part_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) for m in model.modules() if m is not model)


def test_a_loss_in_a_method_is_stored_from_the_first_step() -> None:
    model = LossInMethod()
    tape = encke.attach(model)
    loss = model.loss(torch.randn(256, 64))
    assert tape.step == 1
    assert tape.plain_bytes > 4 * tape.stored_bytes > 0
    # What is computed between the parts is taken over with the next part.
    assert any(record.site.op == "Gelu" for record in tape.records)
    loss.backward()
    assert tape.stored_bytes == 0


def test_the_parts_called_in_a_step_are_one_step() -> None:
    model = LossInMethod()
    tape = encke.attach(model)
    steps(model, 5)
    assert tape.step == 5
    assert {r.site.module for r in tape.records} >= {"first", "second.0", "last"}


def test_gradients_of_a_loss_in_a_method_are_those_of_autograd() -> None:
    model = LossInMethod()
    twin = copy.deepcopy(model)
    encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    for a, b in zip(steps(model, 3), steps(twin, 3), strict=True):
        assert torch.equal(a, b)


def test_parts_have_no_hooks_once_the_model_itself_is_called() -> None:
    model = LossInMethod()
    tape = encke.attach(model)
    assert part_hooks(model)
    with torch.no_grad():
        model(torch.randn(4, 64))  # an evaluation says nothing of how it is trained
    assert part_hooks(model)
    model(torch.randn(4, 64)).sum().backward()
    assert not part_hooks(model)
    assert tape.step == 1


def test_a_model_trained_by_itself_and_later_by_its_parts_is_stored_again() -> None:
    model = LossInMethod()
    tape = encke.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    for _ in range(3):  # the first of them goes by unseen
        model.loss(torch.randn(256, 64)).backward()
        optimizer.step()
    assert tape.step == 3
    model(torch.randn(4, 64))
    assert part_hooks(model)  # both ways are used


def test_a_part_that_raises_or_is_interrupted_leaves_the_tape_usable() -> None:
    model = LossInMethod()
    tape = encke.attach(model)
    for error in (ValueError, KeyboardInterrupt):

        def stop(*_: object, error: type[BaseException] = error) -> None:
            raise error

        handle = model.second[1].register_forward_pre_hook(stop)
        with pytest.raises(error):
            model.loss(torch.randn(256, 64))
        handle.remove()
        steps(model, 1)
        assert not tape.is_entered, error
        assert len(tape.records) > 3


def test_with_tape_takes_what_no_module_computes() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(128, 64))

        def loss(self, x: Tensor) -> Tensor:
            return (x @ self.weight.T).tanh().square().mean()

    model = Functional()
    tape = encke.attach(model)
    with tape:
        loss = model.loss(torch.randn(512, 64))
    assert tape.plain_bytes > 2 * tape.stored_bytes > 0
    loss.backward()
    assert tape.stored_bytes == 0
    assert tape.step == 1


def test_with_tape_around_parts_is_one_step_and_needs_no_hooks() -> None:
    model = LossInMethod()
    tape = encke.attach(model)
    for _ in range(2):
        with tape:
            loss = model.loss(torch.randn(256, 64))
        loss.backward()
    assert tape.step == 2
    assert not part_hooks(model)
    assert {r.site.module for r in tape.records} >= {"first", "second.0", "last"}


# -- little or no effect ---------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def train(model: nn.Module, x: Tensor, count: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    encke.attach(model, optimizer)
    for _ in range(count):
        out = model(x)
        (out[0] if isinstance(out, tuple) else out).square().mean().backward()
        optimizer.step()


class NoRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return g * ctx.saved_tensors[0]


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(512))

    def forward(self, x: Tensor) -> Tensor:
        return NoRule.apply(x + self.scale)  # type: ignore[no-any-return, no-untyped-call]


def test_an_op_without_a_rule_is_named_with_its_share(caplog: pytest.LogCaptureFixture) -> None:
    train(Strange(), torch.randn(1024, 512))
    (said,) = warnings_of(caplog)
    assert "Strange: " in said
    assert "no rule for NoRule: 100% of the bytes" in said
    assert "add_rule" in said


def test_a_tape_that_helps_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    train(
        nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 8)), torch.randn(512, 512)
    )
    assert not warnings_of(caplog)


def test_a_model_without_trained_parameters_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(64, 64).requires_grad_(False)
    encke.attach(model)
    x = torch.randn(8, 64, requires_grad=True)
    for _ in range(12):
        model(x).sum().backward()
    (said,) = warnings_of(caplog)
    assert "no parameter requires a gradient" in said


def test_a_model_that_is_trained_but_never_called_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    encke.attach(model)
    for _ in range(5):
        nn.functional.linear(torch.randn(256, 64), model.weight).sum().backward()
        optimizer.step()
    (said,) = warnings_of(caplog)
    assert "was called with gradients on" in said
    assert "with tape:" in said


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_backend_that_keeps_nothing_through_the_tape_is_named(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tape = encke.attach(model)
    for _ in range(5):
        compiled(torch.randn(256, 64)).sum().backward()
        optimizer.step()
    tape.detach()
    (said,) = warnings_of(caplog)
    assert "compiled by a backend" in said
    assert "inductor" in said


def test_reasons_name_the_largest_first() -> None:
    def record(op: str, how: str, stored: int, why: str) -> Record:
        site = Site("m", op, "x")
        return Record(
            site=site, shape=(), plain=stored, stored=stored, how=how, codec="", why=why
        )

    said = reasons(
        [
            record("A", "lossy", 100, "bound"),
            record("B", "exact", 700, "no rule for B"),
            record("C", "exact", 150, "needs every bit"),
            record("D", "exact", 50, "small"),
        ]
    )
    assert said.startswith("no rule for B: 70% of the bytes, C (needs every bit): 15%")


def test_hooks_are_found_by_the_model() -> None:
    model = nn.Linear(2, 2)
    tape = encke.attach(model)
    hooks = hooks_of(model)
    assert hooks is not None
    assert hooks.tape is tape
    assert hooks.model is model


@pytest.mark.slow
def test_a_compiled_function_may_call_the_parts_and_then_the_model() -> None:
    model = LossInMethod()
    tape = encke.attach(model)

    @torch.compile
    def loss(x: Tensor) -> Tensor:
        return model.first(x).square().mean() + model(x).square().mean()

    for _ in range(2):
        loss(torch.randn(256, 64)).backward()
    assert tape.step == 2
    tape.detach()
