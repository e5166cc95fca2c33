"""`encke store`: what a stored state holds and promises, and other files to and from it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encke.cli.output import print_json, print_table

if TYPE_CHECKING:
    from encke.store import StateReader

_DESCRIPTION = """\
Files of encke.store.save: weights, optimizer state and whole checkpoints within stated errors
(docs/store.md)."""


def add_to(commands: Any) -> None:
    """Add `store` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "store", help="look at, check and convert stored states", description=_DESCRIPTION
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, about, run in (
        ("info", "what a file holds and promises", run_info),
        ("plan", "how a file's budget was shared out: bound and bits of each weight", run_plan),
        (
            "verify",
            "read every byte of a file and its bases; exit 1 if one is damaged",
            run_verify,
        ),
    ):
        action = actions.add_parser(name, help=about, description=f"{about}.".capitalize())
        action.add_argument("files", type=Path, nargs="+", metavar="FILE")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run)
    diff = actions.add_parser("diff", help="how far the tensors of two files lie apart")
    diff.add_argument("files", type=Path, nargs=2, metavar="FILE")
    diff.add_argument("--json", action="store_true", help="print JSON")
    diff.set_defaults(run=run_diff)
    _add_conversions(actions)


def _add_conversions(actions: Any) -> None:
    export = actions.add_parser("export", help="write the model's tensors as .safetensors")
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument("-o", "--output", type=Path, required=True)
    export.add_argument("--only", metavar="PATTERN", help="names, as in 'encoder.*'")
    export.add_argument("--force", action="store_true", help="replace an existing output")
    export.set_defaults(run=run_export)
    pack = actions.add_parser(
        "pack",
        help="store the tensors of a .safetensors or .npz file",
        description="Store weights that come without their model. With --loss, the second "
        "moments of an optimizer stand in for the curvature: --curvature names a file of "
        "torch.save or encke.store.save with the optimizer's state. Tensors of one shape share "
        "their moments' mean. Without any option every bit is kept.",
    )
    pack.add_argument("file", type=Path, metavar="FILE")
    pack.add_argument("-o", "--output", type=Path, required=True)
    pack.add_argument("--loss", type=float, metavar="R", help="relative rise that is allowed")
    pack.add_argument("--curvature", type=Path, metavar="FILE", help="the optimizer's state")
    pack.add_argument("--examples", type=int, metavar="N", help="labels behind one gradient")
    pack.add_argument("--level", type=float, metavar="L", help="the loss as it is")
    pack.add_argument("--rms", type=float, metavar="R", help="errors, of each tensor's rms")
    pack.add_argument("--force", action="store_true", help="replace an existing output")
    pack.set_defaults(run=run_pack)


def run_info(arguments: argparse.Namespace) -> int:
    """Index and report; no tensor is decoded."""
    from encke.store import StateReader

    found = []
    for path in arguments.files:
        with StateReader(path) as stored:
            found.append(_facts(stored))
    if arguments.json:
        print_json(found)
        return 0
    for facts in found:
        print_table(
            ["tensor", "shape", "dtype", "kept as", "within", "bytes", "bits a value"],
            [
                [
                    t["name"],
                    "×".join(map(str, t["shape"])) or "scalar",
                    t["dtype"],
                    t["kept_as"],
                    t["within"],
                    f"{t['bytes']:,.0f}",
                    "" if t["bits"] is None else f"{t['bits']:.2f}",
                ]
                for t in facts["tensors"]
            ],
        )
        plain = facts["plain_bytes"]
        print(f"{facts['file']}: {facts['bytes']:,} bytes for {plain:,}, ", end="")
        print(f"{plain / max(1, facts['bytes']):.2f}×, {facts['links']} file(s) to load")
        for line in _promises(facts["report"]):
            print(line)
    return 0


def _facts(stored: StateReader) -> dict[str, Any]:
    from encke.store.summary import plain_bytes, tensor_bytes
    from encke.store.tree import dtype_name

    sizes = tensor_bytes(stored)
    return {
        "file": str(stored.path),
        "bytes": stored.size,
        "plain_bytes": plain_bytes([entry.facts for entry in stored.entries]),
        "links": stored.links,
        "base": None if stored.base_path is None else str(stored.base_path),
        "report": stored.report,
        "tensors": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "dtype": dtype_name(entry.dtype),
                "kept_as": entry.how + (", delta" if entry.facts.get("on") else ""),
                "within": _within(entry.facts),
                "bytes": sizes[entry.name],
                "bits": 8 * sizes[entry.name] / entry.values if entry.values else None,
            }
            for entry in stored.entries
        ],
    }


def _within(facts: dict[str, Any]) -> str:
    if facts["how"] in ("same", "base"):
        return ""
    if "factor" in facts:
        return f"÷× {facts['factor']:.4g}"
    if "ratio" in facts:
        return f"{facts['ratio']:g} √v"
    if "relative" in facts:
        return f"{facts['relative']:g} |x|"
    return f"± {facts['error']:.4g}" if facts.get("error") else "exact"


def _promises(report: dict[str, Any]) -> list[str]:
    lines = []
    budget = report.get("budget")
    if isinstance(budget, dict):
        told = f"loss {budget['loss']:.6g}, may rise by {budget['allowed']:.4g}, predicted "
        told += f"{budget['predicted']:.4g}"
        if budget.get("measured") is not None:
            told += f", measured {budget['measured']:.4g}"
        lines += [told, f"curvature: {budget['curvature']}", f"promise: {budget['promise']}"]
    metric = report.get("accuracy")
    if isinstance(metric, dict):
        lines.append(
            f"metric {metric['before']:.6g} before, {metric['after']:.6g} after, may fall by "
            f"{metric['allowed']:g}"
        )
    exact = report.get("optimizer", {}).get("exact")
    if exact:
        lines.append(f"kept exactly, not recognised: {', '.join(exact[:5])}")
    return lines


def run_plan(arguments: argparse.Namespace) -> int:
    """The weights of each file, by what they take."""
    from encke.store import StateReader

    rows = []
    for path in arguments.files:
        with StateReader(path) as stored:
            facts = _facts(stored)
        rows += [
            {"file": path.name, **t} for t in facts["tensors"] if t["name"].startswith("model/")
        ]
        promises = _promises(facts["report"])
    if arguments.json:
        print_json(rows)
        return 0
    print_table(
        ["tensor", "kept as", "within", "bits a value"],
        [
            [
                r["name"],
                r["kept_as"],
                r["within"],
                "" if r["bits"] is None else f"{r['bits']:.2f}",
            ]
            for r in rows
        ],
    )
    for line in promises:
        print(line)
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """1 if a file, or one that it is counted from, is damaged."""
    from encke.errors import EnckeError
    from encke.store import StateReader

    results: list[dict[str, Any]] = []
    for path in arguments.files:
        damaged: dict[str, str] = {}
        try:
            with StateReader(path) as stored:
                for name in stored.names:
                    try:
                        stored.check(name)
                        stored.tensor(name)
                    except (EnckeError, OSError) as error:
                        damaged[name] = str(error)
                count = len(stored.names)
        except (EnckeError, OSError) as error:
            damaged, count = {"index": str(error)}, 0
        results.append({"file": str(path), "tensors": count, "damaged": damaged})
    if arguments.json:
        print_json(results)
    else:
        for found in results:
            bad = found["damaged"]
            print(
                f"{found['file']}: " + (f"{len(bad)} damaged" if bad else "every byte is right")
            )
            for name, why in bad.items():
                print(f"  {name}: {why}")
    return 1 if any(found["damaged"] for found in results) else 0


def run_diff(arguments: argparse.Namespace) -> int:
    """Largest and mean differences of tensors of one name."""
    from encke.store import StateReader
    from encke.store.difference import differences

    first, second = arguments.files
    with StateReader(first) as one, StateReader(second) as other:
        rows = differences(one, other)
    if arguments.json:
        print_json(rows)
        return 0
    print_table(
        ["tensor", "largest difference", "rms difference", "of the rms"],
        [
            [r["name"], r["remark"]]
            if r["remark"]
            else [r["name"], f"{r['largest']:.4g}", f"{r['rms']:.4g}", f"{r['relative']:.4g}"]
            for r in rows
        ],
    )
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    """The model as safetensors, which has no place for anything else."""
    from encke.atomic import check_output, replacing
    from encke.cli.tensor_files import check_writable, write_tensors
    from encke.store import StoreError, load

    check_output(arguments.output, force=arguments.force, inputs=[arguments.file])
    state = load(arguments.file, only=arguments.only or "model/*")
    tensors = {n: t for n, t in state.get("model", {}).items() if hasattr(t, "shape")}
    if not tensors:
        raise StoreError(f"{arguments.file} has no tensors of a model that fit")
    check_writable(arguments.output, {name: t.dtype for name, t in tensors.items()})
    with replacing(arguments.output, force=arguments.force) as file:
        write_tensors(file, arguments.output, {n: t.clone() for n, t in tensors.items()})
    print(f"{arguments.output}: {len(tensors)} tensors")
    return 0


def run_pack(arguments: argparse.Namespace) -> int:
    """Weights of another program's file."""
    from encke.atomic import check_output
    from encke.bound import RmsRelative
    from encke.cli.tensor_files import open_tensors
    from encke.store import StoreError, save
    from encke.store.bare import bounds_of

    check_output(arguments.output, force=arguments.force, inputs=[arguments.file])
    if arguments.loss is not None and arguments.rms is not None:
        raise StoreError("give one of --loss and --rms")
    source = open_tensors(arguments.file, dtype=None, shape=None)
    state = {name: source.load(name) for name in source.names}
    bounds: Any = None
    if arguments.rms is not None:
        bounds = RmsRelative(arguments.rms)
    elif arguments.loss is not None:
        if arguments.curvature is None:
            raise StoreError("--loss needs --curvature, the file of an optimizer's state")
        bounds = bounds_of(
            state,
            arguments.curvature,
            loss=arguments.loss,
            examples=arguments.examples,
            level=arguments.level,
        )
    print(save(arguments.output, state, bounds=bounds))
    return 0
