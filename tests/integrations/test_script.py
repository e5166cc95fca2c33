"""Finding the model and the optimizer of code that says nothing of Encke."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop

import encke
from encke.integrations.following import policy_named
from encke.integrations.script import Discovery
from encke.tape.compiled import partition


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))


class Own(nn.Module):
    """torch compiles a module in place only if its class is not torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x)
        return result


def step(*modules: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """One step of training; the modules are called one after another."""
    x = torch.randn(256, 64)
    for module in modules:
        x = module(x)
    x.square().mean().backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def hooks(module: nn.Module) -> int:
    return len(module._forward_pre_hooks) + len(module._forward_hooks)


def found(discovery: Discovery) -> list[tuple[str, int]]:
    return [(one.module, one.calls) for one in discovery.attachments]


def test_the_first_step_is_compressed_already() -> None:
    with Discovery() as discovery:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.randn(256, 64)).sum()
        tape = discovery.attachments[0].tape
        assert tape is not None
        assert 0 < tape.stored_bytes < tape.plain_bytes / 4
        loss.backward()
        optimizer.step()


def test_a_discovery_that_ended_leaves_nothing_behind() -> None:
    add = torch.optim.Optimizer.add_param_group
    with Discovery() as discovery:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer=optimizer)
    assert found(discovery) == [("Sequential", 3)]
    assert hooks(model) == 0
    assert torch.optim.Optimizer.add_param_group is add
    step(model, optimizer=optimizer)
    assert found(discovery) == [("Sequential", 3)]


def test_calls_without_gradients_and_modules_that_no_optimizer_trains_are_left_alone() -> None:
    with Discovery() as discovery:
        model, teacher, frozen = network(), network(), network().requires_grad_(False)
        optimizer = torch.optim.SGD([*model.parameters(), *frozen.parameters()], lr=0.1)
        with torch.no_grad():
            model(torch.randn(256, 64))
        step(teacher, optimizer=optimizer)
        frozen(torch.randn(256, 64))
    assert found(discovery) == []
    assert discovery.optimizers_seen == ["SGD"]


def test_each_of_several_models_gets_a_tape_with_its_own_optimizer() -> None:
    with Discovery() as discovery:
        generator, critic = network(), nn.Sequential(nn.Linear(64, 1))
        slow = torch.optim.Adam(generator.parameters())
        fast = torch.optim.SGD(critic.parameters(), lr=0.1)
        for optimizer in (slow, fast):
            step(generator, critic, optimizer=optimizer)
    assert found(discovery) == [("Sequential", 2), ("Sequential", 2)]
    assert [one.optimizers for one in discovery.attachments] == [["Adam"], ["SGD"]]


def test_several_optimizers_of_one_model_belong_to_one_tape() -> None:
    with Discovery() as discovery:
        model = network()
        first = torch.optim.Adam(model[0].parameters())
        last = torch.optim.SGD(model[2].parameters(), lr=0.1)
        for optimizer in (first, last):
            step(model, optimizer=optimizer)
    assert [one.optimizers for one in discovery.attachments] == [["Adam", "SGD"]]


def test_parts_that_are_called_by_themselves_get_a_tape_each() -> None:
    with Discovery() as discovery:
        encoder, decoder = network(), nn.Linear(64, 64)
        optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
        for _ in range(2):
            step(encoder, decoder, optimizer=optimizer)
    assert found(discovery) == [("Sequential", 2), ("Linear", 2)]


def test_a_part_makes_way_for_the_module_that_holds_it() -> None:
    with Discovery() as discovery:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model[0])
        assert hooks(model[0]) == 2
        for _ in range(2):
            step(model, optimizer=optimizer)
        assert hooks(model[0]) == 0
        step(model[0])
        assert hooks(model[0]) == 0
    assert found(discovery) == [("Linear", 1), ("Sequential", 2)]


@pytest.mark.parametrize("policy", ["adaptive", "comet"])
def test_a_new_optimizer_is_the_one_that_the_policy_goes_on_with(policy: str) -> None:
    with Discovery(make_policy=policy_named(policy)) as discovery:
        model = network()
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer=optimizer)
        tape = discovery.attachments[0].tape
        assert tape is not None
        before = tape.policy.state_dict()["bounds"]
        replaced = weakref.ref(optimizer)
        optimizer = torch.optim.Adam(model.parameters())
        step(model, optimizer=optimizer)
        assert before
        assert tape.policy.state_dict()["bounds"].keys() == before.keys()
        step(model, optimizer=optimizer)
        gc.collect()
        assert replaced() is None
    assert found(discovery) == [("Sequential", 5)]
    assert discovery.attachments[0].optimizers == ["SGD", "Adam"]


def test_an_unrelated_optimizer_changes_nothing() -> None:
    with Discovery() as discovery:
        model, other = network(), network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer=optimizer)
        stranger = torch.optim.SGD(other.parameters(), lr=0.1)
        step(model, optimizer=stranger)
    assert found(discovery) == [("Sequential", 2)]
    assert discovery.attachments[0].optimizers == ["SGD"]


def test_parameters_that_an_optimizer_is_given_later_are_noticed() -> None:
    with Discovery() as discovery:
        backbone, head = network(), nn.Linear(64, 1)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        step(backbone, head)
        optimizer.add_param_group({"params": backbone.parameters()})
        step(backbone, head)
    assert found(discovery) == [("Linear", 2), ("Sequential", 1)]


def test_an_exception_in_the_first_forward_pass_leaves_the_tape_in_order() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()
            self.broken = True

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(x)
            if self.broken:
                raise RuntimeError("broken")
            return y

    with Discovery() as discovery:
        model = Fragile()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(RuntimeError, match="broken"):
            step(model, optimizer=optimizer)
        model.broken = False
        for _ in range(2):
            outside = network()(torch.randn(256, 64))  # not the model's: never compressed
            before = discovery.attachments[0].tape
            assert before is not None
            assert before.plain_bytes == 0
            del outside
            step(model, optimizer=optimizer)
    assert found(discovery) == [("Fragile", 3)]


def test_a_model_that_the_script_drops_is_freed() -> None:
    with Discovery() as discovery:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step(model, optimizer=optimizer)
        watched = weakref.ref(model)
        del model, optimizer
        gc.collect()
        assert watched() is None
        assert found(discovery) == [("Sequential", 1)]
        assert 0 < discovery.attachments[0].stored_peak < discovery.attachments[0].plain_peak


@pytest.mark.parametrize("in_place", [False, True], ids=["torch.compile", "model.compile"])
def test_a_compiled_model_keeps_through_its_tape(in_place: bool) -> None:
    compiler = aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition
    )
    compile_before = nn.Module.compile
    with Discovery() as discovery:
        model = Own()
        if in_place:
            model.compile(backend=compiler, fullgraph=True)
        else:
            model = torch.compile(model, backend=compiler, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            step(model, optimizer=optimizer)
        tape = discovery.attachments[0].tape
        assert tape is not None
        assert tape.step == 2
        assert len(tape.graphs) == 1
    name = "Own" if in_place else "OptimizedModule"
    assert found(discovery) == [(name, 2)]
    assert 0 < discovery.attachments[0].stored_peak < discovery.attachments[0].plain_peak
    assert nn.Module.compile is compile_before
    step(model, optimizer=optimizer)  # compiled still, and nobody is told
    torch.compiler.reset()
    assert found(discovery) == [(name, 2)]


def test_tracing_and_functional_transforms_are_not_taken_for_training() -> None:
    with Discovery() as discovery:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(256, 64)
        torch.jit.trace(model, x)
        torch.func.grad(lambda y: model(y).sum())(x)
        assert found(discovery) == []
        step(model, optimizer=optimizer)
    assert found(discovery) == [("Sequential", 1)]


def test_a_model_with_a_tape_of_its_own_keeps_it() -> None:
    with Discovery() as discovery:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tape = encke.attach(model, optimizer)
        for _ in range(2):
            step(model, optimizer=optimizer)
        assert tape.step == 2
    assert found(discovery) == []
    assert len(discovery.refusals) == 1
    assert "has a tape already" in discovery.refusals[0]


def test_a_given_policy_is_made_for_each_model() -> None:
    made: list[nn.Module] = []

    def make(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> encke.Fixed:
        made.append(model)
        return encke.Fixed(encke.Lossless())

    with Discovery(make_policy=make):
        model, plain = network(), network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(256, 64)
        model(x).square().mean().backward()
        plain(x).square().mean().backward()
        del optimizer
    assert made == [model]
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
