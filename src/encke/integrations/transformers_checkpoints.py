"""Checkpoints of `transformers.Trainer` as files of the store.

A trainer, or a mixin for any trainer class: the weights and the optimizer's state of each
checkpoint go into one `state.encke`, in place of `model.safetensors` and `optimizer.pt`;
everything else in the folder is the trainer's own. `train(resume_from_checkpoint=...)` reads
either kind.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from encke import store
from encke.errors import UnsupportedError
from encke.integrations.absent import absent

try:
    from transformers import Trainer
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise absent(__name__, package="transformers", extra="transformers") from error

log = logging.getLogger("encke")
FILE = "state.encke"
_SCHEDULER = "scheduler.pt"
_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin")


class StoredCheckpoints(Trainer):
    """A trainer, or put before one: `class MyTrainer(StoredCheckpoints, SFTTrainer): ...`.

    store_loss     relative rise of the loss that a checkpoint may cost; None keeps every bit
    store_batches  how many batches of the training set the rise is measured on; with 0 the
                   optimizer's second moments stand in

    Not for DeepSpeed and FSDP, whose checkpoints are sharded: see `encke.store.dcp`.
    """

    def __init__(
        self,
        *args: Any,
        store_loss: float | None = 1e-3,
        store_batches: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.store_loss, self.store_batches = store_loss, store_batches
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise UnsupportedError(
                "StoredCheckpoints does not take sharded checkpoints of DeepSpeed or FSDP; use "
                "torch.distributed.checkpoint with encke.store.dcp.Writer"
            )

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        folder = Path(output_dir)
        if not self.args.should_save:
            return
        assert self.optimizer is not None
        options: dict[str, Any] = {}
        if self.store_loss is not None:
            options["loss"] = self.store_loss
            batches = self._store_batches()
            if batches:
                options["data"] = batches
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        done = store.save(folder / FILE, model, self.optimizer, **options)
        log.info("%s", done)
        if self.lr_scheduler is not None:
            torch.save(self.lr_scheduler.state_dict(), folder / _SCHEDULER)
        for pattern in _WEIGHTS:  # written a moment ago by the trainer; ours holds them now
            for path in folder.glob(pattern):
                path.unlink()

    def _store_batches(self) -> list[Any]:
        """The first batches of the training set; none where it cannot be indexed."""
        data: Any = self.train_dataset
        size = self.args.per_device_train_batch_size
        if not self.store_batches or not hasattr(data, "__getitem__"):
            return []
        count = min(len(data), self.store_batches * size)
        batches = []
        for start in range(0, count, size):
            examples = [data[index] for index in range(start, min(start + size, count))]
            batches.append(self._prepare_inputs(self.data_collator(examples)))
        return batches

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        path = Path(resume_from_checkpoint) / FILE
        if not path.is_file():
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        target = self.model if model is None else model
        inner = self.accelerator.unwrap_model(target, keep_torch_compile=False)
        store.load(path, inner, only="model/*")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not (Path(checkpoint) / FILE).is_file():
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        store.load(Path(checkpoint) / FILE, optimizer=self.optimizer, only="optimizer/*")
        schedule = Path(checkpoint) / _SCHEDULER
        if self.lr_scheduler is not None and schedule.is_file():
            self.lr_scheduler.load_state_dict(torch.load(schedule, weights_only=True))

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if best is not None and (Path(best) / FILE).is_file():
            self._load_from_checkpoint(best)
        else:
            super()._load_best_model()
