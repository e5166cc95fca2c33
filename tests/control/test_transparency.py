"""A model with a tape is copied, saved, scripted and sent as one without."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import encke
from encke.control.hooks import hooks_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))

    def loss(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).square().mean()


class WithState(Net):
    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)


def plain_sequence() -> nn.Module:
    return nn.Sequential(OrderedDict(a=nn.Linear(64, 64), b=nn.GELU(), c=nn.Linear(64, 8)))


def traced_by_fx() -> nn.Module:
    return fx.symbolic_trace(plain_sequence())


def saved(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


def dumped(model: nn.Module) -> bytes:
    return pickle.dumps(model)


def dumped_by_python(model: nn.Module) -> bytes:
    file = io.BytesIO()
    pickle._Pickler(file).dump(model)
    return file.getvalue()


def saved_copy(model: nn.Module) -> bytes:
    return saved(copy.deepcopy(model))


@pytest.fixture(params=["before any call", "called", "called by parts"])
def stage(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def bring_to(stage: str, model: nn.Module) -> None:
    x = torch.randn(256, 64)
    if stage == "called":
        model(x).sum().backward()
    elif stage == "called by parts":
        for part in model.children():
            if isinstance(part, nn.Linear):
                part(torch.randn(256, part.in_features)).sum().backward()
    model.zero_grad()


@pytest.mark.parametrize("make", [Net, WithState, plain_sequence])
@pytest.mark.parametrize("dump", [saved, dumped, dumped_by_python, saved_copy])
def test_the_bytes_of_a_saved_model_are_those_without_a_tape(
    make: Callable[[], nn.Module], dump: Callable[[nn.Module], bytes], stage: str
) -> None:
    model = make()
    bring_to(stage, model)
    expected = dump(model)
    tape = encke.attach(model)
    bring_to(stage, model)
    assert dump(model) == expected
    tape.detach()
    assert dump(model) == expected


def test_hooks_of_others_are_saved_in_their_order() -> None:
    model = Net()
    model.register_forward_hook(print_nothing)
    tape = encke.attach(model)
    model.register_forward_pre_hook(print_nothing)
    twin = pickle.loads(pickle.dumps(model))
    tape.detach()
    assert list(twin._forward_hooks.values()) == [print_nothing]
    assert list(twin._forward_pre_hooks.values()) == [print_nothing]
    assert not twin._forward_hooks_always_called


def print_nothing(*_args: object) -> None:
    """A hook of somebody else."""


def test_a_module_that_fx_made_is_copied_without_encke() -> None:
    model = traced_by_fx()
    encke.attach(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert b"encke" not in pickle.dumps(vars(twin)["_forward_pre_hooks"])
        assert twin(torch.randn(4, 64)).shape == (4, 8)
        assert hooks_of(twin) is None
    assert b"encke" not in pickle.dumps(vars(Net())) + pickle.dumps(model._forward_hooks)


def test_copies_have_no_tape_and_the_model_keeps_its_own() -> None:
    model = Net()
    tape = encke.attach(model)
    assert hooks_of(copy.copy(model)) is None
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert hooks_of(twin) is None
        twin(torch.randn(256, 64)).sum().backward()
        assert tape.step == 0
    model(torch.randn(256, 64)).sum().backward()
    assert tape.step == 1


@pytest.mark.slow
def test_a_process_without_encke_loads_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    encke.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    torch.save(model, tmp_path / "model.pt")
    (tmp_path / "encke.py").write_text("raise ImportError('no encke here')")
    program = """
import sys, torch
from torch import nn
with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
    model = torch.load("model.pt", weights_only=True)
model(torch.randn(2, 8)).sum().backward()
assert "encke" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_the_model_as_without(stage: str) -> None:
    model = Net()
    tape = encke.attach(model)
    bring_to(stage, model)
    before = [list(m._forward_pre_hooks.items()) for m in model.modules()]
    scripted = torch.jit.script(model)
    assert [list(m._forward_pre_hooks.items()) for m in model.modules()] == before
    x = torch.randn(4, 64)
    assert torch.equal(scripted(x), model(x))
    assert torch.equal(torch.jit.trace(model, (x,))(x), model(x))
    tape.detach()


@pytest.mark.slow
def test_torch_export_gives_the_same_program() -> None:
    model, x = Net(), torch.randn(4, 64)
    expected = [str(torch.export.export(model, (x,), strict=strict)) for strict in (0, 1)]
    tape = encke.attach(model)
    assert [str(torch.export.export(model, (x,), strict=s)) for s in (0, 1)] == expected
    assert tape.step == 0


def train_once(model: nn.Module, out: str) -> None:
    model(torch.ones(4, 8)).sum().backward()
    torch.save([p.grad for p in model.parameters()], out)


@pytest.mark.slow
def test_a_model_is_sent_to_a_spawned_process(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    encke.attach(model)
    process = torch.multiprocessing.get_context("spawn").Process(
        target=train_once, args=(model, str(tmp_path / "gradients.pt"))
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    train_once(model, str(tmp_path / "own.pt"))
    sent, own = (torch.load(tmp_path / name) for name in ("gradients.pt", "own.pt"))
    assert all(torch.allclose(a, b) for a, b in zip(sent, own, strict=True))


def test_detach_leaves_no_trace() -> None:
    import copyreg
    import gc

    from torch.optim import optimizer

    gc.collect()  # models of other tests
    table, script = dict(copyreg.dispatch_table), torch.jit._recursive.create_script_module
    steps = [dict(optimizer._global_optimizer_pre_hooks)]
    steps.append(dict(optimizer._global_optimizer_post_hooks))
    model = Net()
    tape = encke.attach(model)
    assert copyreg.dispatch_table != table
    tape.detach()
    assert copyreg.dispatch_table == table
    assert torch.jit._recursive.create_script_module is script
    # Those of other tests' models may have gone meanwhile.
    assert optimizer._global_optimizer_pre_hooks.keys() <= steps[0].keys()
    assert optimizer._global_optimizer_post_hooks.keys() <= steps[1].keys()
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called


def test_a_model_that_is_dropped_takes_its_tape_along() -> None:
    import copyreg
    import gc
    import weakref

    gc.collect()  # models of other tests
    table = dict(copyreg.dispatch_table)
    model = Net()
    gone = weakref.ref(model), weakref.ref(encke.attach(model))
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert copyreg.dispatch_table == table
