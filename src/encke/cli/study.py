"""`encke study`: a matrix of trainings, run and reported."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encke.cli.output import print_json, print_table
from encke.cli.train import add_training_options, part_given, training_given

if TYPE_CHECKING:
    from encke.study.definition import Study
    from encke.study.run import Outcome

_RUN = """\
Train every network on every data set in every way and from every seed that a study.toml lists,
each in a process of its own, and write a row of results for each. Cells that have their row are
not run again: after a crash or Ctrl-C the same command goes on where it stopped.

In place of a study.toml, name a network and its data: one of the package (resnet_cifar) or a
function of yours (my_model.py:build, my_data.py:loaders). docs/how-to-study.md shows both."""

_REPORT = """\
Make one self-contained page of the results that `encke study run` wrote."""


def add_to(commands: Any) -> None:
    """Add `study` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "study", help="compare ways to train: run a study, report it", description=__doc__
    )
    parts = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(parts)
    _add_report(parts)


def _add_run(parts: Any) -> None:
    command: argparse.ArgumentParser = parts.add_parser(
        "run",
        help="run the cells of a study that have no result yet",
        description=_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("study", help="study.toml, or a model: a name, or file.py:function")
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="results directory (default results/NAME)"
    )
    command.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="cells at a time (default 1)"
    )
    command.add_argument("--retry", action="store_true", help="run failed cells again")
    command.add_argument("--json", action="store_true", help="print the outcome as JSON")
    group = command.add_argument_group("without a study.toml")
    group.add_argument("--data", metavar="D", help="a data set: a name, or file.py:function")
    group.add_argument(
        "--policies",
        metavar="P,…",
        help="ways to train, as plain,encke:tolerance=0.02,checkpoint (default plain,encke)",
    )
    group.add_argument("--seeds", metavar="S,…", help="as 0,1,2 (default 0)")
    add_training_options(group)
    command.set_defaults(run=run)


def _add_report(parts: Any) -> None:
    command: argparse.ArgumentParser = parts.add_parser(
        "report", help="make a page of a study's results", description=_REPORT
    )
    command.add_argument("results", type=Path, help="directory that a study was run into")
    command.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page"
    )
    command.add_argument("--force", action="store_true", help="replace an existing FILE")
    command.add_argument("--json", action="store_true", help="print what was written as JSON")
    command.set_defaults(run=report)


def run(arguments: argparse.Namespace) -> int:
    """0 if every cell is done, 1 if one has failed, 130 after Ctrl-C."""
    from encke.cli.study_progress import watcher
    from encke.study.run import run as run_study

    study = study_of(arguments)
    directory = arguments.out or Path("results", study.name)
    with watcher() as watching:
        outcome = run_study(
            study, directory, jobs=arguments.jobs, retry=arguments.retry, watcher=watching
        )
    if arguments.json:
        print_json(_as_json(outcome))
    else:
        _print(outcome)
    if outcome.interrupted:
        print(
            f"encke: interrupted, {len(outcome.missing)} cells are left; run it again to go on",
            file=sys.stderr,
        )
        return 130
    return 1 if outcome.failed else 0


def study_of(arguments: argparse.Namespace) -> Study:
    """The study that a command line means."""
    from encke.errors import UnsupportedError
    from encke.study.definition import make, read

    training = training_given(arguments)
    if arguments.study.endswith(".toml"):
        named = ("data", "policies", "seeds", "model_options", "data_options")
        extra = [name.replace("_", "-") for name in named if getattr(arguments, name)]
        extra += training
        if extra:
            raise UnsupportedError(
                f"--{', --'.join(extra)} belong into {arguments.study}, which defines the study"
            )
        return read(Path(arguments.study))
    if arguments.data is None:
        raise UnsupportedError(
            f"{arguments.study} is a model and needs --data: a name, or file.py:function; a "
            "study's own file ends in .toml"
        )
    from encke.study.ways import parse_list

    definition: dict[str, Any] = {
        "models": part_given(arguments.study, arguments.model_options),
        "data": part_given(arguments.data, arguments.data_options),
        "policies": [str(way) for way in parse_list(arguments.policies or "plain,encke")],
        "seeds": _numbers(arguments.seeds or "0"),
        "training": training,
    }
    name = Path(arguments.study.partition(":")[0]).stem
    return make(definition, name=name, folder=Path.cwd())


def _numbers(text: str) -> list[int]:
    from encke.errors import UnsupportedError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UnsupportedError(f"--seeds is {text!r}, allowed are numbers as 0,1,2") from None


def _print(outcome: Outcome) -> None:
    from encke.study.summary import NAMES, table

    if outcome.rows:
        title = f"{outcome.directory}, means over seeds"
        print_table(*table(outcome.rows), title=title, names=NAMES)
    for row in outcome.rows:
        if row["status"] == "failed":
            error = row["error"]
            print(
                f"failed: {row['cell']}: {error['type']}: {error['message']}", file=sys.stderr
            )


def _as_json(outcome: Outcome) -> dict[str, Any]:
    from dataclasses import asdict

    from encke.study.summary import summarise

    return {
        "directory": str(outcome.directory),
        "ran": outcome.ran,
        "done": sum(row["status"] == "done" for row in outcome.rows),
        "failed": outcome.failed,
        "missing": outcome.missing,
        "interrupted": outcome.interrupted,
        "table": [asdict(one) for one in summarise(outcome.rows)],
    }


def report(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from importlib import import_module

    from encke.atomic import check_output, write_text
    from encke.errors import UnsupportedError
    from encke.study import results

    inputs = results.files(arguments.results)
    check_output(arguments.out, force=arguments.force, inputs=inputs)
    found = results.read(arguments.results)
    if not found.rows:
        raise UnsupportedError(
            f"{arguments.results} has no finished cell yet; run the study first"
        )
    try:
        page = import_module("encke.study.report").page
    except ModuleNotFoundError:
        raise UnsupportedError(
            "this installation has no encke.study.report, which makes the page; the numbers "
            f"are in {arguments.results}/results.jsonl"
        ) from None
    write_text(arguments.out, page(found.study, found.rows), force=arguments.force)
    facts = {
        "page": str(arguments.out),
        "cells": len(found.rows),
        "missing": found.missing,
    }
    if arguments.json:
        print(json.dumps(facts))
    else:
        missing = f", {len(found.missing)} more are not run yet" if found.missing else ""
        print(f"{arguments.out}: {len(found.rows)} cells{missing}")
    return 0
