"""A budget for the process: its peak stays below it in every step, or it is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import encke
from encke.control.budget import BudgetError
from encke.control.process_budget import ProcessBudget
from encke.errors import UnsupportedError
from encke.tape.peak import StepPeak

MIB = 1 << 20


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(256, 256), nn.GELU())))


def steps(model: nn.Module, x: Tensor, count: int) -> list[int]:
    """The peak of the process in each of some steps."""
    peak = StepPeak()
    found = []
    for _ in range(count):
        model(x).square().mean().backward()
        model.zero_grad()
        found.append(peak())
    return found


def in_steps() -> None:
    """Peaks of plain steps, and of steps with a budget below them; for a process of its own."""
    model, x = network(), torch.randn(16384, 256)
    encke.memory.install()
    plain = max(steps(model, x, 3))
    budget = plain - 150 * MIB
    encke.attach(model, budget=budget)
    print(json.dumps([budget, max(steps(model, x, 12))]))


@pytest.mark.slow
def test_the_peak_of_the_process_stays_below_the_budget() -> None:
    # What other tests have left in this process would count.
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    budget, found = json.loads(done.stdout)
    assert 0 < found <= budget


def test_a_budget_below_what_the_process_needs_anyway_is_refused() -> None:
    model, x = network(), torch.randn(64, 256)
    tape = encke.attach(model, budget=16 * MIB)
    with pytest.raises(BudgetError, match=r"budget is 16,777,216 bytes for the process") as no:
        steps(model, x, 3)
    tape.detach()
    found = re.search(r"Possible is budget=(\d+)", str(no.value))
    assert found is not None
    tape = encke.attach(model, budget=2 * int(found[1]))
    for _ in range(4):
        model(x).sum().backward()
    tape.detach()


class Process:
    """A process that needs a given number of bytes beside what a tape stores."""

    def __init__(self, rest: int) -> None:
        self.rest, self.stored = rest, 0

    def __call__(self) -> int:
        return self.rest + self.stored


def test_what_is_stored_follows_what_the_rest_of_the_process_needs() -> None:
    model, x = network(), torch.randn(2048, 256)
    process = Process(100 * MIB)
    policy = ProcessBudget(encke.Adaptive(0.02, model=model), 120 * MIB, peak=process)
    tape = encke.attach(model, policy=policy)
    policy.ledger = tape.ledger

    def step() -> int:
        loss = model(x).square().mean()
        process.stored = tape.stored_bytes
        loss.backward()
        return process.stored

    wide = max(step() for _ in range(8))  # observed steps store less
    assert wide <= 20 * MIB
    process.rest += 17 * MIB  # an evaluation, a larger batch beside it
    step()
    narrow = max(step() for _ in range(4))
    assert narrow <= 3 * MIB < wide
    tape.detach()


def test_one_budget_at_a_time() -> None:
    with pytest.raises(UnsupportedError, match="give one of them"):
        encke.attach(network(), budget="1GiB", stored_budget="1MiB")


if __name__ == "__main__":
    in_steps()
