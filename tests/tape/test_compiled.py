"""Models that torch.compile runs: what the tape promises holds inside the compiled graphs."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from compiling import backend, compiled, transformer
from nets import LOSSLESS, LOSSY, equal, gradients, small_net
from torch import Tensor, nn

import encke
from encke.tape.compiled import graphs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_dynamo")]

IMAGES = (32, 3, 16, 16)


def case(kind: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    if kind == "images":
        return small_net(), torch.randn(IMAGES)
    return transformer(), torch.randint(50, (16, 24))


@pytest.mark.parametrize(
    ("kind", "decompose"),
    [
        ("images", True),
        ("images", False),
        ("text", True),
        pytest.param("text", False, marks=pytest.mark.slow),
    ],
    ids=lambda value: (
        value if isinstance(value, str) else "small ops" if value else "whole ops"
    ),
)
def test_lossless_gradients_are_those_of_the_graph_without_a_tape(
    kind: str, decompose: bool
) -> None:
    model, x = case(kind)
    plain = gradients(compiled(copy.deepcopy(model), decompose=decompose), x)
    tape = encke.attach(compiled(model, decompose=decompose), policy=LOSSLESS)
    mine = gradients(compiled(model, decompose=decompose), x)
    assert tape.step == 1
    assert len(tape.records) > 3
    assert equal(plain, mine)


def test_it_does_not_matter_whether_the_model_was_compiled_before_or_after() -> None:
    model, x = case("images")
    other = copy.deepcopy(model)
    before = compiled(model)
    plain = gradients(before, x)  # its code is compiled, without a tape
    tape = encke.attach(before, policy=LOSSY)
    first = gradients(before, x)
    assert tape.step == 1
    assert not equal(plain, first)
    torch.compiler.reset()
    later = encke.attach(other, policy=LOSSY)
    assert equal(first, gradients(compiled(other), x))
    assert later.step == 1


def test_what_is_kept_is_small_until_backward_and_gone_after() -> None:
    model, x = case("images")
    tape = encke.attach(model, policy=LOSSY)
    run = compiled(model)
    loss = run(x).square().mean()
    assert 0 < tape.stored_bytes < tape.plain_bytes / 4
    assert "held after forward" in tape.summary()
    assert "convolution.output" in tape.summary()
    loss.backward()
    assert tape.stored_bytes == tape.plain_bytes == 0
    loss = run(x).square().mean()  # never asked for its gradients
    assert tape.stored_bytes > 0
    del loss
    gc.collect()
    assert tape.stored_bytes == tape.plain_bytes == 0


def test_backward_decodes_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    counts: list[int] = []
    value = graphs.Kept.value

    def watched(kept: graphs.Kept) -> Tensor:
        found = value(kept)
        alive.add(found)
        counts.append(len(alive))
        return found

    monkeypatch.setattr(graphs.Kept, "value", watched)
    encke.attach(model, policy=LOSSY)
    compiled(model)(torch.randn(64, 64)).sum().backward()
    assert len(counts) >= 8
    assert max(counts) <= 2


def test_the_error_of_what_is_kept_stays_within_the_bound() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 16))
    x = torch.randn(256, 64)
    plain = gradients(model, x)
    error = 0.05
    tape = encke.attach(compiled(model), policy=encke.Fixed(encke.Absolute(error)))
    run = compiled(model)
    y = run(x)
    mine = gradients(run, x)
    assert [r.error for r in tape.records] == [error]
    # dW is a sum of dY times the kept values: |ΔdW| ≤ e · Σ|dY|.
    most = error * (2 * y / y.numel()).abs().sum(0, keepdim=True).t()
    change = (mine[2] - plain[2]).abs()  # type: ignore[operator]
    assert change.max() > 0
    assert bool((change <= most * 1.001).all())


def test_the_side_of_a_relu_is_exact_however_large_the_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    with torch.no_grad():
        model[0].bias[:4] -= 100  # these never fire
    x = torch.randn(16, 3, 12, 12)
    encke.attach(model, policy=encke.Fixed(encke.RangeRelative(0.5)))
    compiled(model)(x).square().mean().backward()
    assert not model[0].weight.grad[:4].any()
    assert model[0].weight.grad[4:].all()


def test_a_relus_bits_are_taken_from_the_values_that_the_next_layer_reads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    x = torch.randn(16, 3, 12, 12)
    x[0, 0, 0, 0] = torch.nan  # is not below zero: its gradient goes on
    plain = gradients(compiled(copy.deepcopy(model)), x)
    tape = encke.attach(model, policy=LOSSLESS)
    mine = gradients(compiled(model), x)
    for a, b in zip(plain, mine, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))  # type: ignore[union-attr]
    places = {str(p.site): p.sides for p in tape.graphs[0].places if p.added}
    assert [places[name] for name in sorted(places)] == [True, False]
    with tape.paused():
        again = gradients(compiled(model), x)
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))  # type: ignore[union-attr]


def test_parts_of_a_larger_tensor_are_packed_without_the_rest() -> None:
    model, x = case("text")
    tape = encke.attach(model, policy=LOSSY)
    run = compiled(model)
    loss = run(x).square().mean()
    heads = [r for r in tape.records if len(r.shape) == 4]
    assert len(heads) >= 2 * 3  # queries, keys and values of two layers
    assert all(r.how == "lossy" for r in heads)
    loss.backward()
    assert tape.stored_bytes == 0


def test_bounds_that_change_compile_nothing_anew() -> None:
    model, x = case("images")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    tape = encke.attach(model, optimizer)
    run, bounds = compiled(model), set()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(12):
            gradients(run, x)
            optimizer.step()
            bounds.add(tuple(r.error for r in tape.records if r.error))
    assert len(bounds) > 2
    assert len(tape.graphs) == 1


@pytest.mark.parametrize("kind", ["images", pytest.param("text", marks=pytest.mark.slow)])
def test_the_tolerance_bounds_the_variance_that_is_added(kind: str) -> None:
    model, x = case(kind)
    exact = gradients(compiled(copy.deepcopy(model)), x)
    tape = encke.attach(model, tolerance=0.01)
    run = compiled(model)
    for _ in range(3):
        gradients(run, x)  # the weights stay: the gradient's own scale is the reference
    added = []
    for _ in range(4):
        found = gradients(run, x)
        pairs = [
            (a, b)
            for a, b, p in zip(exact, found, model.parameters(), strict=True)
            if p.ndim > 1
        ]
        added.append(sum(float((a - b).norm() / a.norm()) ** 2 for a, b in pairs) / len(pairs))
    assert 0.002 < sum(added) / len(added) < 0.02
    assert all(r.error > 0 for r in tape.records if r.how == "lossy")


def test_a_check_finds_that_the_predicted_error_is_the_true_one() -> None:
    model, x = case("images")
    tape = encke.attach(model, guard=3)
    run = compiled(model)
    for _ in range(6):
        gradients(run, x)
    found = tape.policy.measured_errors()  # type: ignore[attr-defined]
    assert len(found) == 2
    assert all(0.3 < measured / predicted < 3 for predicted, measured in found.values())


def test_backward_may_run_twice() -> None:
    model, x = case("images")
    tape = encke.attach(model, policy=LOSSY)
    loss = compiled(model)(x).square().mean()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in model.parameters()]
    assert tape.stored_bytes > 0
    model.zero_grad()
    loss.backward()
    assert equal(once, [p.grad for p in model.parameters()])
    assert tape.stored_bytes == 0


def test_batches_of_any_size_run_in_one_graph() -> None:
    model, _ = case("images")
    exact = copy.deepcopy(model)
    tape = encke.attach(model, policy=LOSSLESS)
    run = compiled(model, dynamic=True)
    for count in (32, 20, 27):
        x = torch.randn(count, *IMAGES[1:])
        for p, q in zip(gradients(run, x), gradients(exact, x), strict=True):
            assert torch.allclose(p, q, atol=1e-5)  # type: ignore[arg-type]
    assert len(tape.graphs) == 1
    assert len(tape.records) > 3


def test_a_model_in_several_graphs_takes_one_step_a_call() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
            self.last = nn.Linear(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x).tanh().sigmoid()
            torch._dynamo.graph_break()
            return self.last(self.two(x).tanh().sigmoid())

    model, x = Broken(), torch.randn(64, 64)
    plain = gradients(model, x)
    tape = encke.attach(model, policy=LOSSLESS)
    run = compiled(model, fullgraph=False)
    for number in (1, 2):
        for a, b in zip(gradients(run, x), plain, strict=True):
            assert torch.allclose(a, b, atol=1e-6)  # type: ignore[arg-type]
        assert tape.step == number
    assert len(tape.graphs) == 2


def test_a_compiled_part_of_an_eager_model_keeps_through_the_same_tape() -> None:
    model, x = case("text")
    plain = gradients(model, x)
    model[1].compile(backend=backend(), fullgraph=True)
    tape = encke.attach(model, policy=LOSSLESS)
    for number in (1, 2):
        for a, b in zip(gradients(model, x), plain, strict=True):
            assert torch.allclose(a, b, atol=1e-6)  # type: ignore[arg-type]
        assert tape.step == number
    modules = {r.site.module.split(".")[0] for r in tape.records}
    assert {"1", "2"} <= modules
    assert len(tape.graphs) == 1


def test_paused_and_detached_models_run_as_without_a_tape() -> None:
    model, x = case("images")
    plain = gradients(compiled(copy.deepcopy(model)), x)
    tape = encke.attach(model, policy=LOSSY)
    run = compiled(model)
    assert not equal(plain, gradients(run, x))
    with tape.paused():
        assert equal(plain, gradients(run, x))
    assert tape.step == 1
    pending = run(x).square().mean()
    tape.detach()
    model.zero_grad()
    pending.backward()  # what was kept is given still
    for _ in range(2):
        assert equal(plain, gradients(run, x))
    assert tape.step == 2
    assert tape.stored_bytes == 0


def test_dropout_draws_the_same_with_and_without_a_tape() -> None:
    model, x = transformer(dropout=0.2), torch.randint(50, (16, 24))
    torch.manual_seed(3)
    plain = gradients(compiled(copy.deepcopy(model)), x)
    encke.attach(model, policy=LOSSLESS)
    torch.manual_seed(3)
    assert equal(plain, gradients(compiled(model), x))


def test_copies_of_weights_in_another_type_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 80), nn.GELU())
    x = torch.randn(64, 48)
    tape = encke.attach(model, policy=LOSSY)
    run = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = run(x).float().square().mean()
    loss.backward()
    shapes = {r.shape for r in tape.records}
    assert shapes
    assert all(shape[0] == 64 for shape in shapes)


def test_a_budget_is_kept() -> None:
    model, x = case("images")
    tape = encke.attach(model, stored_budget="16KiB")
    run = compiled(model)
    for _ in range(5):
        gradients(run, x)
    assert tape.last_forward[0] <= 16 << 10


def test_without_gradients_nothing_is_kept() -> None:
    model, x = case("images")
    tape = encke.attach(model, policy=LOSSY)
    run = compiled(model.eval())
    with torch.no_grad():
        run(x)
    assert tape.step == 0
    assert not tape.graphs


def test_hooks_that_copy_what_is_kept_are_told_so() -> None:
    model, x = case("images")
    encke.attach(model, policy=LOSSY)
    run = compiled(model)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        loss = run(x).square().mean()
    with pytest.raises(encke.UnsupportedError, match="save_on_cpu"):
        loss.backward()


def test_steps_and_tensors_are_logged(tmp_path: Path) -> None:
    model, x = case("images")
    path = tmp_path / "log.jsonl"
    tape = encke.attach(model, log=path)
    run = compiled(model)
    for _ in range(2):
        gradients(run, x)
    tape.detach()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["stored"] < row["plain"] for row in steps)
    probed = [row for row in rows if row["kind"] == "tensor" and row["predicted"]]
    assert {row["site"]["op"] for row in probed} >= {"convolution"}


def test_what_was_learnt_is_carried_over_in_a_state_dict() -> None:
    model, x = case("images")
    tape = encke.attach(model)
    run = compiled(model)
    for _ in range(2):
        gradients(run, x)
    state = tape.state_dict()
    other = copy.deepcopy(model)
    fresh = encke.attach(other)
    fresh.load_state_dict(state)
    gradients(compiled(other), x)
    bounds = {str(r.site): r.error for r in fresh.records if r.error}
    assert bounds
    gradients(run, x)  # as the first one goes on, so does the other
    assert bounds == pytest.approx({str(r.site): r.error for r in tape.records if r.error})


@pytest.mark.slow
@pytest.mark.parametrize("first", ["compile", "attach"])
def test_inductor_keeps_through_the_tape(first: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)
    )
    x = torch.randn(IMAGES)
    plain = gradients(torch.compile(copy.deepcopy(model), fullgraph=True), x)
    if first == "compile":
        run = torch.compile(model, fullgraph=True)
        tape = encke.attach(run, policy=LOSSLESS)
    else:
        tape = encke.attach(model, policy=LOSSLESS)
        run = torch.compile(model, fullgraph=True)
    for number in (1, 2):
        assert equal(plain, gradients(run, x))
        assert tape.step == number
    tape.policy = encke.Fixed(encke.RangeRelative(0.05))
    loss = run(x).square().mean()
    assert 0 < tape.stored_bytes < tape.plain_bytes / 4
    loss.backward()
    assert tape.stored_bytes == 0
    tape.detach()
    assert equal(plain, gradients(run, x))
