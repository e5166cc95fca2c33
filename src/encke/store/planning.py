"""The plan of a loss budget: what each tensor may stray, takes and costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from encke.errors import BoundError
from encke.store.curvature import Curvature, calibrate, mean_loss
from encke.store.delta import Base, entropy
from encke.store.errors import StoreError
from encke.store.fitting import Coded, Fit, fit
from encke.store.moments import kinds
from encke.store.objective import Objective, default_objective
from encke.store.rules import Exact, Lattice, Pruned, Rule
from encke.store.state import optimizer_class
from encke.store.subjects import subjects_of

#: Labels behind one gradient of an optimizer, where nobody says how many there are.
ASSUMED_EXAMPLES = 4096
#: A delta that took more attempts is compared with a full file.
_HARD = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tensor of a plan.

    bound  the error that was allocated; weights with error feedback stray up to twice that
    bits   a value takes, by the frequencies of its codes
    rise   of the loss that its error adds, predicted
    """

    name: str
    values: int
    bound: float
    bits: float
    rise: float
    how: str


@dataclass(kw_only=True)
class Plan:
    """How a budget of the loss is shared out.

    loss       of the calibration data, before
    budget     by how much it may rise
    predicted  by how much it should, measured by how much it did (None without data)
    """

    rows: list[Row]
    loss: float
    budget: float
    predicted: float
    measured: float | None
    source: str
    rules: dict[str, Rule]
    attempts: int

    @property
    def bits(self) -> float:
        """Bits a value, on average."""
        values = sum(row.values for row in self.rows)
        return sum(row.values * row.bits for row in self.rows) / max(1, values)

    def report(self) -> dict[str, Any]:
        """What a file says about the budget that it was made with."""
        return {
            "loss": self.loss,
            "allowed": self.budget,
            "predicted": self.predicted,
            "measured": self.measured,
            "curvature": self.source,
            "promise": "at most `allowed` on the calibration data; on other data on average"
            if self.measured is not None
            else "on average, by a curvature that was not measured on data",
        }

    def __str__(self) -> str:
        width = max([6, *(len(row.name) for row in self.rows)])
        lines = [f"{'tensor':{width}}  {'values':>10}  {'bound':>9}  {'bits':>5}  {'rise':>9}"]
        lines += [
            f"{row.name:{width}}  {row.values:>10,}  {row.bound:>9.3g}  {row.bits:>5.2f}  "
            f"{row.rise:>9.2g}"
            for row in self.rows
        ]
        told = f"{self.bits:.2f} bits a value; loss {self.loss:.5g}, allowed +{self.budget:.3g}"
        told += f", predicted +{self.predicted:.3g}"
        if self.measured is not None:
            told += f", measured {self.measured:+.3g}"
        return "\n".join([*lines, told, f"curvature: {self.source}"])


def plan(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    loss: float,
    data: Iterable[Any] | None = None,
    objective: Objective | None = None,
    feedback: bool = True,
    examples: int | None = None,
    level: float | None = None,
    base: Base | None = None,
    seed: int = 0,
) -> Plan:
    """Share out a relative rise of the loss over the weights of a model.

    loss       how much the loss may rise, as a share of it: 1e-3
    data       batches to calibrate with; without them the optimizer's second moments stand
               in for the curvature
    objective  the loss of `objective(model, batch)`
    feedback   round with error feedback where a layer's inputs are known
    examples   without data: labels behind one gradient (batch, times tokens)
    level      without data: the loss as it is now (1 unless given)

    >>> model = nn.Linear(16, 4)
    >>> batch = (torch.randn(64, 16), torch.randint(4, (64,)))
    >>> made = plan(model, data=[batch], loss=1e-2)
    >>> made.measured <= made.budget
    True
    """
    if isinstance(loss, bool) or not isinstance(loss, (int, float)) or not 0 < loss <= 1:
        raise BoundError(
            f"loss is {loss!r}, allowed is above 0 and up to 1: 1e-3 is a thousandth"
        )
    if not isinstance(model, nn.Module):
        raise StoreError("a loss budget needs the model itself, not its state")
    chosen = objective or default_objective
    if data is None:
        found = from_optimizer(model, optimizer, examples=examples, level=level)
        measure = None
        batches: list[Any] = []
    else:
        batches = list(data)
        found = calibrate(model, batches, chosen, feedback=feedback, seed=seed)
        before = mean_loss(model, batches, chosen)

        def measure() -> float:
            return mean_loss(model, batches, chosen) - before

    budget = loss * abs(found.loss)
    subjects = subjects_of(model, found, feedback=feedback)
    made = _made(fit(subjects, budget, measure, base=base), found, budget)
    if base is not None and made.attempts > _HARD:
        # Differences have the errors of the base in them; where these add up along the
        # slope, bounds were tightened more than whole weights need.
        whole = _made(fit(subjects, budget, measure), found, budget)
        made = min(made, whole, key=lambda one: one.bits)
    return made


def _made(done: Fit, found: Curvature, budget: float) -> Plan:
    rules: dict[str, Rule] = {}
    for coded in done.coded:
        if not isinstance(coded.rule, Exact):
            rules |= {f"model/{name}": coded.rule for name in coded.subject.names}
    return Plan(
        rows=[_row(coded) for coded in done.coded],
        loss=found.loss,
        budget=budget,
        predicted=done.predicted,
        measured=done.measured,
        source=found.source,
        rules=rules,
        attempts=done.attempts,
    )


def _row(coded: Coded) -> Row:
    rule, subject = coded.rule, coded.subject
    value = subject.value
    if isinstance(rule, Lattice):
        bits = entropy(rule.codes)
        how = "feedback" if subject.corrections else "nearest"
        how += ", delta" if rule.on_base else ""
    elif isinstance(rule, Pruned):
        share = rule.codes.numel() / value.numel()
        places = entropy((value != 0).float().cpu().reshape(-1))
        bits, how = share * entropy(rule.codes) + places, "pruned"
    elif isinstance(rule, Exact):
        bits, how = 8.0 * value.element_size(), "exact"
    else:
        logs = torch.log2(value.detach().cpu().double().clamp(min=1e-38))
        bits, how = entropy(logs / (2 * max(coded.bound, 1e-12))), "logarithm"
    return Row(
        name=subject.name,
        values=value.numel(),
        bound=coded.bound,
        bits=bits,
        rise=subject.rise(coded.error),
        how=how,
    )


def from_optimizer(
    model: nn.Module,
    optimizer: Optimizer | None,
    *,
    examples: int | None,
    level: float | None,
) -> Curvature:
    """Curvature from the second moments of an optimizer: v times the labels of a gradient."""
    if optimizer is None or not isinstance(getattr(optimizer, "state", None), Mapping):
        raise StoreError(
            "a loss budget needs data=, or an optimizer with second moments; to give bounds "
            "yourself use bounds="
        )
    second = kinds(optimizer_class(optimizer))[0]
    count = examples or ASSUMED_EXAMPLES
    mean: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        states = optimizer.state.get(parameter, {})
        moments = [states[key] for key in sorted(second) if isinstance(states.get(key), Tensor)]
        if moments and moments[0].shape == parameter.shape:
            correction = 1.0
            step = states.get("step")
            if step is not None and "exp_avg_sq" in states:
                beta = _beta(optimizer, parameter)
                correction = 1.0 - beta ** float(step)
            mean[name] = count * float(moments[0].float().mean()) / max(correction, 1e-12)
    if not mean:
        raise StoreError(
            f"this {type(optimizer).__name__} has no second moments to take the curvature "
            "from; give data="
        )
    told = f"{count} labels a step" + ("" if examples else " assumed")
    told += f", loss {level if level is not None else 1.0:g}" + ("" if level else " assumed")
    return Curvature(
        loss=1.0 if level is None else float(level),
        mean=mean,
        source=f"second moments of {type(optimizer).__name__}, {told}",
    )


def _beta(optimizer: Optimizer, parameter: Tensor) -> float:
    for group in optimizer.param_groups:
        if any(p is parameter for p in group["params"]):
            betas = group.get("betas", (0.9, 0.999))
            return float(betas[1])
    return 0.999
