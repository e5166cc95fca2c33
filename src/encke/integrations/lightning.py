"""Compressed activations under Lightning's `Trainer`.

A LightningModule is trained through its `training_step`, which calls its parts and seldom its
own forward, so hooks of the module alone would not be run. The strategy is what calls
`training_step`, whatever wraps the module and whether optimization is automatic or manual: for
the time of a fit the callback puts the tape around that one method of the trainer's strategy.
The module itself gets nothing but the hooks of `encke.attach`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from encke.control.attach import check_options
from encke.integrations.absent import absent
from encke.integrations.callback import attach_if_possible, say_at_end
from encke.tape import Tape

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError as error:
    if error.name not in ("lightning", "lightning.pytorch"):
        raise
    try:
        from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]
    except ModuleNotFoundError as other:
        if other.name != "pytorch_lightning":
            raise
        raise absent(__name__, package="lightning", extra="lightning") from None


class EnckeCallback(Callback):
    """Keeps the activations of the trained module compressed during `fit`.

    tolerance  as for `encke.attach`, and so are the `attach_options`

    Options that `attach` does not take raise at once. A module that it cannot attach to is
    trained as it is, and the logger `encke` says why.

    Works with the trainers of `lightning` and of `pytorch_lightning`. What the controller has
    learnt is part of the trainer's checkpoints (that of rank 0 is) and is taken up again by
    `fit(..., ckpt_path=...)`. Every batch logs `encke/stored_bytes` and `encke/plain_bytes`:
    the most bytes that were kept for backward, and the most that would have been without
    compression. The module is let go when fit ends, with an exception as well.

    `fit(torch.compile(module))`, or a part of the module that is compiled, keeps its tensors
    inside the compiled graphs (docs/compile.md).
    """

    def __init__(self, tolerance: float | None = None, **attach_options: Any) -> None:
        super().__init__()
        if tolerance is not None:
            attach_options["tolerance"] = tolerance
        check_options(**attach_options)
        self._options = attach_options
        self._loaded: dict[str, Any] | None = None
        #: In use, or of the last fit.
        self.tape: Tape | None = None

    def detach(self) -> None:
        """Let the module go; nothing happens if no fit has it."""
        if self.tape is not None:
            self.tape.detach()

    # -- what the trainer calls ----------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.detach()
        self.tape = attach_if_possible(pl_module, trainer.optimizers, self._options)
        if self.tape is None:
            return
        if self._loaded is not None:
            self.tape.load_state_dict(self._loaded)
            self._loaded = None
        self.tape.detachers.append(_enter_around_steps(trainer.strategy, self.tape))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.tape is not None:
            self.tape.ledger.reset_peak()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.tape is not None:
            ledger = self.tape.ledger
            pl_module.log("encke/stored_bytes", float(ledger.stored_peak))
            pl_module.log("encke/plain_bytes", float(ledger.plain_peak))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.tape is not None:
            compiled = getattr(pl_module, "_compiler_ctx", None) is not None
            say_at_end(pl_module, compiled=compiled)
        self.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.detach()

    # -- checkpoints ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self.tape is None:
            return self._loaded or {}
        return self.tape.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Kept until the fit starts: callbacks are restored before there are optimizers."""
        self._loaded = state_dict or None


def _enter_around_steps(strategy: Any, tape: Tape) -> Callable[[], None]:
    """Enter `tape` around each training step of `strategy`; gives what undoes that."""
    step = strategy.training_step

    @wraps(step)
    def training_step(*args: Any, **kwargs: Any) -> Any:
        with tape:
            return step(*args, **kwargs)

    strategy.training_step = training_step  # hides the class's method

    def undo() -> None:
        if vars(strategy).get("training_step") is training_step:
            del strategy.training_step

    return undo
