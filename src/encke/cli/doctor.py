"""`encke doctor`: what this installation is, and whether it keeps its promises here."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from encke.cli.output import print_json

_PACKAGES = ("torch", "numpy", "zstandard", "rich")
_OPTIONAL = ("zfpy", "safetensors", "triton")
_OPENMP = ("libgomp", "libomp", "libiomp")


def add_to(commands: Any) -> None:
    """Add `doctor` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="describe the installation and test it",
        description="Versions, backends, threads, and a self-test of every codec on every "
        "backend. Exits 1 if the self-test fails.",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print everything found; 1 if a codec did not keep its promise."""
    from encke.cli.self_test import trials

    found = _installation()
    tried = list(trials())
    failed = [t for t in tried if t.problem]
    found["self_test"] = {
        "trials": len(tried),
        "failed": [
            {
                "codec": t.codec,
                "way": t.way,
                "encoder": t.encoder,
                "decoder": t.decoder,
                "problem": t.problem,
            }
            for t in failed
        ],
    }
    if arguments.json:
        print_json(found)
    else:
        _print(found)
    return 1 if failed else 0


def _installation() -> dict[str, Any]:
    import torch

    from encke import __version__
    from encke.ops import triton
    from encke.ops.select import native_problem, select, triton_problem

    runtimes = openmp_runtimes()
    return {
        "versions": {
            "encke": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES + _OPTIONAL},
        },
        "backend": select(torch.device("cpu")).name,
        "native_problem": native_problem(),
        **_instruction_sets(),
        "triton_problem": triton_problem(),
        "gpu": _accelerators(),
        "triton_tried_on": triton.device_here() if triton_problem() is None else None,
        "torch_threads": torch.get_num_threads(),
        "openmp_runtimes": runtimes,
        "warnings": _warnings(runtimes),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _instruction_sets() -> dict[str, Any]:
    from encke.errors import BackendError
    from encke.ops import native

    try:
        return {"isa": native.isa(), "isa_available": native.isa_available()}
    except BackendError:
        return {"isa": None, "isa_available": []}


def _accelerators() -> list[dict[str, str]]:
    """The devices beside the CPU, and the backend that tensors there take."""
    import torch

    from encke.ops.select import select
    from encke.ops.triton import DEVICES

    found = []
    for kind in DEVICES:
        module = torch.get_device_module(kind)
        for number in range(module.device_count()):
            device = torch.device(kind, number)
            name = module.get_device_name(device)
            found.append({"device": str(device), "name": name, "backend": select(device).name})
    return found


def openmp_runtimes(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """The OpenMP libraries that this process has loaded, where the system tells."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    # Six columns, of which the last is a path and may hold spaces.
    paths = {
        columns[5] for columns in (line.split(maxsplit=5) for line in lines) if columns[5:]
    }
    return sorted(path for path in paths if Path(path).name.startswith(_OPENMP))


def _warnings(runtimes: list[str]) -> list[str]:
    if len(runtimes) > 1:
        return [
            f"{len(runtimes)} OpenMP runtimes are loaded, each with threads of its own: "
            "torch.set_num_threads will not hold for all, and cores may be claimed twice"
        ]
    return []


def _print(found: dict[str, Any]) -> None:
    for name, number in found["versions"].items():
        print(f"{name:<16}{number or 'not installed'}")
    print(f"{'backend':<16}{found['backend']}")
    if found["native_problem"]:
        print(f"{'':<16}{found['native_problem']}")
    else:
        others = ", ".join(found["isa_available"])
        print(f"{'instructions':<16}{found['isa']} (available: {others})")
    for gpu in found["gpu"]:
        print(f"{gpu['device']:<16}{gpu['name']}, backend {gpu['backend']}")
    if not found["gpu"]:
        print(f"{'gpu':<16}none found")
    if found["triton_problem"]:
        print(f"{'triton':<16}{found['triton_problem']}")
    else:
        where = found["triton_tried_on"]
        print(
            f"{'triton':<16}{f'self-test on {where}' if where else 'there, not tried: no GPU'}"
        )
    print(f"{'torch threads':<16}{found['torch_threads']}")
    print(f"{'OpenMP':<16}{', '.join(found['openmp_runtimes']) or 'none loaded'}")
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    outcome = found["self_test"]
    for failure in outcome["failed"]:
        print(
            f"failed: {failure['codec']} ({failure['way']}), encoded by {failure['encoder']}, "
            f"decoded by {failure['decoder']}: {failure['problem']}"
        )
    good = outcome["trials"] - len(outcome["failed"])
    print(f"{'self-test':<16}{good} of {outcome['trials']} round trips within their bound")
