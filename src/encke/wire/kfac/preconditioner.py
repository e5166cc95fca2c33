"""`KFAC`: gradients multiplied by the inverse of a Kronecker-factored Fisher."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.wire.kfac import collectives, state
from encke.wire.kfac.capture import Capture
from encke.wire.kfac.collectives import Collectives
from encke.wire.kfac.cover import Uncovered, cover
from encke.wire.kfac.exchange import FactorExchange
from encke.wire.kfac.factors import Factors
from encke.wire.kfac.sampling import LossName, SampledLoss, sampled_loss
from encke.wire.kfac.settings import Settings, due, value_at
from encke.wire.kfac.solutions import Solutions


class UncoveredWarning(UserWarning):
    """Parameters whose gradients K-FAC leaves as they are."""


class KFAC:
    """Preconditions the gradients of a model, in place, before the optimizer's step.

    Options are the fields of `Settings`. With `comm=None` ranks of torch.distributed exchange
    factors exactly; `encke.wire.CompressedComm` compresses them. `grad_scaler` is the
    GradScaler of mixed precision, needed with fisher="empirical".

    The gradients must be there: averaged over ranks (DDP does that) and unscaled.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    >>> pre = KFAC(model, damping=1e-2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> output = model(torch.randn(32, 8))
    >>> pre.sample(output, loss="cross_entropy")
    >>> torch.nn.functional.cross_entropy(output, torch.randint(4, (32,))).backward()
    >>> pre.step()
    >>> optimizer.step()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        comm: Collectives | None = None,
        grad_scaler: Any = None,
        **options: Any,
    ) -> None:
        unknown = sorted(options.keys() - Settings.__dataclass_fields__.keys())
        if unknown:
            raise UnsupportedError(
                f"KFAC was given {', '.join(unknown)}; its options are "
                f"{', '.join(Settings.__dataclass_fields__)}"
            )
        self.settings = Settings(**options)
        self.model = _inner(model)
        self._comm = comm if comm is not None else collectives.found()
        self._scaler = grad_scaler
        device, dtype = _device_and_dtype(self.model)
        found = cover(self.model, largest_factor=self.settings.largest_factor, dtype=dtype)
        #: Trainable parameters that keep their plain gradient, each with the reason.
        self.uncovered: list[Uncovered] = found.uncovered
        self._tell_uncovered()
        if not found.units:
            raise UnsupportedError(
                "KFAC covers no parameter of this model; it knows Linear, Conv1d to Conv3d, "
                "Embedding and MultiheadAttention with weights that learn"
            )
        self._factors = Factors(
            found.units, decay=self.settings.decay, device=device, dtype=dtype
        )
        self._exchange = FactorExchange(
            self._factors,
            self._comm,
            method=self.settings.method,
            factor_error=self.settings.factor_error,
        )
        self._solutions = Solutions(
            self._factors,
            self._comm,
            method=self.settings.method,
            fraction=self.settings.worker_fraction,
        )
        self.steps = 0
        self._backwards = 0
        self._generator = torch.Generator(device=device)
        self._solve_next = True
        self._capture = Capture(
            self.model, found.places, self._factors, sampled=self.settings.fisher == "sampled"
        )
        self._capture.scale = self._gradient_scale
        self._capture.on_forward = self._forwarded
        self._examples, self._uncounted = 1, 0
        self._capture.active = self.factors_due
        #: What the last step's KL clip multiplied all preconditioned gradients with.
        self.clip = 1.0

    # What the model's forward and backward tell

    @property
    def factors_due(self) -> bool:
        """Whether this step renews the factors: then `sample` or `fisher` is to be called."""
        return due(self.steps, self.settings.factor_interval)

    @property
    def damping(self) -> float:
        """λ at this step."""
        return value_at(self.settings.damping, self.steps)

    def sample(
        self, output: Tensor, *, loss: LossName | SampledLoss = "cross_entropy", dim: int = 1
    ) -> None:
        """See the curvature along the forward pass that gave `output`; before `backward`.

        Targets are drawn from what the output predicts, and an extra backward runs that leaves
        the parameters' gradients alone. Does nothing in steps that do not renew the factors.
        `loss` is the loss that is trained, a name or a function (see `sampled_loss`).
        """
        self._need_sampled("sample")
        if self.factors_due:
            self._sample(output, loss, dim, retain=True)

    def fisher(
        self, *inputs: Any, loss: LossName | SampledLoss = "cross_entropy", dim: int = 1
    ) -> None:
        """The same with a forward pass of its own, which may have fewer examples.

        Buffers (as the statistics of batch norms) are as before afterwards.
        """
        self._need_sampled("fisher")
        if not self.factors_due:
            return
        self._capture.forget()
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            with torch.enable_grad():
                self._sample(self.model(*inputs), loss, dim, retain=False)
        finally:
            for buffer, was in kept:
                buffer.copy_(was)
            self._capture.forget()

    def _sample(
        self, output: Tensor, loss: LossName | SampledLoss, dim: int, *, retain: bool
    ) -> None:
        if self._exchange.begun:
            raise UnsupportedError(
                f"step {self.steps} has had its {self.settings.accumulation} samples already; "
                "set accumulation to the number of micro-batches, or call pre.step()"
            )
        # Known from step and rank alone, so that a resumed training draws the same.
        turn = self.steps * self.settings.accumulation + self._backwards
        self._generator.manual_seed(hash((self.settings.seed, self._comm.rank, turn)))
        with torch.autocast(output.device.type, enabled=False):
            drawn, terms = sampled_loss(output, loss=loss, dim=dim, generator=self._generator)
        if not self._capture.take(drawn, retain=retain):
            raise UnsupportedError(
                "KFAC saw no layer in the forward pass of this output; call the model (or its "
                "DistributedDataParallel) in training mode and with gradients before"
            )
        self._factors.terms += terms
        self._backwards += 1
        if self._backwards >= self.settings.accumulation:
            self._capture.active = False
            self._exchange.begin(damping=self.damping)  # travels while backward computes

    def _need_sampled(self, name: str) -> None:
        if self.settings.fisher != "sampled":
            raise UnsupportedError(
                f"KFAC.{name} is for fisher='sampled', this one has "
                f"fisher={self.settings.fisher!r}: it sees the gradients of the loss itself"
            )

    def _forwarded(self, examples: int) -> None:
        """A forward pass, whose terms count as soon as something comes back from it."""
        self._examples = examples
        self._uncounted = examples * self.settings.terms_per_example

    def _gradient_scale(self) -> float:
        """From the gradient that arrives to that of the loss summed over its terms."""
        settings = self.settings
        self._factors.terms += self._uncounted
        self._uncounted = 0
        scale = float(settings.accumulation)
        if settings.reduction == "mean":
            scale *= self._examples * settings.terms_per_example
        if self._scaler is not None:
            scale /= _scale_of(self._scaler)
        return scale

    # The step

    @torch.no_grad()
    def step(self) -> None:
        """Precondition the gradients of every covered parameter that has one."""
        if self.factors_due:
            self._renew_factors()
        if due(self.steps, self.settings.inverse_interval) or self._solve_next:
            self._solve_next = False
            self._solutions.renew(damping=self.damping, refuse=self._exchange.refuse)
        self.clip = self._solutions.precondition(
            kl_clip=self.settings.kl_clip, lr=value_at(self.settings.lr, self.steps)
        )
        self.steps += 1
        self._backwards = 0
        self._capture.forget()
        self._capture.active = self.factors_due

    def _renew_factors(self) -> None:
        if not self._exchange.begun:
            if self.settings.fisher == "sampled" and not self._backwards:
                raise UnsupportedError(
                    f"step {self.steps} renews the factors, and nothing was sampled: call "
                    "pre.sample(output, loss=...) before backward, or choose fisher='empirical'"
                )
            self._exchange.begin(damping=self.damping)
        self._exchange.finish()

    def detach(self) -> None:
        """Take everything off the model."""
        self._capture.remove()

    # What is kept

    def state_dict(self) -> dict[str, Any]:
        """Factors, counters and, where this rank holds all of them, solutions.

        To be taken between steps. With worker_fraction=1 every rank's is the same and resumes
        to the same steps; with less, the step after loading solves anew.
        """
        return {
            "steps": self.steps,
            "factors": state.of_factors(self._factors),
            "exact": sorted(self._factors.units[n].name for n in self._exchange.exact),
            "solutions": state.of_solutions(self._solutions, method=self.settings.method),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a state of the same model; the number of ranks may be another."""
        state.load_factors(self._factors, saved["factors"])
        numbers = {unit.name: number for number, unit in enumerate(self._factors.units)}
        self._exchange.exact = {numbers[name] for name in saved["exact"]}
        self._solve_next = not state.load_solutions(
            self._solutions, saved["solutions"], method=self.settings.method
        )
        self.steps = int(saved["steps"])
        self._capture.active = self.factors_due

    def _tell_uncovered(self) -> None:
        choice = self.settings.uncovered
        if not self.uncovered or choice == "ignore":
            return
        message = (
            f"K-FAC does not cover {len(self.uncovered)} parameters, "
            "whose gradients stay plain:\n" + "\n".join(f"  {item}" for item in self.uncovered)
        )
        if choice == "raise":
            raise UnsupportedError(message)
        if self._comm.rank == 0:
            warnings.warn(message, UncoveredWarning, stacklevel=3)


def _inner(model: nn.Module) -> nn.Module:
    """The model itself, not what wraps it."""
    if isinstance(model, nn.DataParallel):
        raise UnsupportedError(
            "KFAC does not take nn.DataParallel, whose copies live for one step; use "
            "nn.parallel.DistributedDataParallel"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model


def _scale_of(scaler: Any) -> float:
    """Of a GradScaler, or of a function that gives the number."""
    return float(scaler() if callable(scaler) else scaler.get_scale())


def _device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Where factors lie, and in what: float64 for a float64 model, float32 otherwise."""
    learning = [p for p in model.parameters() if p.requires_grad]
    devices = {p.device for p in learning}
    if len(devices) != 1:
        raise UnsupportedError(
            f"KFAC takes a model whose learning parameters are on one device, these are on "
            f"{', '.join(sorted(map(str, devices))) or 'none: nothing learns'}"
        )
    double = any(p.dtype is torch.float64 for p in learning)
    return devices.pop(), torch.float64 if double else torch.float32
