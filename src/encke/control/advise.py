"""Before training: what would be kept, how, and what peak to expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from encke.control import arguments
from encke.control.attach import attach
from encke.errors import UnsupportedError
from encke.tape.observe.records import Record
from encke.tape.observe.summary import render
from encke.tape.peak import Peak


@dataclass(frozen=True)
class Advice:
    """What the trial steps stored and needed.

    plain          bytes that autograd alone would hold at the end of forward
    stored         bytes held instead, with the bounds that the controller would set
    expected_peak  the most memory of a step above what the process has before it: stored
                   tensors, the tensors at work, gradients. Measured in the trial steps
    records        tensor by tensor
    """

    plain: int
    stored: int
    expected_peak: int
    records: tuple[Record, ...]

    @property
    def ratio(self) -> float:
        return self.plain / max(1, self.stored)

    @property
    def plain_peak(self) -> int:
        """About the same without a tape, with the pool: what is not stored is added."""
        return self.expected_peak + self.plain - self.stored

    def __str__(self) -> str:
        return render(
            self.records,
            plain=self.plain,
            stored=self.stored,
            footer="expected peak of a step, gradients included: "
            f"{self.expected_peak / 2**20:.1f} MiB, "
            f"about {self.plain_peak / 2**20:.1f} MiB without a tape",
        )


def advise(
    model: nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    tolerance: float | None = None,
    steps: int = 3,
) -> Advice:
    """Try a few steps on `batch` and say what a tape would do; the model is left as it was.

    batch  the model's input: a tensor, a tuple of positional or a dict of named arguments; or
           a function that computes the loss of a batch, as a training loop does
    loss   from the model's output; without one, the mean square of the output

    >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    >>> advice = advise(model, torch.randn(64, 64))
    >>> advice.ratio > 4
    True
    """
    arguments.module(model, of="advise")
    arguments.count(steps, of="steps")
    if loss is not None and not callable(loss):
        raise UnsupportedError(
            f"loss is {loss!r:.80} ({type(loss).__name__}), allowed is a function from the "
            "model's output to the loss, or None"
        )
    if any(p.grad is not None for p in model.parameters()):
        raise UnsupportedError(
            "the model holds gradients, which a trial step would change; call "
            "model.zero_grad(set_to_none=True) before advise"
        )
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    generator = torch.get_rng_state()
    tape = attach(model, tolerance=tolerance, refresh=1, guard=0)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    peak = Peak(device if device.type == "cuda" else "cpu")
    try:
        with peak:
            for _ in range(steps):
                _loss(model, batch, loss).backward()  # type: ignore[no-untyped-call]
                model.zero_grad(set_to_none=True)
        records = tuple(tape.records)
        stored, plain = tape.last_forward
    finally:
        tape.detach()
        model.zero_grad(set_to_none=True)
        torch.set_rng_state(generator)
        with torch.no_grad():
            for name, b in model.named_buffers():
                b.copy_(buffers[name])
    return Advice(plain=plain, stored=stored, expected_peak=peak.bytes, records=records)


def _loss(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None) -> Tensor:
    if callable(batch) and not isinstance(batch, Tensor):
        value = batch()
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UnsupportedError(
                f"batch is a function that returned {type(value).__name__}, it must return the "
                "loss of a batch: a tensor with one value"
            )
        return value
    output = _call(model, batch)
    return loss(output) if loss is not None else _mean_square(output)


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)


def _mean_square(output: Any) -> Tensor:
    from encke.tape.autograd.dispatch import tensors_in

    total = [t.float().square().mean() for t in tensors_in(output) if t.requires_grad]
    if not total:
        raise UnsupportedError(
            "the model's output holds no tensor with a gradient; give advise a loss"
        )
    return torch.stack(total).sum()
