"""`encke train`: one network on one data set in one way, in a directory that can be resumed."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encke.cli.output import print_json, print_table

if TYPE_CHECKING:
    from encke.study.definition import Study
    from encke.study.results import Row
    from encke.study.train import Scalars
    from encke.wire.wrap import Wrapped

_DESCRIPTION = """\
Train one network and write its curve, and at the end a row of results as `encke study run`
does: bytes kept, peak memory, step time beside plain steps, errors of the gradients. With
--resume, one that was interrupted goes on from its last checkpoint to the same weights.

On several ranks: torchrun --nproc-per-node=2 -m encke train resnet18 --data digits --wire auto.
Each rank trains on its part of every batch; the first one writes and prints."""


def add_to(commands: Any) -> None:
    """Add `train` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "train", help="train one network in one way", description=_DESCRIPTION
    )
    command.add_argument("model", help="a model's name, or file.py:function")
    command.add_argument(
        "--data", required=True, metavar="D", help="a data set: a name, or file.py:function"
    )
    command.add_argument(
        "--policy",
        default="encke",
        metavar="P",
        help="how it trains: plain, encke:tolerance=0.02, checkpoint, … (default encke)",
    )
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="where to (default runs/ and the training's id)"
    )
    add_training_options(command)
    command.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    command.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="steps between checkpoints (default: at every point of the curve)",
    )
    command.add_argument(
        "--save-every",
        type=int,
        metavar="N",
        help="steps between files of the store in DIR/saved: weights and optimizer state, each "
        "as what changed since the one before",
    )
    command.add_argument(
        "--save-loss",
        type=float,
        metavar="R",
        help="relative rise of the loss that such a file may cost (default: every bit is kept)",
    )
    command.add_argument(
        "--wire",
        metavar="W",
        help="with torchrun, how ranks exchange gradients: auto (measure, then choose the "
        "fastest), off (plain DDP), a tolerance as 0.01, or the file of a plan (the wire.json "
        "of an earlier training)",
    )
    command.add_argument("--resume", action="store_true", help="go on with the training in DIR")
    command.add_argument(
        "--tensorboard", type=Path, metavar="LOG", help="also write events for TensorBoard"
    )
    command.add_argument("--json", action="store_true", help="print the row as JSON")
    command.set_defaults(run=run)


def add_training_options(command: Any) -> None:
    """What `encke train` and `encke study run` without a study.toml have in common."""
    command.add_argument("--epochs", type=int, metavar="N", help="passes over the data")
    command.add_argument("--steps", type=int, metavar="N", help="steps, where epochs are long")
    command.add_argument("--batch", type=int, metavar="N", help="examples of a step")
    command.add_argument("--optimizer", metavar="O", help="sgd (default), adamw or adam")
    command.add_argument("--rate", type=float, metavar="R", help="learning rate")
    command.add_argument(
        "--model-options", default="", metavar="K=V,…", help="of the model, as depth=8"
    )
    command.add_argument(
        "--data-options", default="", metavar="K=V,…", help="of the data, as size=32"
    )


def training_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of `add_training_options` that are on the command line."""
    names = ("epochs", "steps", "batch", "optimizer", "rate")
    found = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def part_given(name: str, options: str) -> dict[str, dict[str, Any]]:
    """A model or data set with its options, as a definition has it.

    >>> part_given("resnet_cifar", "depth=8,shortcut=pad")
    {'resnet_cifar': {'depth': 8, 'shortcut': 'pad'}}
    """
    from encke.errors import UnsupportedError

    found: dict[str, Any] = {}
    for piece in filter(None, options.split(",")):
        key, equals, value = piece.partition("=")
        if not equals:
            raise UnsupportedError(f"{piece!r} of {options!r} is no option=value")
        found[key.strip()] = _value(value.strip())
    return {name: found}


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def run(arguments: argparse.Namespace) -> int:
    """0 when the training has ended."""
    from encke.errors import UnsupportedError
    from encke.study.definition import make
    from encke.study.ranks import started_by_torchrun
    from encke.study.summary import NAMES, table
    from encke.study.train import train

    definition = {
        "models": part_given(arguments.model, arguments.model_options),
        "data": part_given(arguments.data, arguments.data_options),
        "policies": [arguments.policy],
        "seeds": [arguments.seed],
        "training": training_given(arguments),
    }
    study = make(definition, name=_name(arguments.out), folder=Path.cwd())
    out = arguments.out or Path("runs") / study.cells[0].id
    options = {
        "resume": arguments.resume,
        "every": arguments.every,
        "save_every": arguments.save_every,
        "save_loss": arguments.save_loss,
        "scalars": _tensorboard(arguments.tensorboard),
        "on_point": _say,
    }
    if arguments.wire is not None:
        row = _train_on_ranks(study, out, arguments.wire, options)
    elif started_by_torchrun():
        raise UnsupportedError(
            f"this is one of {os.environ['WORLD_SIZE']} processes that would all write to "
            f"{out}; give --wire auto to let them train together"
        )
    else:
        row = train(study, out, **options)
    if row is None:
        return 0
    if arguments.json:
        print_json(row)
    else:
        print_table(*table([row]), title=f"Results in {out}", names=NAMES)
    return 0


def _name(out: Path | None) -> str:
    return (out.name if out is not None else "") or "training"


def _train_on_ranks(study: Study, out: Path, given: str, options: dict[str, Any]) -> Row | None:
    """The row, on the first rank; None on the others."""
    from encke.study.exchange import parse, told
    from encke.study.ranks import joined
    from encke.study.train import train

    wire = parse(given)
    used: list[Wrapped] = []

    def explain(wrapped: Wrapped) -> None:
        used.append(wrapped)
        if wrapped.plan is not None:
            print(wrapped.explain(), file=sys.stderr, flush=True)

    with joined() as ranks:
        row = train(study, out, ranks=ranks, wire=wire, on_plan=explain, **options)
        if used:
            print(f"{ranks.world} ranks: {told(used[0])}", file=sys.stderr, flush=True)
        return row if ranks.first else None


def _say(point: dict[str, Any]) -> None:
    known = {name: value for name, value in point.items() if value is not None}
    told = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in known.items())
    print(", ".join(told), file=sys.stderr, flush=True)


def _tensorboard(folder: Path | None) -> Scalars | None:
    if folder is None:
        return None
    from importlib import import_module

    from encke.errors import UnsupportedError

    try:
        writers = import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise UnsupportedError(
            f"--tensorboard needs the package tensorboard, which cannot be imported ({error}); "
            "install it with: pip install tensorboard"
        ) from None
    found: Scalars = writers.SummaryWriter(folder)
    return found
