"""Forward passes that are not the usual ones: broken off, branching, traced, not finite."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nets import (
    IMAGES,
    LOSSLESS,
    LOSSY,
    POLICIES,
    equal,
    gradients,
    small_net,
)
from torch import Tensor, nn

import encke
from encke.tape import Policy, Tape


class Failing(nn.Module):
    """Fails in the middle of its forward, once."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.body = small_net()
        self.inner = nn.Sequential(nn.Linear(10, 1024), nn.GELU(), nn.Linear(1024, 10))
        self.error: type[BaseException] | None = error
        self.inner.register_forward_hook(self._fail)

    def _fail(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error("in forward")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(self.body(x))
        return result


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_in_forward_the_next_step_is_fine(
    error: type[BaseException],
) -> None:
    from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
    from torch.overrides import _get_current_function_mode

    model, x = Failing(error), torch.randn(IMAGES)
    tape = encke.attach(model, policy=LOSSLESS)
    with pytest.raises(error):
        model(x)
    gc.collect()  # the traceback held the graph
    kept = gradients(model, x)
    assert {r.site.module.split(".")[0] for r in tape.records} >= {"body", "inner"}
    assert tape.stored_bytes == 0
    assert not _global_forward_hooks
    assert not _global_forward_pre_hooks
    assert _get_current_function_mode() is None
    tape.detach()
    assert equal(kept, gradients(model, x))


def test_a_forward_without_gradients_keeps_nothing() -> None:
    model = small_net()
    tape = encke.attach(model, policy=LOSSY)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            model(torch.randn(IMAGES))
    assert (tape.step, len(tape.records), tape.stored_bytes) == (0, 0, 0)
    assert tape.ledger.stored_peak == 0


def test_a_model_in_eval_mode_gives_the_same_gradients() -> None:
    model, x = small_net(), torch.randn(IMAGES)
    model(x)  # gives the batch norm its statistics
    model.eval()
    plain = gradients(model, x)
    encke.attach(model, policy=LOSSLESS)
    assert equal(plain, gradients(model, x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
        self.way = 0

    def forward(self, x: Tensor) -> Tensor:
        for bit in range(3):
            layer = self.one if self.way >> bit & 1 else self.other
            x = layer(x).tanh() if self.way % 2 else layer(x).relu()
        return x


def test_a_graph_may_change_from_step_to_step() -> None:
    torch.manual_seed(0)
    model, x = Branching(), torch.randn(32, 64)

    def all_ways() -> list[Tensor | None]:
        found: list[Tensor | None] = []
        for way in range(8):
            model.way = way
            found += gradients(model, x)
        return found

    plain = all_ways()
    tape = encke.attach(model, policy=LOSSLESS)
    assert equal(plain, all_ways())
    tape.detach()
    encke.attach(model)  # the controller meets a new place now and then
    assert all(g is None or g.isfinite().all() for _ in range(2) for g in all_ways())


@POLICIES
def test_what_is_not_finite_reaches_the_gradients_it_would_reach(policy: Policy) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(48, 48, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            a = F.relu(self.layers[0](x))
            b = F.leaky_relu(self.layers[1](F.gelu(a)), 0.1)
            c = F.hardtanh(self.layers[2](b + x), -2.0, 2.0)
            return torch.where(c > 9, c * a, c.tanh() + b)

    torch.manual_seed(0)
    model, x = Net(), torch.randn(64, 48)
    x[3, 5], x[10, 7], x[11, 0] = torch.nan, torch.inf, -torch.inf

    def run() -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        outputs = model(inputs)
        rows = torch.arange(64)[:, None]
        loss = (outputs * (1 + rows)).sum()
        return list(torch.autograd.grad(loss, [inputs, *model.parameters()]))

    plain = run()
    encke.attach(model, policy=policy)
    kept = run()
    for a, b in zip(plain, kept, strict=True):
        assert a.isnan().any()
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.isinf(), b.isinf())
        if policy is LOSSLESS:
            assert torch.equal(a.nan_to_num(1.0), b.nan_to_num(1.0))


@pytest.mark.parametrize(
    "activation",
    [F.relu, F.leaky_relu, F.hardtanh, F.relu6, F.gelu, F.silu, F.elu, torch.tanh, F.hardswish],
)
def test_an_activations_slope_at_what_is_not_finite_is_torchs(
    activation: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(64, 48)
    x.view(-1)[::7] = torch.nan
    x.view(-1)[::11] = torch.inf
    x.view(-1)[::13] = -torch.inf

    def run(tape: Any) -> Tensor:
        inputs = x.clone().requires_grad_()
        if tape is None:
            y = activation(inputs + 0)
        else:
            with tape:
                y = activation(inputs + 0)
        return torch.autograd.grad(y.sum(), inputs)[0]

    plain, kept = run(None), run(Tape(LOSSLESS))
    assert torch.equal(plain.isnan(), kept.isnan())
    assert torch.equal(plain.nan_to_num(7.0), kept.nan_to_num(7.0))


def test_under_torch_func_the_model_says_that_it_cannot() -> None:
    model, x = small_net(), torch.randn(IMAGES)
    parameters = dict(model.named_parameters())
    tape = encke.attach(model, policy=LOSSLESS)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        result: Tensor = torch.func.functional_call(model, parameters, (x,)).sum()
        return result

    for _ in range(2):
        with pytest.raises(encke.UnsupportedError, match=r"torch\.func"):
            torch.func.grad(loss)(parameters)
    kept = gradients(model, x)
    tape.detach()
    assert equal(kept, gradients(model, x))
    from torch.overrides import _get_current_function_mode

    assert _get_current_function_mode() is None


def test_a_functional_call_with_other_weights_works() -> None:
    model, x = small_net(), torch.randn(IMAGES)
    weights = {n: p.detach().mul(0.9).requires_grad_() for n, p in model.named_parameters()}

    def run() -> list[Tensor]:
        loss = torch.func.functional_call(model, weights, (x,)).square().mean()
        return list(torch.autograd.grad(loss, list(weights.values())))

    plain = run()
    encke.attach(model, policy=LOSSLESS)
    assert equal(plain, run())


def test_while_a_model_is_traced_the_tape_stands_aside() -> None:
    model, x = small_net().eval(), torch.randn(IMAGES)
    tape = encke.attach(model, policy=LOSSY)
    plain = model(x)
    steps = tape.step
    exported = torch.export.export(model, (x,)).module()
    traced = torch.jit.trace(model, x)
    compiled = torch.compile(model, backend="eager")
    for other in (exported, traced, compiled):
        assert torch.allclose(other(x), plain, atol=1e-5)
    assert tape.step == steps
    torch._dynamo.reset()


def test_a_compiled_part_of_a_model_is_one_op_for_the_tape() -> None:
    model, x = small_net(), torch.randn(IMAGES)
    plain = gradients(model, x)
    model[4].compile(backend="aot_eager")
    tape = encke.attach(model, policy=LOSSLESS)
    for _ in range(2):
        assert equal(plain, gradients(model, x))
    assert "CompiledFunction" in {r.site.op for r in tape.records}
    torch._dynamo.reset()


@pytest.mark.parametrize("what", ["empty", "meta", "subclass"])
def test_tensors_without_values_of_their_own_pass(what: str) -> None:
    class Special(Tensor):
        pass

    model = small_net().eval()
    x = {
        "empty": torch.empty(0, *IMAGES[1:]),
        "meta": torch.empty(IMAGES, device="meta"),
        "subclass": torch.randn(IMAGES).as_subclass(Special),
    }[what]
    if what == "meta":
        model.to("meta")
    tape = encke.attach(model, policy=LOSSY)
    found = gradients(model, x)
    assert all(
        g is not None and g.shape == p.shape
        for g, p in zip(found, model.parameters(), strict=True)
    )
    assert tape.stored_bytes == 0
