"""Encke under Lightning's own Trainer, of both of its packages."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import encke
from encke.integrations.lightning import EnckeCallback

pytestmark = pytest.mark.slow

PACKAGES = [lightning, pytorch_lightning]


def batches() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(512, 64, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :1].tanh()), batch_size=128)


def regressor(package: ModuleType = lightning, *, manual: bool = False) -> Any:
    """A module whose training_step calls its part, and never its own forward."""

    class Regressor(package.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = not manual
            self.net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
            self.kept: list[tuple[int, int]] = []
            self.fail = False

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            x, y = batch
            loss = (self.net(x) - y).square().mean()
            tape = self.trainer.callbacks[0].tape if self.trainer.callbacks else None
            if isinstance(tape, encke.Tape):
                self.kept.append((tape.stored_bytes, tape.plain_bytes))
            if self.fail:
                raise RuntimeError("stopped")
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    torch.manual_seed(0)
    return Regressor()


def flat(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def trainer(folder: Path, *callbacks: Any, package: ModuleType = lightning, **more: Any) -> Any:
    return package.Trainer(
        **{
            "default_root_dir": folder,
            "max_epochs": 1,
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "callbacks": list(callbacks),
            **more,
        }
    )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
@pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
def test_every_training_step_keeps_less_and_learns_the_same(
    tmp_path: Path, package: ModuleType, manual: bool
) -> None:
    plain, compressed = (regressor(package, manual=manual) for _ in range(2))
    trainer(tmp_path, package=package).fit(plain, batches())
    callback = EnckeCallback(tolerance=0.01)
    used = trainer(tmp_path, callback, package=package)
    used.fit(compressed, batches())
    assert len(compressed.kept) == 4
    assert all(0 < stored < whole / 4 for stored, whole in compressed.kept)
    start = flat(regressor(package))
    moved, apart = flat(plain) - start, flat(compressed) - flat(plain)
    # A variance of 0.01 is an error of a tenth; with chance, never twice that.
    assert 0 < apart.norm() < 0.2 * moved.norm()
    assert used.callback_metrics["encke/stored_bytes"] > 0
    assert (
        used.callback_metrics["encke/stored_bytes"]
        < used.callback_metrics["encke/plain_bytes"] / 4
    )


def test_without_loss_the_weights_are_those_of_plain_training(tmp_path: Path) -> None:
    plain, exact = regressor(), regressor()
    trainer(tmp_path).fit(plain, batches())
    trainer(tmp_path, EnckeCallback(policy=encke.Fixed(encke.Lossless()))).fit(exact, batches())
    for one, other in zip(plain.parameters(), exact.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_holds_what_was_learnt_and_fit_goes_on_with_it(tmp_path: Path) -> None:
    saver = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    first = EnckeCallback()
    used = trainer(tmp_path, first, saver, enable_checkpointing=True)
    used.fit(regressor(), batches())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["callbacks"]["EnckeCallback"]
    assert saved["step"] == 4
    assert saved["policy"]["bounds"]
    used.save_checkpoint(tmp_path / "after.ckpt")
    after = torch.load(tmp_path / "after.ckpt", weights_only=False)["callbacks"]
    assert after["EnckeCallback"] == saved

    found: list[dict[str, Any]] = []

    class Witness(lightning.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            assert second.tape is not None
            found.append(second.tape.state_dict())

    second = EnckeCallback()
    trainer(tmp_path, second, Witness(), max_epochs=2).fit(
        regressor(), batches(), ckpt_path=tmp_path / "last.ckpt", weights_only=False
    )
    assert found == [saved]
    assert second.tape is not None
    assert second.tape.step == 8


def test_the_module_and_the_strategy_are_let_go_after_a_fit_and_after_an_exception(
    tmp_path: Path,
) -> None:
    for fail in (False, True):
        model = regressor()
        model.fail = fail
        callback = EnckeCallback()
        used = trainer(tmp_path, callback)
        if fail:
            with pytest.raises(RuntimeError, match="stopped"):
                used.fit(model, batches())
        else:
            used.fit(model, batches())
        assert model.kept
        assert not model._forward_pre_hooks
        assert not model._forward_hooks
        assert "training_step" not in vars(used.strategy)
        assert "training_step" not in vars(model)


def test_a_second_fit_with_the_same_callback_attaches_anew(tmp_path: Path) -> None:
    callback = EnckeCallback()
    for _ in range(2):
        trainer(tmp_path, callback).fit(regressor(), batches())
        assert callback.tape is not None
        assert callback.tape.step == 4


def test_a_copy_of_the_module_made_while_it_trains_has_no_tape(tmp_path: Path) -> None:
    copies: list[Any] = []

    class Copy(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            copies.append(copy.deepcopy(pl_module.net))

    callback = EnckeCallback()
    trainer(tmp_path, callback, Copy()).fit(regressor(), batches())
    assert callback.tape is not None
    loss = copies[0](torch.randn(128, 64)).sum()
    assert callback.tape.plain_bytes == 0
    loss.backward()


def test_validation_and_gradient_accumulation_go_together_with_it(tmp_path: Path) -> None:
    class Validated(type(regressor())):  # type: ignore[misc]
        def validation_step(self, batch: list[Tensor], _index: int) -> None:
            self.log("error", (self.net(batch[0]) - batch[1]).square().mean())

    callback = EnckeCallback()
    used = trainer(tmp_path, callback, accumulate_grad_batches=2)
    used.fit(Validated(), batches(), batches())
    assert callback.tape is not None
    assert callback.tape.step == 4
    assert "error" in used.callback_metrics


@pytest.mark.parametrize("part", [False, True], ids=["the module", "a part"])
def test_what_is_compiled_keeps_less_and_without_loss_learns_the_same(
    tmp_path: Path, part: bool
) -> None:
    def fitted(*callbacks: Any) -> Any:
        model = regressor()
        if part:
            model.net = torch.compile(model.net, fullgraph=True)
        run = model if part else torch.compile(model)
        trainer(tmp_path, *callbacks).fit(run, batches())
        return model

    torch.compiler.reset()
    exact = EnckeCallback(policy=encke.Fixed(encke.Lossless()))
    same = fitted(exact)
    kept = EnckeCallback()
    fitted(kept)
    plain = fitted()
    for one, other in zip(plain.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)
    for callback in (exact, kept):
        assert callback.tape is not None
        assert callback.tape.step == 4
        assert "addmm" in {record.site.op for record in callback.tape.records}
    packed = next(r for r in kept.tape.records if r.site.op == "addmm")  # type: ignore[union-attr]
    assert packed.stored < packed.plain / 4
    torch.compiler.reset()


def test_a_backend_that_keeps_nothing_through_the_tape_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="encke"):
        trainer(tmp_path, EnckeCallback()).fit(
            torch.compile(regressor(), backend="aot_eager"), batches()
        )
    assert "Regressor: it was compiled by a backend" in caplog.text
    torch.compiler.reset()


def test_wrong_options_raise_at_once_and_a_module_without_hooks_is_trained_plainly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ({"tolerence": 0.1}, {"policy": "lossless"}, {"tolerance": "high"}):
        with pytest.raises(encke.UnsupportedError):
            EnckeCallback(**wrong)  # type: ignore[arg-type]

    def fail(*_: object, **__: object) -> None:
        raise encke.UnsupportedError("no hooks here")

    monkeypatch.setattr("encke.integrations.callback.attach", fail)
    callback, model = EnckeCallback(), regressor()
    trainer(tmp_path, callback).fit(model, batches())
    assert callback.tape is None
    assert "Regressor is trained without Encke: no hooks here" in caplog.text
    assert not torch.equal(flat(model), flat(regressor()))
