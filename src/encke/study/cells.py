"""One training of a study: what, on what, how, from which seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encke.study.settings import Settings
from encke.study.ways import Way

_LONGEST = 96  # characters of a name before its digest


@dataclass(frozen=True, kw_only=True)
class Part:
    """A model or a data set as a study names it.

    name     in the study
    of       what it is: a name of the zoo or of a data source, or `file.py:function`
    options  of it
    """

    name: str
    of: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def given_options(self) -> dict[str, Any]:
        """The options, and what it is where its name does not tell."""
        return ({} if self.of == self.name else {"of": self.of}) | dict(self.options)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "of": self.of, "options": dict(self.options)}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a study's matrix.

    folder  what paths of a user's own files are relative to
    """

    model: Part
    data: Part
    way: Way
    seed: int
    training: Settings
    folder: str = "."

    @property
    def id(self) -> str:
        """Its name, safe for files: equal for equal settings, and only for those."""
        settings = self.to_json()
        del settings["folder"]
        text = json.dumps(settings, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        parts = (Path(self.model.name).stem, Path(self.data.name).stem, str(self.way))
        name = "-".join(re.sub(r"[^A-Za-z0-9_.=]+", "-", part).strip("-.") for part in parts)
        return f"{name[:_LONGEST]}-s{self.seed}-{digest}"

    def __str__(self) -> str:
        return f"{self.model.name} on {self.data.name}, {self.way.label}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model.to_json(),
            "data": self.data.to_json(),
            "policy": {"kind": self.way.kind, "options": dict(self.way.options)},
            "seed": self.seed,
            "training": self.training.to_json(),
            "folder": self.folder,
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Cell:
        """What `to_json` was made of."""
        return cls(
            model=Part(**value["model"]),
            data=Part(**value["data"]),
            way=Way(**value["policy"]),
            seed=value["seed"],
            training=Settings(**value["training"]),
            folder=value["folder"],
        )
