"""Small trained networks that the tests of the store share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))


import copy
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from digits_network import network
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass
class Trained:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: list[Batch]

    def step(self, batch: Batch) -> float:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


@pytest.fixture(scope="session")
def _trained() -> Trained:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    batches = [(x[i : i + 128], y[i : i + 128]) for i in range(0, 1536, 128)]
    found = Trained(model, optimizer, batches)
    for _ in range(5):
        for batch in batches:
            found.step(batch)
    return found


@pytest.fixture
def trained(_trained: Trained) -> Trained:
    """A convolution network on digits with AdamW, a copy for each test."""
    model = network()
    model.load_state_dict(_trained.model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    optimizer.load_state_dict(copy.deepcopy(_trained.optimizer.state_dict()))
    return Trained(model, optimizer, _trained.batches)
