"""What is kept small is freed, and nothing is left behind."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch
from nets import (
    IMAGES,
    LOSSLESS,
    LOSSY,
    POLICIES,
    leaf,
    small_net,
)
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import encke
from encke.tape import Policy, Tape


@POLICIES
def test_the_originals_are_freed(policy: Policy) -> None:
    model = small_net()
    encke.attach(model, policy=policy)
    storages: list[StorageWeakRef] = []

    def note(_module: nn.Module, _args: Any, output: Tensor) -> None:
        storages.append(StorageWeakRef(output.untyped_storage()))

    for layer in list(model)[:-1]:
        layer.register_forward_hook(note)
    loss = model(torch.randn(IMAGES)).sum()
    alive = [type(m).__name__ for m, s in zip(model, storages, strict=False) if not s.expired()]
    assert alive == []
    loss.backward()


@POLICIES
def test_a_small_slice_does_not_keep_alive_what_it_was_cut_from(policy: Policy) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 4))
    hidden = torch.randn(8, 200, 16, requires_grad=True).sin()
    storage = StorageWeakRef(hidden.untyped_storage())
    with Tape(policy) as tape:
        # The sine is outside of the tape and saves its input only.
        loss = model(hidden[:, 0]).square().sum()
    (plain,) = torch.autograd.grad(model(hidden[:, 0]).square().sum(), model[0].weight)
    del hidden
    assert storage.expired()
    assert tape.stored_bytes < 2048
    loss.backward()
    assert torch.equal(plain, model[0].weight.grad)


@POLICIES
def test_a_repeated_tensor_is_kept_once(policy: Policy) -> None:
    x, rows = leaf(1, 4096), torch.randint(0, 16, (2048, 1))
    with Tape(policy) as tape:
        y = (x.sin().expand(64, 4096) * leaf(64, 4096)).sum()
        seen = tape.stored_bytes
        z = leaf(16, 512).sin().gather(0, rows.expand(2048, 512)).sum()
    assert seen < 3 * 4096 * 4
    assert tape.stored_bytes - seen < 16 * 512 * 4 + 2048 * 8
    (y + z).backward()
    assert tape.stored_bytes == 0


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("lossless", 1500), ("lossy", 10_000), ("controller", 1500)]
)
def test_nothing_leaks_over_thousands_of_steps(name: str, count: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 24), nn.Tanh())
    policies = {"lossless": LOSSLESS, "lossy": LOSSY, "controller": None}
    tape = encke.attach(model, policy=policies[name])
    x = torch.randn(64, 16)

    def steps(count: int) -> None:
        for _ in range(count):
            model(x).sum().backward()
            model.zero_grad()

    def census() -> tuple[int, int]:
        gc.collect()
        objects = gc.get_objects()
        return len(objects), sum(isinstance(o, Tensor) for o in objects)

    steps(300)
    (objects, tensors), memory = census(), resident()
    gc.disable()  # what is freed must not wait for the collector
    try:
        steps(count)
        grown = resident() - memory
    finally:
        gc.enable()
    after = census()
    assert after[1] <= tensors
    assert after[0] - objects < 100
    assert grown < 8 << 20
    assert {r.how for r in tape.records} <= {"lossless", "lossy", "exact"}
    assert len(tape.records) == 2
    assert tape.stored_bytes == tape.plain_bytes == 0
