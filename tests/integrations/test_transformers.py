"""Encke under transformers' own Trainer."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import encke
from encke.errors import UnsupportedError
from encke.integrations.transformers import EnckeCallback

pytestmark = pytest.mark.slow


class Words(Dataset[dict[str, torch.Tensor]]):
    """Sixteen sentences of 64 tokens that count up."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        ids = (torch.arange(64) + 3 * index) % 50
        return {"input_ids": ids, "labels": ids}


def language_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=2, **dropout)
    )


def trainer(
    folder: Path, *callbacks: TrainerCallback, model: Any = None, **arguments: Any
) -> Trainer:
    given = TrainingArguments(
        output_dir=str(folder),
        **{
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-3,
            "logging_steps": 2,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            **arguments,
        },
    )
    return Trainer(
        model=language_model() if model is None else model,
        args=given,
        train_dataset=Words(),
        eval_dataset=Words(),
        callbacks=list(callbacks),
    )


def losses(trained: Trainer) -> list[float]:
    return [line["loss"] for line in trained.state.log_history if "loss" in line]


def hooks(model: torch.nn.Module) -> int:
    return len(model._forward_pre_hooks) + len(model._forward_hooks)


class Witness(TrainerCallback):
    """Comes after an EnckeCallback and notes what it finds."""

    def __init__(self, callback: EnckeCallback) -> None:
        self.callback = callback
        self.at_start: dict[str, Any] = {}
        self.logs: list[dict[str, Any]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.callback.tape is not None
        self.at_start = self.callback.tape.state_dict()

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.logs.append(given["logs"])


def test_training_keeps_less_and_learns_the_same(tmp_path: Path) -> None:
    plain = trainer(tmp_path)
    plain.train()
    callback = EnckeCallback(tolerance=0.01)
    compressed = trainer(tmp_path, callback)
    compressed.train()
    assert losses(compressed) == pytest.approx(losses(plain), rel=1e-2)
    history = [line for line in compressed.state.log_history if "loss" in line]
    assert len(history) == 2
    for line in history:
        assert 0 < line["encke_stored_bytes"] < line["encke_plain_bytes"] / 2
    assert callback.tape is not None
    assert callback.tape.step == 4
    assert hooks(compressed.model) == hooks(plain.model)


def test_without_loss_the_weights_are_those_of_plain_training(tmp_path: Path) -> None:
    plain = trainer(tmp_path, lr_scheduler_type="constant")
    plain.train()
    policy = encke.Fixed(encke.Lossless())
    exact = trainer(tmp_path, EnckeCallback(policy=policy), lr_scheduler_type="constant")
    exact.train()
    for one, other in zip(plain.model.parameters(), exact.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_callbacks_that_come_later_see_the_bytes_and_evaluation_does_not_log_them(
    tmp_path: Path,
) -> None:
    callback = EnckeCallback()
    witness = Witness(callback)
    watched = trainer(tmp_path, callback, witness, eval_strategy="steps", eval_steps=2)
    watched.train()
    trained = [logs for logs in witness.logs if "loss" in logs]
    evaluated = [logs for logs in witness.logs if "eval_loss" in logs]
    assert len(trained) == len(evaluated) == 2
    assert all("encke_stored_bytes" in logs for logs in trained)
    assert not any("encke_stored_bytes" in logs for logs in evaluated)


def test_a_checkpoint_holds_what_was_learnt_and_training_goes_on_with_it(
    tmp_path: Path,
) -> None:
    first = trainer(tmp_path, EnckeCallback(), save_strategy="steps", save_steps=2)
    first.train()
    saved = torch.load(tmp_path / "checkpoint-2" / "encke_tape.pt")
    assert saved["step"] == 2
    assert saved["policy"]["bounds"]
    callback = EnckeCallback()
    witness = Witness(callback)
    second = trainer(tmp_path, callback, witness)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert witness.at_start == saved
    assert callback.tape is not None
    assert callback.tape.step == 4


def test_a_checkpoint_elsewhere_is_named_or_the_controller_says_that_it_starts_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer(ours, EnckeCallback(), **saving).train()
    shutil.copytree(ours / "checkpoint-2", tmp_path / "moved")
    # Another run's checkpoint of the same step lies where the trainer's would.
    trainer(other, EnckeCallback(), learning_rate=1e-2, **saving).train()
    callback = EnckeCallback()
    witness = Witness(callback)
    with caplog.at_level(logging.WARNING, logger="encke"):
        trainer(other, callback, witness).train(resume_from_checkpoint=str(tmp_path / "moved"))
    assert witness.at_start["step"] == 0
    assert "the controller learns anew" in caplog.text

    callback = EnckeCallback(resume=tmp_path / "moved")
    witness = Witness(callback)
    trainer(other, callback, witness).train(resume_from_checkpoint=str(tmp_path / "moved"))
    assert witness.at_start == torch.load(tmp_path / "moved" / "encke_tape.pt")


def test_a_named_checkpoint_without_a_tape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"holds no encke_tape\.pt"):
        trainer(tmp_path, EnckeCallback(resume=tmp_path)).train()


def test_checkpoints_of_the_model_alone_get_no_tape(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    trainer(tmp_path, EnckeCallback(), **saving).train()
    assert (tmp_path / "checkpoint-2").is_dir()
    assert not list(tmp_path.rglob("encke_tape*"))


def test_after_an_exception_the_model_can_be_let_go_or_trained_again(tmp_path: Path) -> None:
    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            raise RuntimeError("stopped")

    callback = EnckeCallback()
    broken = trainer(tmp_path, callback, Stop())
    before = hooks(broken.model)
    with pytest.raises(RuntimeError, match="stopped"):
        broken.train()
    again = trainer(tmp_path, callback, model=broken.model)
    again.train()
    assert callback.tape is not None
    assert callback.tape.step == 4
    with pytest.raises(RuntimeError, match="stopped"):
        broken.train()
    callback.detach()
    assert hooks(broken.model) == before


def test_gradient_accumulation_counts_every_forward_pass(tmp_path: Path) -> None:
    callback = EnckeCallback(policy=encke.Fixed(encke.RangeRelative(0.02)))
    trainer(tmp_path, callback, max_steps=2, gradient_accumulation_steps=2).train()
    assert callback.tape is not None
    assert callback.tape.step == 4


class Regression(torch.nn.Module):
    """A small network for the trainer: compiling takes seconds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(64, 128), torch.nn.Linear(128, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.last(torch.nn.functional.gelu(self.first(x)))
        return {"loss": (y.squeeze(-1) - labels).square().mean()}


class Vectors(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.randn(64, generator=torch.Generator().manual_seed(index))
        return {"x": x, "labels": x[0].tanh()}


def test_a_model_that_the_trainer_compiles_keeps_less_and_learns_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def trained(*callbacks: TrainerCallback, **arguments: Any) -> Trainer:
        made = trainer(
            tmp_path,
            *callbacks,
            model=Regression(),
            per_device_train_batch_size=64,
            torch_compile=True,
            **arguments,
        )
        made.train_dataset = Vectors()
        made.train()
        return made

    torch.compiler.reset()
    plain = trained(EnckeCallback(policy=encke.Fixed(encke.Lossless())))
    callback = EnckeCallback()
    with caplog.at_level(logging.WARNING, logger="encke"):
        compressed = trained(callback)
    assert losses(compressed) == pytest.approx(losses(plain), rel=0.05)
    lines = [line for line in compressed.state.log_history if "loss" in line]
    assert all(x["encke_stored_bytes"] < x["encke_plain_bytes"] / 4 for x in lines[1:])
    assert callback.tape is not None
    assert callback.tape.step == 4
    assert {record.site.op for record in callback.tape.records} == {"addmm"}
    assert "compiled by a backend" not in caplog.text
    with caplog.at_level(logging.WARNING, logger="encke"):
        trained(EnckeCallback(), torch_compile_backend="aot_eager")
    assert "Regression: it was compiled by a backend" in caplog.text
    torch.compiler.reset()


def test_wrong_options_raise_at_once_and_a_model_without_hooks_is_trained_plainly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ({"tolerence": 0.1}, {"policy": "lossless"}, {"tolerance": "high"}):
        with pytest.raises(encke.UnsupportedError):
            EnckeCallback(**wrong)  # type: ignore[arg-type]

    def fail(*_: object, **__: object) -> None:
        raise encke.UnsupportedError("no hooks here")

    monkeypatch.setattr("encke.integrations.callback.attach", fail)
    callback = EnckeCallback()
    trained = trainer(tmp_path, callback)
    trained.train()
    assert callback.tape is None
    assert "GPT2LMHeadModel is trained without Encke: no hooks here" in caplog.text
    assert trained.state.global_step == 4
