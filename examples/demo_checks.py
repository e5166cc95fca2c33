"""What a trained network of examples/demo.py keeps, and what that does to its gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encke import Tape
from encke.tape.protocol import Effect, Policy, Sight, Treatment
from encke.tape.telemetry import tensor_row

Batches = list[tuple[Tensor, Tensor]]


class Settled:
    """What a policy has come to, without its learning any more.

    check    keep every tensor exact beside its packed form, to compare gradients with
    effects  what the errors did, where checked
    """

    def __init__(self, policy: Policy, *, check: bool) -> None:
        self._policy, self._check = policy, check
        self.effects: list[Effect] = []

    def begin(self, step: int) -> None:
        """Nothing changes from step to step."""

    def treat(self, sight: Sight) -> Treatment:
        return replace(self._policy.treat(sight), observe=self._check, check=self._check)

    def observe(self, effect: Effect) -> None:
        self.effects.append(effect)

    def state_dict(self) -> dict[str, Any]:
        return self._policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy.load_state_dict(state)


def kept_by_autograd(network: nn.Module, images: Tensor) -> int:
    """Bytes of the storages that a plain forward keeps, without parameters and buffers."""
    own = {t.untyped_storage().data_ptr() for t in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def count(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t.detach()  # an op that keeps its own output would keep itself

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        output = network(images)
    held = sum(kept.values())
    del output
    return held


def kept_by_tape(tape: Tape, network: nn.Module, images: Tensor) -> dict[str, Any]:
    """Bytes at the end of a forward, and every kept tensor as docs/telemetry.md has it."""
    learned, tape.policy = tape.policy, Settled(tape.policy, check=False)
    try:
        output = network(images)
        found = {
            "stored": tape.stored_bytes,
            "plain": tape.plain_bytes,
            "tensors": [tensor_row(tape.step, record) for record in tape.records],
        }
        del output
    finally:
        tape.policy = learned
    return found


def gradients(network: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Gradients of the loss on `batch`, by the parameter's name."""
    network.zero_grad()
    F.cross_entropy(network(batch[0]), batch[1]).backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return found


def compare_gradients(tape: Tape, network: nn.Module, batches: Batches) -> dict[str, Any]:
    """Predicted and true gradient errors at the weights as they are.

    uses        for every op that used a lossy tensor, errors in the gradient of its
                parameter as a share of ‖dW‖², and in the gradient that flows on as a share
                of ‖dx‖²; means over the batches
    parameters  mean over the parameters of the whole error of a step, all errors together,
                as a share of ‖g‖² ("gradient") and of the controller's scale ("reference")
    """
    learned = tape.policy
    settled = Settled(learned, check=True)
    shares: dict[str, list[tuple[float, float]]] = {}
    for batch in batches:
        with tape.paused():
            exact = gradients(network, batch)
        tape.policy = settled
        try:
            lossy = gradients(network, batch)
        finally:
            tape.policy = learned
        for name, parameter in network.named_parameters():
            error = float((lossy[name] - exact[name]).square().sum())
            scale = float(exact[name].square().sum())
            reference = learned.reference.of(name, parameter)
            if scale > 0 and reference > 0:
                shares.setdefault(name, []).append((error / scale, error / reference))
    everything = [share for found in shares.values() for share in found]
    return {
        "batches": len(batches),
        "uses": _uses(settled.effects),
        "parameters": {
            "count": len(shares),
            "gradient": _mean([share for share, _ in everything]),
            "reference": _mean([share for _, share in everything]),
        },
    }


def judged(effect: Effect) -> tuple[str, float, float] | None:
    """What a check compares: of which gradient, predicted and measured share of its ‖·‖²."""
    if effect.measured is None:
        return None
    own, stream = effect.measured
    predicted = effect.predicted
    if predicted > 0 and effect.parameter_square > 0:
        square = effect.parameter_square
        return effect.parameter or "", predicted / square, own / square
    return "flows on", effect.stream, stream


def _uses(effects: list[Effect]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[Effect]] = {}
    for effect in effects:
        if effect.measured is not None:
            found.setdefault((str(effect.site), str(effect.consumer)), []).append(effect)
    rows = []
    for (site, consumer), seen in found.items():
        own = [e for e in seen if e.parameter_square > 0]
        row: dict[str, Any] = {
            "site": site,
            "consumer": consumer,
            "order": seen[0].order,
            "parameter": seen[0].parameter,
            "form": "closed form" if seen[0].products else "probe",
            "predicted": _mean([e.predicted / e.parameter_square for e in own]),
            "measured": _mean([e.measured[0] / e.parameter_square for e in own if e.measured]),
            "predicted_stream": None,
            "measured_stream": None,
        }
        if any(e.stream > 0 for e in seen):
            row["predicted_stream"] = _mean([e.stream for e in seen])
            row["measured_stream"] = _mean([e.measured[1] for e in seen if e.measured])
        rows.append(row)
    return sorted(rows, key=lambda row: row["order"])


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
