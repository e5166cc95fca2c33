"""`encke bench`: every codec on one's own tensor, side by side."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encke.cli.bound_flags import add_bound, given_bound
from encke.cli.compress import add_raw_input
from encke.cli.fill_flags import add_fill, fill_of, propose
from encke.cli.output import print_json, print_table

if TYPE_CHECKING:
    from encke.bound import Bound
    from encke.cli.measure import Measurement

_DITHERED = ("fixed", "entropy")


def add_to(commands: Any) -> None:
    """Add `bench` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="compare the codecs on the tensors of a file",
        description="Ratio, speed and error of every codec. GB/s count bytes of the original "
        "tensor; beside them stands the share of a plain memory copy's speed, timed in turn "
        "with the codec between buffers that exist already (a codec allocates its result).",
    )
    command.add_argument("input", type=Path, help=".npy, .npz, .safetensors, .nc or raw binary")
    add_bound(command, default="--range 1e-2")
    add_fill(command)
    add_raw_input(command)
    command.add_argument(
        "--codecs",
        metavar="NAMES",
        help="as in fixed,entropy (default: all; +dither after a name dithers)",
    )
    command.add_argument("--tensor", metavar="NAME", help="only this tensor of the file")
    command.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    command.add_argument(
        "--repeat",
        type=int,
        default=5,
        help="repetitions, of which the best counts (default 5)",
    )
    command.add_argument(
        "--backend", help="native or reference (default: the fastest there is)"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure each codec on each tensor and print a table for each tensor."""
    import torch

    from encke.bound import RangeRelative
    from encke.cli.tensor_files import open_tensors
    from encke.errors import UnsupportedError

    for flag in ("threads", "repeat"):
        if getattr(arguments, flag) < 1:
            raise UnsupportedError(
                f"--{flag} is {getattr(arguments, flag)}, allowed is 1 or more"
            )
    bound = given_bound(arguments, default=RangeRelative(1e-2))
    source = open_tensors(arguments.input, dtype=arguments.dtype, shape=arguments.shape)
    names = source.names
    if arguments.tensor is not None:
        if arguments.tensor not in names:
            raise UnsupportedError(
                f"--tensor is {arguments.tensor!r}, the file has {', '.join(names)}"
            )
        names = (arguments.tensor,)
    before = torch.get_num_threads()
    torch.set_num_threads(arguments.threads)
    try:
        tables = [
            _table(name, source.load(name), bound, arguments, own=source.fill(name))
            for name in names
        ]
    finally:
        torch.set_num_threads(before)
    if arguments.json:
        print_json({"threads": arguments.threads, "tensors": tables})
    return 0


def rows_to_measure(given: str | None) -> list[tuple[str, bool]]:
    """Codec names and whether to dither; all of them if none is given.

    >>> rows_to_measure("fixed,entropy+dither")
    [('fixed', False), ('entropy', True)]
    """
    if given is not None:
        return [
            (name.removesuffix("+dither"), name.endswith("+dither"))
            for name in given.replace(",", " ").split()
        ]
    from encke.codec import names

    return [
        (name, dither)
        for name in names()
        for dither in ((False, True) if name in _DITHERED else (False,))
    ]


def _table(
    name: str,
    x: Any,
    bound: Bound,
    arguments: argparse.Namespace,
    *,
    own: tuple[float, ...],
) -> dict[str, Any]:
    from encke.cli.measure import measure
    from encke.cli.progress import announced
    from encke.codec import registry
    from encke.errors import EnckeError

    chosen = rows_to_measure(arguments.codecs)
    fill = fill_of(arguments, own)
    proposed = propose(name, x, fill)
    for codec, _ in chosen:
        if codec != "auto":
            registry.by_name(codec)
    results: list[dict[str, Any]] = []
    rows: list[list[str]] = []
    for codec, dither in announced(chosen, f"measuring {name}"):
        label = codec + ("+dither" if dither else "")
        try:
            found = measure(
                x,
                bound,
                codec=codec,
                dither=dither,
                fill=fill,
                backend=arguments.backend,
                repeat=arguments.repeat,
            )
        except EnckeError as error:
            results.append({"codec": codec, "dither": dither, "problem": str(error)})
            rows.append([label, str(error)])
        else:
            results.append(as_record(found) | {"codec": codec})
            rows.append([label if codec != "auto" else f"auto: {found.codec}", *_cells(found)])
    shape = "×".join(map(str, x.shape)) or "scalar"
    kind = str(x.dtype).removeprefix("torch.")
    if not arguments.json:
        copies = [r["memcpy_gbps"] for r in results if "memcpy_gbps" in r]
        copy = f", memcpy {max(copies):.2f} GB/s" if copies else ""
        print_table(
            [
                "codec",
                "ratio",
                "GB/s in",
                "of memcpy",
                "GB/s out",
                "of memcpy",
                "max error / bound",
                "PSNR dB",
            ],
            rows,
            title=f"{name}: {shape} {kind}, {bound!r}, {arguments.threads} thread(s){copy}",
        )
    return {
        "tensor": name,
        "shape": list(x.shape),
        "dtype": kind,
        "bound": bound.kind,
        "bound_number": bound.number,
        "fill": list(fill or ()),
        "proposed_fill": list(proposed),
        "codecs": results,
    }


def as_record(found: Measurement) -> dict[str, Any]:
    """A measurement as plain values, for JSON and CSV."""
    return {
        "codec": found.codec,
        "dither": found.dither,
        "ratio": found.ratio,
        "bytes": found.nbytes,
        "plain_bytes": found.plain_nbytes,
        "encode_gbps": found.encode_rate / 1e9,
        "decode_gbps": found.decode_rate / 1e9,
        "memcpy_gbps": found.plain_nbytes / found.seconds.memcpy / 1e9,
        "encode_of_memcpy": found.seconds.memcpy / found.seconds.encode,
        "decode_of_memcpy": found.seconds.memcpy / found.seconds.decode,
        "promised": found.promised,
        "max_error": found.comparison.max_error,
        "max_pointwise": found.comparison.max_pointwise,
        "error_over_bound": found.error_over_bound,
        "psnr": found.comparison.psnr,
    }


def _cells(found: Measurement) -> list[str]:
    used = found.error_over_bound
    return [
        f"{found.ratio:.2f}×",
        f"{found.encode_rate / 1e9:.3f}",
        f"{found.seconds.memcpy / found.seconds.encode:.1%}",
        f"{found.decode_rate / 1e9:.3f}",
        f"{found.seconds.memcpy / found.seconds.decode:.1%}",
        "exact"
        if found.comparison.max_error == 0.0
        else "–"
        if math.isnan(used)
        else f"{used:.4f}",
        "∞" if math.isinf(found.comparison.psnr) else f"{found.comparison.psnr:.1f}",
    ]
