"""What the errors of kept tensors are, and what they do to the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from encke.study.measure.settled import settled
from encke.study.training import Training
from encke.study.zoo import Batch
from encke.tape import GradientEffect, Tape
from encke.tape.storage.stored_tensor import StoredTensor

BINS = 40


class ErrorHistogram:
    """(decoded - exact) / bound of every value that is kept with a loss."""

    def __init__(self) -> None:
        self._counts = torch.zeros(BINS, dtype=torch.int64)
        self._worst, self._values = 0.0, 0

    def __call__(self, slot: StoredTensor, exact: Tensor) -> None:
        if slot.error <= 0:
            return
        error = slot.deviation(exact).div_(slot.error)
        error = error[torch.isfinite(error)]
        self._worst = max(self._worst, float(error.abs().max()) if error.numel() else 0.0)
        self._values += error.numel()
        places = ((error.clamp_(-1, 1) + 1) * (BINS / 2)).long().clamp_(max=BINS - 1)
        self._counts += torch.bincount(places.flatten(), minlength=BINS)

    def row(self) -> dict[str, Any] | None:
        """As `error_histogram` of docs/study-results.md; None if nothing had a loss."""
        if not self._values:
            return None
        return {
            "edges": [round(-1 + 2 * i / BINS, 6) for i in range(BINS + 1)],
            "counts": self._counts.tolist(),
            "worst": self._worst,
            "values": self._values,
        }


def compare_gradients(
    training: Training, tape: Tape, batches: Sequence[Batch]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Predicted and true errors of the gradients at the weights as they are, and a histogram.

    Each is about the error of one tensor alone, in one op: the prediction is what a controller
    works with, the measurement repeats the op with the exact tensor. Sums of squares, means
    over the batches. Where an op has no parameter of its own, the gradient that flows on is
    compared, relative to its own square.
    """
    histogram = ErrorHistogram()
    with settled(tape, check=True) as found:
        for number, batch in enumerate(batches):
            if number == 0:
                tape.packed.append(histogram)
            loss = training.forward(batch)
            if number == 0:
                tape.packed.remove(histogram)
            loss.backward()  # type: ignore[no-untyped-call]
            training.optimizer.zero_grad(set_to_none=False)
    return _rows(found.effects), histogram.row()


def _rows(effects: list[GradientEffect]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[GradientEffect]] = {}
    for effect in effects:
        if effect.measured is not None:
            groups.setdefault((str(effect.site), str(effect.consumer)), []).append(effect)
    rows = []
    for seen in groups.values():
        own = [e for e in seen if e.parameter and e.predicted > 0 and e.parameter_square > 0]
        if own:
            triples = [
                (e.predicted, e.measured[0], e.parameter_square) for e in own if e.measured
            ]
        else:
            triples = [
                (e.stream, e.measured[1], 1.0) for e in seen if e.measured and e.stream > 0
            ]
        if not triples:
            continue
        predicted, measured, square = (
            sum(c) / len(triples) for c in zip(*triples, strict=True)
        )
        rows.append(
            (
                seen[0].order,
                {
                    "module": seen[0].consumer.module,
                    "op": seen[0].consumer.op,
                    "parameter": own[0].parameter if own else None,
                    "predicted": predicted,
                    "measured": measured,
                    "square": square,
                },
            )
        )
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]
