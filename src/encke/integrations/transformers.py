"""Compressed activations under `transformers.Trainer`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from encke.control.attach import check_options
from encke.errors import UnsupportedError
from encke.integrations.absent import absent
from encke.integrations.callback import attach_if_possible, say_at_end
from encke.tape import Tape

try:
    from transformers import (
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise absent(__name__, package="transformers", extra="transformers") from error

log = logging.getLogger("encke")

_STATE = "trainer_state.json"  # the trainer's own file in a checkpoint


class EnckeCallback(TrainerCallback):
    """Keeps the activations of the trainer's model compressed while it trains.

    tolerance  as for `encke.attach`, and so are the `attach_options`
    resume     checkpoint whose controller to go on with. Not needed where the trainer goes
               on from a checkpoint in its `output_dir`, or from the one that its arguments
               name: `TrainingArguments(resume_from_checkpoint=...)`

    Options that `attach` does not take raise at once. A model that it cannot attach to is
    trained as it is, and the logger `encke` says why.

    Beside each checkpoint lies `encke_tape.pt` with what the controller has learnt (for rank
    n > 0 `encke_tape_n.pt`), and the trainer's logs gain `encke_stored_bytes` and
    `encke_plain_bytes`: the most bytes kept for backward since the last log, and the most
    that would have been without compression.

    A model that is compiled, as with `TrainingArguments(torch_compile=True)`, keeps its tensors
    inside the compiled graphs (docs/compile.md).

    The model is let go when training ends. A trainer tells its callbacks nothing of an
    exception: after one the model stays as it is until `detach()` or the next `train()`.
    """

    def __init__(
        self,
        tolerance: float | None = None,
        *,
        resume: str | Path | None = None,
        **attach_options: Any,
    ) -> None:
        if tolerance is not None:
            attach_options["tolerance"] = tolerance
        check_options(**attach_options)
        self._options = attach_options
        self._resume = None if resume is None else Path(resume)
        #: In use, or of the last training.
        self.tape: Tape | None = None

    def detach(self) -> None:
        """Let the model go; nothing happens if no training has it."""
        if self.tape is not None:
            self.tape.detach()

    # -- what the trainer calls ----------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **given: Any,
    ) -> None:
        self.detach()  # an earlier training that ended with an exception
        model: nn.Module = given["model"]
        self.tape = attach_if_possible(model, given["optimizer"], self._options)
        if self.tape is None:
            return
        if state.global_step > 0 or self._resume is not None:
            self._restore(self.tape, args, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **given: Any,
    ) -> None:
        logs: dict[str, Any] = given["logs"]
        if self.tape is None or "loss" not in logs:
            return  # of an evaluation, or the summary at the end
        ledger = self.tape.ledger
        kept = {
            "encke_stored_bytes": ledger.stored_peak,
            "encke_plain_bytes": ledger.plain_peak,
        }
        ledger.reset_peak()
        logs.update(kept)  # for callbacks that come after this one
        if state.log_history:
            state.log_history[-1].update(kept)  # written before callbacks are called

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.tape is None or args.save_only_model or state.is_hyper_param_search:
            return  # nothing of it is meant to be gone on with
        folder = _checkpoint(args, state)
        if folder.is_dir():  # the trainer may have dropped it again: `save_total_limit`
            torch.save(self.tape.state_dict(), folder / _file(args.process_index))

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **given: Any,
    ) -> None:
        if self.tape is not None:
            say_at_end(given["model"], compiled=args.torch_compile)
        self.detach()

    # -- going on ------------------------------------------------------------------------

    def _restore(self, tape: Tape, args: TrainingArguments, state: TrainerState) -> None:
        for folder in self._candidates(args, state):
            if folder != self._resume and not _is_of(folder, state):
                continue
            for rank in (args.process_index, 0):
                path = folder / _file(rank)
                if path.is_file():
                    tape.load_state_dict(torch.load(path, map_location="cpu"))
                    return
        if self._resume is not None:
            raise UnsupportedError(
                f"resume is {str(self._resume)!r}, which holds no {_file(0)}; allowed is the "
                "folder of a checkpoint that was saved with this callback"
            )
        log.warning(
            "training goes on at step %d, but its checkpoint has no %s: the controller learns "
            "anew; if the checkpoint lies outside %s, name it with EnckeCallback(resume=...)",
            state.global_step,
            _file(0),
            args.output_dir,
        )

    def _candidates(self, args: TrainingArguments, state: TrainerState) -> list[Path]:
        if self._resume is not None:
            return [self._resume]
        named = args.resume_from_checkpoint
        first = [Path(named)] if isinstance(named, str) and Path(named).is_dir() else []
        return [*first, _checkpoint(args, state)]


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def _file(rank: int) -> str:
    return f"encke_tape_{rank}.pt" if rank else "encke_tape.pt"


def _is_of(folder: Path, state: TrainerState) -> bool:
    """Whether a checkpoint is the one that the trainer went on from.

    The trainer does not say where that lies, and a folder of the same step may be another
    run's; but it has read its state from there, with the history of the logs.
    """
    try:
        found = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError):
        return False
    return json.dumps(found.get("log_history")) == json.dumps(state.log_history)
