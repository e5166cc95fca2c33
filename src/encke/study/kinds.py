"""The kinds of ways to train that a study compares, with their options.

Plain, what torch offers, published rules, Encke.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from encke.bound import (
    Absolute,
    Bound,
    FixedRate,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)
from encke.control import Adaptive, Comet, Fixed, GroupBits, attach
from encke.study.errors import StudyError
from encke.study.recompute import Stretch, recompute, without
from encke.tape import Policy, Tape

Context = Callable[[], AbstractContextManager[object]]
Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A network that trains in one way.

    around     entered around the forward pass
    plain      entered around steps that shall be plain ones, without `around`
    tape       the tape, where there is one
    stretches  what is recomputed, where something is
    """

    around: Context = nullcontext
    plain: Context = nullcontext
    tape: Tape | None = None
    stretches: tuple[Stretch, ...] = ()


Fit = Callable[[nn.Module, torch.optim.Optimizer, Options], Fitted]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A family of ways.

    options  every option with the value it has unless another is given
    label    for people, from the options; those it does not tell are `silent`
    check    raises for options that cannot be meant
    """

    fit: Fit
    label: Callable[[Options], str]
    options: Options = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    check: Callable[[Options], object] = lambda _: None


def _plain(_network: nn.Module, _optimizer: torch.optim.Optimizer, _options: Options) -> Fitted:
    return Fitted()


def _around(make: Context) -> Fit:
    return lambda _network, _optimizer, _options: Fitted(around=make)


def _checkpoint(
    network: nn.Module, _optimizer: torch.optim.Optimizer, _options: Options
) -> Fitted:
    stretches = tuple(recompute(network))
    return Fitted(plain=partial(without, stretches), stretches=stretches)


def _taped(tape: Tape) -> Fitted:
    return Fitted(tape=tape, plain=tape.paused)


def _with(policy: Callable[[Options], Policy]) -> Fit:
    return lambda network, _optimizer, options: _taped(attach(network, policy=policy(options)))


def _comet(network: nn.Module, optimizer: torch.optim.Optimizer, options: Options) -> Fitted:
    policy = Comet(options["share"], optimizers=[optimizer], model=network)
    return _taped(attach(network, policy=policy))


def _encke(network: nn.Module, optimizer: torch.optim.Optimizer, options: Options) -> Fitted:
    budget = options["budget"] or None
    return _taped(
        attach(
            network,
            optimizer,
            tolerance=options["tolerance"],
            prefer=options["prefer"],
            budget=budget,
            slowdown=math.inf,  # a row must not depend on how fast the machine is
        )
    )


_BOUNDS: dict[str, tuple[type[Bound], str]] = {
    "range": (RangeRelative, "of the range"),
    "rms": (RmsRelative, "of the root mean square"),
    "pointwise": (PointwiseRelative, "of each value"),
    "abs": (Absolute, ""),
}


def _given_bound(options: Options) -> tuple[str, float]:
    given = [name for name in _BOUNDS if options[name] is not None]
    if len(given) != 1:
        raise StudyError(
            f"policy 'fixed' has the bounds {', '.join(given) or 'none'}, it needs one of "
            f"{', '.join(_BOUNDS)}: fixed:range=0.01"
        )
    return given[0], options[given[0]]


def _fixed(options: Options) -> Fixed:
    name, number = _given_bound(options)
    bound: Any = _BOUNDS[name][0]
    return Fixed(
        bound(number),
        codec=options["codec"],
        dither=options["dither"],
        derive=options["derive"],
    )


def _fixed_label(options: Options) -> str:
    name, number = _given_bound(options)
    size = f"{number:g}" if name == "abs" else f"{100 * number:g} % {_BOUNDS[name][1]}"
    return f"fixed, {size}" + (", dithered" if options["dither"] else "")


def _group_label(options: Options) -> str:
    bits = f"{options['bits']:g} bit{'s' * (options['bits'] != 1)}"
    return f"ActNN/GACT's rule, {bits}" if options["adaptive"] else f"group, {bits}"


def _zfp(options: Options) -> Fixed:
    return Fixed(FixedRate(options["rate"]), codec="zfp", derive=options["derive"])


def _group(options: Options) -> GroupBits:
    return GroupBits(options["bits"], adaptive=options["adaptive"], derive=options["derive"])


def _check_encke(options: Options) -> None:
    Adaptive(options["tolerance"], prefer=options["prefer"])


def _bf16() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16)


def _save_on_cpu() -> AbstractContextManager[object]:
    return torch.autograd.graph.save_on_cpu()


#: Each kind of way by its name in a study.
KINDS: dict[str, Kind] = {
    "plain": Kind(fit=_plain, label=lambda _: "plain"),
    "bf16": Kind(fit=_around(_bf16), label=lambda _: "bf16 autocast"),
    "checkpoint": Kind(fit=_checkpoint, label=lambda _: "checkpoint"),
    "save_on_cpu": Kind(fit=_around(_save_on_cpu), label=lambda _: "save_on_cpu"),
    "group": Kind(
        options={"bits": 2, "adaptive": False, "derive": False},
        silent=("derive",),
        fit=_with(_group),
        label=_group_label,
        check=_group,
    ),
    "zfp": Kind(
        options={"rate": 8, "derive": True},
        silent=("derive",),
        fit=_with(_zfp),
        label=lambda o: f"zfp, {o['rate']:g} bits",
        check=_zfp,
    ),
    "fixed": Kind(
        options={
            "range": None,
            "rms": None,
            "pointwise": None,
            "abs": None,
            "dither": False,
            "derive": True,
            "codec": "entropy",
        },
        silent=("derive", "codec"),
        fit=_with(_fixed),
        label=_fixed_label,
        check=_fixed,
    ),
    "comet": Kind(
        options={"share": 0.01},
        fit=_comet,
        label=lambda o: "COMET's rule" + (f", {o['share']:g}" if o["share"] != 0.01 else ""),
    ),
    "encke": Kind(
        options={"tolerance": 0.01, "prefer": "balance", "budget": ""},
        silent=("prefer", "budget"),
        fit=_encke,
        label=lambda o: f"Encke, tolerance {o['tolerance']:g}",
        check=_check_encke,
    ),
}
