"""Wrong calls are refused, with what was given, what is allowed and what was probably meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import encke
from encke.control import Budget
from encke.control.hooks import hooks_of


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {
    "a tolerance as the optimizer": ((0.01,), {}, ("0.01 (float)", "tolerance=0.01?")),
    "a word as the optimizer": (("adam",), {}, ("'adam' (str)", "torch.optim.Optimizer")),
    "a policy as the optimizer": (
        (encke.Fixed(encke.Absolute(0.1)),),
        {},
        (
            "Fixed",
            "did you mean policy=",
        ),
    ),
    "a slowdown of nothing": ((), {"slowdown": 0}, ("slowdown is 0", "above 0")),
    "a misspelt option": ((), {"tolerence": 0.1}, ("'tolerence'", "did you mean tolerance?")),
    "a misspelt option of the controller": ((), {"guards": 5}, ("did you mean guard?",)),
    "an option that nobody has": ((), {"xyz": 5}, ("'xyz'", "tolerance", "refresh")),
    "what attach passes on itself": ((), {"optimizers": []}, ("attach(model, optimizer",)),
    "lossless by name": ((), {"policy": "lossless"}, ("'lossless'", "Fixed(encke.Lossless())")),
    "adaptive by name": ((), {"policy": "adaptive"}, ("'adaptive'", "leave policy out")),
    "a policy by a misspelt name": ((), {"policy": "loseless"}, ("Fixed(encke.Lossless())",)),
    "a number as the policy": ((), {"policy": 0.01}, ("0.01 (float)", "tolerance=0.01?")),
    "a bound as the policy": (
        (),
        {"policy": encke.RangeRelative(0.02)},
        ("policy=encke.Fixed(RangeRelative(ratio=0.02))",),
    ),
    "the class of a policy": ((), {"policy": encke.Fixed}, ("the class Fixed",)),
    "a word as the tolerance": ((), {"tolerance": "high"}, ("'high' (str)", "number")),
    "truth as the tolerance": ((), {"tolerance": True}, ("tolerance is True",)),
    "too large a tolerance": ((), {"tolerance": 1.5}, ("tolerance is 1.5", "above 0 to 1")),
    "no tolerance": ((), {"tolerance": 0}, ("tolerance is 0", "above 0 to 1")),
    "a tolerance beside a policy": (
        (),
        {"tolerance": 0.01, "policy": encke.Fixed(encke.Absolute(0.1))},
        ("tolerance", "policy=Fixed(", "leave the policy out"),
    ),
    "refresh beside a policy": (
        (),
        {"refresh": 3, "policy": encke.Fixed(encke.Absolute(0.1))},
        ("refresh", "takes its place"),
    ),
    "a budget in unknown units": ((), {"budget": "6 apples"}, ("'6 apples'", "6GiB")),
    "truth as the budget": ((), {"budget": True}, ("budget is True",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_attach_refuses(name: str, model: nn.Module) -> None:
    given, named, words = WRONG[name]
    with pytest.raises(encke.EnckeError) as error:
        encke.attach(model, *given, **named)
    for word in words:
        assert word in str(error.value)
    assert hooks_of(model) is None  # nothing was changed


def test_attach_refuses_the_optimizer_of_another_model(model: nn.Module) -> None:
    other = torch.optim.Adam(nn.Linear(3, 3).parameters())
    own = torch.optim.Adam(model.parameters())
    for given in (other, [own, other]):
        with pytest.raises(
            encke.UnsupportedError, match=r"Adam.*none of the parameters of Seq"
        ):
            encke.attach(model, given)
    encke.attach(model, [own]).detach()


def test_attach_refuses_what_is_no_module(model: nn.Module) -> None:
    with pytest.raises(encke.UnsupportedError, match="the class Linear"):
        encke.attach(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(encke.UnsupportedError, match="Tensor"):
        encke.attach(torch.ones(3))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_attach_refuses_torchscript(model: nn.Module) -> None:
    with pytest.raises(encke.UnsupportedError, match="TorchScript"):
        encke.attach(torch.jit.script(model))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: encke.Fixed(0.01), ("0.01", "RangeRelative(0.01)")),
        (lambda: encke.Fixed(encke.Absolute), ("Absolute",)),
        (lambda: encke.Fixed(encke.Absolute(1), codec="entropie"), ("did you mean entropy?",)),
        (lambda: encke.Fixed(encke.Absolute(1), prefer="sped"), ("did you mean speed?",)),
        (lambda: encke.activations(0.01), ("0.01", "RangeRelative(0.01)")),
        (lambda: encke.Comet("high"), ("share is 'high' (str)",)),
        (lambda: encke.Comet(0.01, refresh=0), ("refresh is 0",)),
        (lambda: encke.Comet(optimizers=[0.1]), ("0.1 (float)",)),
        (lambda: encke.GroupBits("two"), ("mean is 'two' (str)", "1 to 8")),
        (lambda: encke.GroupBits(9), ("mean is 9", "1 to 8")),
        (lambda: encke.GroupBits(2, refresh=1.5), ("refresh is 1.5",)),
        (lambda: Budget("lossless", "6GiB"), ("policy is 'lossless'",)),
        (lambda: Budget(encke.GroupBits(2), 0), ("budget is 0",)),
        (lambda: encke.advise(0.01, torch.ones(2)), ("advise takes a torch.nn.Module",)),
        (lambda: encke.advise(nn.Linear(2, 2), torch.ones(2), loss=3), ("loss is 3",)),
        (lambda: encke.advise(nn.Linear(2, 2), torch.ones(2), steps=0), ("steps is 0",)),
        (lambda: encke.advise(nn.Linear(2, 2), torch.ones(2), tolerance="x"), ("'x' (str)",)),
        (lambda: encke.compress(torch.ones(9), 0.01), ("0.01", "Absolute(1e-3)")),
        (
            lambda: encke.compress(torch.ones(9), encke.Absolute(1), codec="entropi"),
            ("'entropi'", "did you mean entropy?"),
        ),
        (
            lambda: encke.compress(torch.ones(9), encke.Absolute(1), codec="fixed", prefer="x"),
            ("prefer is 'x'", "ratio, speed"),
        ),
        (lambda: encke.compress(torch.ones(9), encke.Absolute(1), codec=["fixed"]), ("codec",)),
    ],
)
def test_other_entry_points_refuse(call: Callable[[], Any], words: tuple[str, ...]) -> None:
    with pytest.raises(encke.EnckeError) as error:
        call()
    for word in words:
        assert word in str(error.value)
