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
from encke.tape.records import Record
from encke.tape.summary import render

#: Tensors as large as the largest that one op's backward has at once: gradients in and out, and
#: what it decodes.
_AT_WORK = 3


@dataclass(frozen=True)
class Advice:
    """What one trial step kept.

    plain        bytes that autograd alone would hold at the end of forward
    stored       bytes held instead, with the bounds that the controller would set
    parameters   bytes of the parameters; gradients take as much again
    largest      bytes of the largest single tensor, which backward decodes at once
    records      tensor by tensor
    """

    plain: int
    stored: int
    parameters: int
    largest: int
    records: tuple[Record, ...]

    @property
    def ratio(self) -> float:
        return self.plain / max(1, self.stored)

    @property
    def expected_peak(self) -> int:
        """What is stored, the tensors at work, weights and their gradients: a rough figure."""
        return self.stored + _AT_WORK * self.largest + 2 * self.parameters

    @property
    def plain_peak(self) -> int:
        """The same without a tape."""
        return self.plain + (_AT_WORK - 1) * self.largest + 2 * self.parameters

    def __str__(self) -> str:
        return render(
            self.records,
            plain=self.plain,
            stored=self.stored,
            footer="expected peak with weights and gradients "
            f"{self.expected_peak / 2**20:.1f} MiB, "
            f"plain {self.plain_peak / 2**20:.1f} MiB",
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

    batch  the model's input: a tensor, a tuple of positional or a dict of named arguments
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
    try:
        for _ in range(steps):
            output = _call(model, batch)
            value = loss(output) if loss is not None else _mean_square(output)
            value.backward()  # type: ignore[no-untyped-call]
        records = tuple(tape.records)
        stored, plain = tape.last_forward
    finally:
        tape.detach()
        model.zero_grad(set_to_none=True)
        torch.set_rng_state(generator)
        with torch.no_grad():
            for name, b in model.named_buffers():
                b.copy_(buffers[name])
    return Advice(
        plain=plain,
        stored=stored,
        parameters=sum(p.numel() * p.element_size() for p in model.parameters()),
        largest=max((r.plain for r in records), default=0),
        records=records,
    )


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)


def _mean_square(output: Any) -> Tensor:
    from encke.tape.watch import tensors_in

    total = [t.float().square().mean() for t in tensors_in(output) if t.requires_grad]
    if not total:
        raise UnsupportedError(
            "the model's output holds no tensor with a gradient; give advise a loss"
        )
    return torch.stack(total).sum()
