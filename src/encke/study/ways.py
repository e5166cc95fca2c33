"""A way to train, as a study writes it: a kind and its options.

`encke:tolerance=0.02,prefer=speed`; what is not given has the value of `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from encke.study.errors import StudyError, check_keys, unknown
from encke.study.kinds import KINDS, Fitted


@dataclass(frozen=True, kw_only=True)
class Way:
    """A kind with all its options.

    >>> way = parse("encke:tolerance=0.02")
    >>> way.label, str(way)
    ('Encke, tolerance 0.02', 'encke:tolerance=0.02')
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown("policy", self.kind, KINDS)
        kind = KINDS[self.kind]
        check_keys(f"policy {self.kind!r}", self.options, kind.options)
        complete = dict(kind.options)
        for name, value in self.options.items():
            complete[name] = _like(kind.options[name], value, f"{self.kind}:{name}")
        object.__setattr__(self, "options", MappingProxyType(complete))
        kind.check(complete)

    def fit(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> Fitted:
        """Let `network` train in this way from now on."""
        return KINDS[self.kind].fit(network, optimizer, self.options)

    @property
    def label(self) -> str:
        """For people."""
        kind = KINDS[self.kind]
        rest = [
            f"{name} {_text(self.options[name])}"
            for name in kind.silent
            if self.options[name] != kind.options[name]
        ]
        return ", ".join([kind.label(self.options), *rest])

    def __str__(self) -> str:
        default = KINDS[self.kind].options
        given = [f"{k}={_text(v)}" for k, v in self.options.items() if v != default[k]]
        return f"{self.kind}:{','.join(given)}" if given else self.kind


def parse(text: str) -> Way:
    """The way that is written as `kind` or `kind:option=value,option=value`.

    >>> parse("fixed:range=0.1,dither=true").label
    'fixed, 10 % of the range, dithered'
    """
    kind, _, written = text.strip().partition(":")
    options: dict[str, Any] = {}
    for piece in filter(None, written.split(",")):
        name, equals, value = piece.partition("=")
        if not equals:
            raise StudyError(
                f"policy is {text!r}, of which {piece!r} is no option=value; write for "
                "instance encke:tolerance=0.02"
            )
        options[name.strip()] = value.strip()
    return Way(kind=kind, options=options)


def parse_list(text: str) -> list[Way]:
    """Several ways, separated by commas; options after the first are recognised by their "=".

    >>> [str(way) for way in parse_list("plain,fixed:range=0.1,dither=true,encke")]
    ['plain', 'fixed:range=0.1,dither=true', 'encke']
    """
    found: list[str] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        if found and re.match(r"^\w+\s*=", piece):
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return [parse(one) for one in found]


def _like(default: Any, value: Any, name: str) -> Any:
    """`value`, which may be text, as the type of `default`; None means an optional number."""
    if isinstance(value, str) and not isinstance(default, str):
        words: dict[str, Any] = {"true": True, "false": False, "none": None}
        if value.lower() in words:
            value = words[value.lower()]
        else:
            try:
                value = float(value)
            except ValueError:
                raise StudyError(f"{name} is {value!r}, allowed is {_kind(default)}") from None
    if isinstance(default, bool) and not isinstance(value, bool):
        raise StudyError(f"{name} is {value!r}, allowed are true and false")
    if isinstance(value, bool) and not isinstance(default, bool):
        raise StudyError(f"{name} is {value!r}, allowed is {_kind(default)}")
    if isinstance(default, str) and not isinstance(value, str):
        raise StudyError(f"{name} is {value!r}, allowed is a word")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if float(value).is_integer() else float(value)
    return value


def _kind(default: Any) -> str:
    return "true or false" if isinstance(default, bool) else "a number"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
