"""GPT-2 trained by the Trainer of transformers."""

import tempfile

from data import text
from log import Log, arguments
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Losses(TrainerCallback):
    def __init__(self, log):
        self.log = log

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.log.step(float(logs["loss"]))


def main():
    args = arguments(steps=32)
    data = [{"input_ids": ids, "labels": ids} for ids in text(256, 128, 400)]
    model = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=400))
    if not args.steps:
        return Log().end()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, max_steps=args.steps, per_device_train_batch_size=8, learning_rate=2e-3,
            logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
            seed=args.seed,
        )  # fmt: skip
        log = Log()
        callbacks = [Losses(log)]
        Trainer(model=model, args=settings, train_dataset=data, callbacks=callbacks).train()
    log.end()


if __name__ == "__main__":
    main()
