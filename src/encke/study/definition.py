"""What a study compares: `study.toml`, or what a command line says, made into cells."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encke.study import data as sources
from encke.study import zoo
from encke.study.cells import Cell, Part
from encke.study.errors import StudyError, check_keys, unknown
from encke.study.fitting import check_fit
from encke.study.settings import Settings
from encke.study.ways import Way, parse

_KEYS = ("name", "title", "models", "data", "policies", "seeds", "training", "pairs", "exclude")
_PAIR_KEYS = ("models", "data", "policies", "seeds", "training")
_EXCLUDE_KEYS = ("model", "data", "policy", "seed")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study and its cells in order.

    given  the definition as it was written
    """

    name: str
    title: str | None
    cells: tuple[Cell, ...]
    given: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path) -> Study:
    """The study that a TOML file defines; its own files are looked for beside it."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path} is not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise StudyError(f"{path} is not UTF-8: {error}") from None
    return make(given, name=path.stem, folder=path.resolve().parent)


def make(given: Mapping[str, Any], *, name: str, folder: Path) -> Study:
    """The study of a definition; `name` unless it has one of its own.

    >>> study = make(
    ...     {"models": ["mlp"], "data": ["digits"], "policies": ["plain", "encke"]},
    ...     name="small", folder=Path("."))
    >>> [str(cell) for cell in study.cells]
    ['mlp on digits, plain, seed 0', 'mlp on digits, Encke, tolerance 0.01, seed 0']
    """
    check_keys("the study", given, _KEYS)
    title = given.get("title")
    for key, value in (("name", given.get("name", name)), ("title", title or "")):
        if not isinstance(value, str):
            raise StudyError(f"{key} is {value!r}, allowed is a text")
    models = _tables(given, "models")
    data = _tables(given, "data")
    pairs = given.get("pairs", [{}])
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise StudyError("pairs are written as [[pairs]], each with models and data")
    cells: dict[str, Cell] = {}
    for pair in pairs:
        for cell in _cells_of(pair, given, models, data, folder):
            cells.setdefault(cell.id, cell)
    kept = [cell for cell in cells.values() if not _excluded(cell, given)]
    if not kept:
        raise StudyError("the study has no cells left: exclude leaves nothing to run")
    for cell in kept:
        check_fit(cell.model, cell.data)
    return Study(
        name=given.get("name", name), title=title, cells=tuple(kept), given=dict(given)
    )


def _cells_of(
    pair: Mapping[str, Any],
    given: Mapping[str, Any],
    models: Mapping[str, Mapping[str, Any]],
    data: Mapping[str, Mapping[str, Any]],
    folder: Path,
) -> Iterable[Cell]:
    check_keys("[[pairs]]", pair, _PAIR_KEYS)
    policies = pair.get("policies", given.get("policies", ["plain", "encke"]))
    seeds = pair.get("seeds", given.get("seeds", [0]))
    ways = [_way(one) for one in _list(policies, "policies")]
    for model_name in _names(pair, "models", models):
        for data_name in _names(pair, "data", data):
            model, source = models[model_name], data[data_name]
            training = Settings.of(
                _table(given, "training"),
                _table(model, "training"),
                _table(source, "training"),
                _table(pair, "training"),
            )
            for seed in _list(seeds, "seeds"):
                if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
                    raise StudyError(f"a seed is {seed!r}, allowed are whole numbers from 0")
                for way in ways:
                    yield Cell(
                        model=_part(model_name, model, "network", zoo.names()),
                        data=_part(data_name, source, "source", sources.names()),
                        way=way,
                        seed=seed,
                        training=training,
                        folder=str(folder),
                    )


def _part(name: str, table: Mapping[str, Any], key: str, known: Sequence[str]) -> Part:
    of = table.get(key, name)
    options = {k: v for k, v in table.items() if k not in (key, "training")}
    if ":" in of:  # a user's own function: what it takes is known when it is called
        return Part(name=name, of=of, options=options)
    what = "model" if key == "network" else "data"
    if of not in known:
        raise unknown(what, of, [*known, "file.py:function"])
    if what == "model":
        check_keys(f"model {name!r}", options, zoo.model(of).options)
    else:
        allowed = sources.options(of)
        if sources.ANY not in allowed:
            check_keys(f"data {name!r}", options, allowed)
    return Part(name=name, of=of, options=options)


def _way(given: Any) -> Way:
    if isinstance(given, Way):
        return given
    if not isinstance(given, str):
        raise StudyError(f"a policy is {given!r}, allowed is a text as 'encke:tolerance=0.02'")
    return parse(given)


def _tables(given: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    """Names with their options: from a list of names, or from a table of tables."""
    value = given.get(key, [])
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = {name: {} for name in value}
    if not isinstance(value, dict) or not all(isinstance(t, dict) for t in value.values()):
        raise StudyError(f"{key} are a list of names, or tables [{key}.NAME] with options")
    if not value:
        raise StudyError(f"the study has no {key}: write {key} = [...] or a table [{key}.NAME]")
    return value


def _table(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = given.get(key, {})
    if not isinstance(value, dict):
        raise StudyError(f"{key} is {value!r}, allowed is a table of settings")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise StudyError(f"{what} is {value!r}, allowed is a list with at least one entry")
    return value


def _names(pair: Mapping[str, Any], key: str, known: Mapping[str, Any]) -> list[str]:
    names = _list(pair.get(key, list(known)), key)
    for name in names:
        if name not in known:
            raise unknown(f"{key} of [[pairs]]", str(name), known)
    return names


def _excluded(cell: Cell, given: Mapping[str, Any]) -> bool:
    for one in given.get("exclude", []):
        if not isinstance(one, dict) or not one:
            raise StudyError(f"exclude has {one!r}, allowed are tables as {{model = 'mlp'}}")
        check_keys("exclude", one, _EXCLUDE_KEYS)
        policy = one.get("policy")
        if (
            one.get("model") in (None, cell.model.name)
            and one.get("data") in (None, cell.data.name)
            and one.get("seed") in (None, cell.seed)
            and (policy is None or policy == cell.way.kind or parse(policy) == cell.way)
        ):
            return True
    return False
