"""What `tape.compiled.internals` takes for granted about torch.compile, fact by fact."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._dynamo.testing import CompileCounter
from torch._inductor.compile_fx import compile_fx_inner

from encke.tape.compiled import internals, roles

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def while_compiling(model: nn.Module, look: Callable[..., Any]) -> Any:
    """What `look` returns for the joint graph of `model`, its inputs and the options."""
    found: list[Any] = []

    def partition(gm: fx.GraphModule, joint_inputs: Any, **options: Any) -> Any:
        again = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        found.append(look(again, joint_inputs, **options))
        return internals.min_cut(gm, joint_inputs, **options)

    compiler = aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition
    )
    torch.compile(model, backend=compiler, fullgraph=True)(torch.randn(3, 4)).sum().backward()
    return found[0]


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def test_parameters_are_found_among_the_inputs_of_a_traced_graph() -> None:
    model = layers()

    def look(_gm: fx.GraphModule, joint_inputs: Any, **_options: Any) -> dict[str, Any]:
        found = internals.parameters_among(joint_inputs, model)
        return {name: tuple(joint_inputs[0][i].shape) for i, name in found.items()}

    assert while_compiling(model, look) == {
        name: tuple(p.shape) for name, p in model.named_parameters()
    }


def test_nodes_know_the_modules_and_the_ops_that_they_come_from() -> None:
    model = layers()

    def look(gm: fx.GraphModule, _inputs: Any, **_options: Any) -> Any:
        node = next(n for n in gm.graph.nodes if internals.op_name(n.target) == "relu")
        return internals.modules_around(node), internals.traced_from(node)

    assert while_compiling(model, look) == ([id(model), id(model[1])], "relu")


def test_a_decision_is_made_in_forward_and_kept_for_backward() -> None:
    def look(gm: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        roles.spell_out_thresholds(gm.graph)
        decisions = roles.decisions(gm.graph)
        forward, backward = internals.split_with_decisions(
            gm,
            inputs,
            decisions,
            within=internals.min_cut,
            num_fwd_outputs=num_fwd_outputs,
            **options,
        )
        results = [n.name for n in forward.graph.output_node().args[0]]  # type: ignore[union-attr]
        given = [n.name for n in backward.graph.find_nodes(op="placeholder")]
        return [n.name for n in decisions], results[num_fwd_outputs:], given, results[0]

    decisions, kept, given, first = while_compiling(layers(), look)
    assert len(decisions) == 1
    assert decisions[0] in kept
    assert decisions[0] in given
    assert first.startswith("addmm")


def test_inductor_takes_a_partitioner_and_keeps_what_it_makes_out_of_its_caches() -> None:
    from torch._inductor import config
    from torch._inductor.codecache import BypassFxGraphCache

    before = config.custom_partitioner_fn

    def partition(*_: Any, **__: Any) -> Any: ...

    internals.install(partition)
    try:
        with pytest.raises(BypassFxGraphCache):
            config.custom_partitioner_fn.uuid()  # type: ignore[union-attr]
    finally:
        internals.uninstall(partition)
    assert config.custom_partitioner_fn is before


def test_a_value_is_put_into_memory_in_the_order_that_is_asked_for() -> None:
    seen: list[tuple[int, ...]] = []
    library = torch.library.Library("encke_facts", "FRAGMENT")
    library.define("see(Tensor x) -> Tensor", tags=(torch.Tag.flexible_layout,))
    library.impl(
        "see", lambda x: seen.append(x.stride()) or x.clone(), "CompositeExplicitAutograd"
    )
    torch.library.register_fake("encke_facts::see", torch.empty_like, lib=library)
    last = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def compile_with(lays_out: bool) -> Tensor:
        def compiler(gm: fx.GraphModule, inputs: Any) -> Any:
            (node,) = (n for n in gm.graph.nodes if internals.op_name(n.target) == "sin")
            if lays_out:
                internals.lay_out(node, last)
            return compile_fx_inner(gm, inputs)

        torch.compiler.reset()
        run = torch.compile(
            lambda x: torch.ops.encke_facts.see(x.sin()),
            backend=aot_autograd(fw_compiler=compiler),
            fullgraph=True,
        )
        return run(torch.ones(2, 3, 4, 5))

    plain, other = compile_with(False), compile_with(True)
    assert torch.equal(plain, other)
    assert seen == [(60, 20, 5, 1), last.stride()]


def test_what_hangs_on_a_storage_lives_as_long_as_autograd_holds_it() -> None:
    class Kept:
        pass

    class Hold(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            handle = torch.zeros(1, dtype=torch.uint8)
            handle.untyped_storage().kept = Kept()  # type: ignore[attr-defined]
            alive.append(weakref.ref(handle.untyped_storage().kept))  # type: ignore[attr-defined]
            ctx.save_for_backward(handle)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (handle,) = ctx.saved_tensors
            assert handle.untyped_storage().kept is alive[0]()
            return gradient

    alive: list[weakref.ref[Kept]] = []
    y = Hold.apply(torch.ones(2, requires_grad=True))
    gc.collect()
    assert alive[0]() is not None
    y.sum().backward()
    assert alive[0]() is None


def test_dynamo_calls_marked_functions_while_it_traces_and_never_after() -> None:
    calls: list[int] = []

    @internals.at_trace_time
    def note() -> bool:
        calls.append(1)
        return True

    def double(x: Tensor) -> Tensor:
        note()
        return 2 * x

    run = torch.compile(double, backend="eager", fullgraph=True)
    for _ in range(3):
        run(torch.ones(2))
    assert len(calls) == 1


def test_modules_with_and_without_hooks_can_be_told_apart() -> None:
    seen: list[int] = []
    internals.tell_hooks_apart(True)
    try:
        one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        for module in (one, other):
            torch.compile(module, backend="eager")(torch.ones(1, 2))
        other.register_forward_pre_hook(lambda *_: seen.append(1))
        torch.compile(other, backend="eager")(torch.ones(1, 2))
    finally:
        internals.tell_hooks_apart(False)
    assert seen


def test_a_guard_of_ones_own_has_a_model_compiled_for_itself() -> None:
    one, other = layers(), layers()
    mine = {id(p) for p in one.parameters()}
    asked: list[bool] = []

    def is_mine(parameter: Tensor) -> bool:
        return id(parameter) in mine

    def partition(gm: fx.GraphModule, joint_inputs: Any, **options: Any) -> Any:
        if not asked:
            asked.append(internals.serve_only_where(is_mine, of=["mine"]))
        else:
            asked.append(False)
        return internals.min_cut(gm, joint_inputs, **options)

    compiler = aot_autograd(
        fw_compiler=boxed_nop, bw_compiler=boxed_nop, partition_fn=partition
    )
    runs = [torch.compile(model, backend=compiler) for model in (one, other)]
    for _ in range(2):
        for run in runs:
            run(torch.randn(3, 4)).sum().backward()
    assert asked == [True, False]


def test_code_of_a_models_class_can_be_forgotten() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    counter = CompileCounter()
    model = Own()
    run = torch.compile(model, backend=counter, fullgraph=True)
    for expected in (1, 2):
        for _ in range(2):
            run(torch.randn(3, 4))
        assert counter.frame_count == expected
        internals.forget_code_of(model)
