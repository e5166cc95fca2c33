"""Trainers resume from checkpoints in files of the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

lightning = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")

from encke.integrations.lightning_checkpoints import EnckeCheckpointIO  # noqa: E402
from encke.integrations.transformers_checkpoints import StoredCheckpoints  # noqa: E402
from encke.store import StateReader  # noqa: E402


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tokens = torch.randint(0, 40, (64, 1)) + torch.arange(12)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.tokens[index] % 50
        return {"input_ids": row, "labels": row}


class StoredTrainer(StoredCheckpoints, transformers.Trainer):  # type: ignore[name-defined,misc]
    pass


def trainer(folder: Path, *, steps: int, **options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(1)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, max_steps=steps, save_steps=6,
        learning_rate=1e-3, report_to=[], disable_tqdm=True, logging_steps=1, use_cpu=True,
        seed=3, lr_scheduler_type="constant",
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    return StoredTrainer(model=model, args=arguments, train_dataset=Texts(), **options)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, 1e-3])
def test_a_transformers_trainer_resumes_from_a_stored_checkpoint(
    tmp_path: Path, loss: float | None
) -> None:
    whole = trainer(tmp_path / "a", steps=12, store_loss=loss)
    whole.train()
    checkpoint = tmp_path / "a" / "checkpoint-6"
    names = {path.name for path in checkpoint.iterdir()}
    assert "state.encke" in names
    assert not {"model.safetensors", "optimizer.pt"} & names
    again = trainer(tmp_path / "b", steps=12, store_loss=loss)
    again.train(resume_from_checkpoint=str(checkpoint))
    losses = [
        [entry["loss"] for entry in run.state.log_history if "loss" in entry][-6:]
        for run in (whole, again)
    ]
    if loss is None:
        assert losses[0] == losses[1]
        pairs = zip(whole.model.parameters(), again.model.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in pairs)
    else:
        assert losses[1] == pytest.approx(losses[0], rel=0.02)
        with StateReader(checkpoint / "state.encke") as stored:
            budget = stored.report["budget"]
        assert budget["measured"] <= budget["allowed"]


class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 30})
        self.net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))

    def training_step(self, batch: Any, _: int) -> Any:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]


@pytest.fixture(autouse=True)
def _deterministic_algorithms_are_switched_off_again() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def fit(folder: Path, epochs: int, path: Path | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 20), torch.randint(4, (64,)))
    torch.manual_seed(1)
    module = Module()
    run = lightning.Trainer(
        default_root_dir=folder, max_epochs=epochs, accelerator="cpu", logger=False,
        enable_progress_bar=False, enable_model_summary=False, deterministic=True,
        plugins=[EnckeCheckpointIO(**options)],
        callbacks=[lightning.callbacks.ModelCheckpoint(dirpath=folder, save_top_k=-1,
                                                       filename="{epoch}")],
    )  # fmt: skip
    run.fit(module, torch.utils.data.DataLoader(data, 16), ckpt_path=path)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("loss", [None, 1e-3])
def test_a_lightning_trainer_resumes_from_a_stored_checkpoint(
    tmp_path: Path, loss: float | None
) -> None:
    whole = fit(tmp_path / "a", 4, loss=loss, examples=16)
    (path,) = (tmp_path / "a").glob("epoch=1.ckpt")
    again = fit(tmp_path / "b", 4, path, loss=loss, examples=16)
    for p, q in zip(whole.parameters(), again.parameters(), strict=True):
        if loss is None:
            assert torch.equal(p, q)
        else:
            assert float((p - q).detach().abs().max()) < 0.15
