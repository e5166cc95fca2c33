"""Which tensors a tape takes over: activations of its model, and nothing else."""

from __future__ import annotations

import threading
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
    raw_saved,
    small_net,
)
from torch import Tensor, nn

import encke
from encke.tape import Policy
from encke.tape.tape import unpack


def test_a_model_has_one_tape() -> None:
    model = small_net()
    encke.attach(model)
    with pytest.raises(encke.UnsupportedError, match="already"):
        encke.attach(model)


@pytest.mark.parametrize("inner_first", [True, False])
def test_tapes_of_a_model_and_of_its_part_do_not_disturb_one_another(
    inner_first: bool,
) -> None:
    model, x = nn.Sequential(small_net(), nn.Tanh(), nn.Linear(10, 10)), torch.randn(IMAGES)
    plain = gradients(model, x)
    order = [model[0], model] if inner_first else [model, model[0]]
    tapes = [encke.attach(m, policy=LOSSLESS) for m in order]
    for _ in range(2):
        assert equal(plain, gradients(model, x))
        assert [t.stored_bytes for t in tapes] == [0, 0]
    assert sum(len(t.records) for t in tapes) > 8


def test_what_was_computed_before_the_model_is_left_alone() -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(64, 64), nn.Linear(64, 1)
    tape = encke.attach(critic, policy=LOSSY)
    for _ in range(2):
        hidden = generator(torch.randn(64, 64)).sin()
        loss = critic(F.gelu(hidden)).mean()
        ours = {node.name() for node, _, raw in raw_saved(loss) if raw.unpack_hook is unpack}
        assert ours == {"AddmmBackward0"}
        assert all(r.site.op == "Addmm" for r in tape.records)
        loss.backward()


def test_an_op_of_a_users_own_at_the_end_of_a_model_is_seen() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"cubed": Cube.apply(self.layer(x))}

    torch.manual_seed(0)
    model, x = Net(), torch.randn(64, 64)
    plain = torch.autograd.grad(model(x)["cubed"].sum(), model.layer.weight)
    tape = encke.attach(model, policy=LOSSLESS)
    kept = torch.autograd.grad(model(x)["cubed"].sum(), model.layer.weight)
    assert torch.equal(plain[0], kept[0])
    assert {r.site.op for r in tape.records} == {"Addmm", "Cube"}


def test_a_model_may_run_in_another_thread() -> None:
    model, x = small_net(), torch.randn(IMAGES)
    plain = gradients(model, x)
    tape = encke.attach(model, policy=LOSSLESS)
    gradients(model, x)
    here = len(tape.records)
    found: list[list[Tensor | None]] = []
    thread = threading.Thread(target=lambda: found.append(gradients(model, x)))
    thread.start()
    thread.join()
    assert equal(plain, found[0])
    assert len(tape.records) == here


@POLICIES
def test_inputs_that_want_gradients_get_them(policy: Policy) -> None:
    model, x = small_net(), torch.randn(IMAGES)

    def run() -> list[Tensor]:
        inputs = x.clone().requires_grad_()
        early = inputs * 2
        (one,) = torch.autograd.grad(model(inputs).square().mean(), inputs)
        (other,) = torch.autograd.grad(model(early).square().mean(), early)
        return [one, other]

    plain = run()
    encke.attach(model, policy=policy)
    kept = run()
    for a, b in zip(plain, kept, strict=True):
        if policy is LOSSLESS:
            assert torch.equal(a, b)
        assert torch.linalg.vector_norm(a - b) < 0.1 * torch.linalg.vector_norm(a)


@pytest.mark.parametrize("frozen", [(0, 1), (4,), (8,), (0, 1, 4, 7)], ids=str)
def test_frozen_layers_stay_without_gradients(frozen: tuple[int, ...]) -> None:
    model, x = small_net(), torch.randn(IMAGES)
    for index in frozen:
        model[index].requires_grad_(False)
    plain = gradients(model, x)
    encke.attach(model, policy=LOSSLESS)
    kept = gradients(model, x)
    assert equal(plain, kept)
    assert [g is None for g in kept] == [not p.requires_grad for p in model.parameters()]


class Weights(nn.Module):
    """Uses weights in the ways models do: as they are, cast, viewed, as plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 64, 3, padding=1)
        self.linear = nn.Linear(64, 64)
        self.packed = nn.Parameter(torch.randn(3, 64, 64) / 8)
        self.table = nn.Embedding(64, 64)
        self.norm = nn.LayerNorm(64)
        self.scale = nn.Parameter(torch.randn(64, 64))
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.plain = torch.randn(64, 64, requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).transpose(1, 2)
        x = self.norm(F.gelu(self.linear(x)))
        x = x @ self.packed[0].t() + torch.einsum("btc,cd->btd", x, self.packed[1])
        x = (x @ self.packed[2].view(64, 64)) @ self.scale.to(x.dtype)
        x = self.frozen(x) @ self.plain
        return F.linear(x, self.table.weight)


@pytest.mark.parametrize("autocast", [False, True])
@POLICIES
def test_weights_are_neither_copied_nor_compressed(policy: Policy, autocast: bool) -> None:
    torch.manual_seed(0)
    model = Weights()
    tape = encke.attach(model, policy=policy)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = model(torch.randn(4, 32, 64))
    weights = [*model.parameters(), model.plain]
    storages = {w.untyped_storage()._cdata for w in weights}
    shapes = {tuple(w.shape) for w in weights} | {
        tuple(w.t().shape) for w in weights if w.ndim == 2
    }
    seen = 0
    for node, role, raw in raw_saved(output):
        t = getattr(node, f"_saved_{role}")
        mine = raw.unpack_hook is unpack
        if t.untyped_storage()._cdata in storages:
            seen += 1
            assert not mine or raw.data.source.slot.kind == "exact"
        elif mine and tuple(t.shape) in shapes and t.numel() > 3000:
            # A cast of a weight that takes no gradient: kept as it is, never packed.
            assert raw.data.source.slot.kind == "exact", (node.name(), role)
    assert seen >= (1 if autocast else 8)
    records = [r for r in tape.records if r.shape in shapes and r.how not in ("exact", "mask")]
    assert not records
    output.float().sum().backward()
    assert all(w.grad is not None for w in weights if w.requires_grad)
