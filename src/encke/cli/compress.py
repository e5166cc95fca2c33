"""`encke compress`: a file of tensors becomes a stream, or an archive of streams."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encke.cli.bound_flags import add_bound, given_bound
from encke.cli.fill_flags import add_fill, fill_of
from encke.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from encke.bound import Bound
    from encke.codec import Packed

CODECS_HELP = "auto (default), fixed, entropy, predict, group, mask, index, lossless or zfp"


def add_to(commands: Any) -> None:
    """Add `compress` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "compress",
        help="compress the tensors of a file",
        description="Compress .npy, .npz, .safetensors, .nc or raw binary. Integers and "
        "booleans are always kept exactly. A .nc file's _FillValue and missing_value are fill "
        "values, and its attributes come along.",
    )
    command.add_argument("input", type=Path, help="file to compress")
    command.add_argument("-o", "--output", type=Path, help="default: the input's name, .encke")
    add_bound(command)
    add_fill(command)
    add_raw_input(command)
    command.add_argument("--codec", default="auto", help=CODECS_HELP)
    command.add_argument(
        "--prefer",
        choices=("ratio", "speed"),
        default="ratio",
        help="what codec auto looks for (default ratio)",
    )
    command.add_argument(
        "--dither",
        action="store_true",
        help="make the error uniform and unbiased, still inside the bound",
    )
    command.add_argument("--seed", type=int, default=0, help="of the dither (default 0)")
    command.add_argument(
        "--keep-nonzero",
        action="store_true",
        help="a value that is not zero never decodes to zero",
    )
    command.add_argument(
        "--backend", help="native or reference (default: the fastest there is)"
    )
    command.add_argument(
        "--verify",
        action="store_true",
        help="decode again and report the largest error; exit 1 if the bound does not hold",
    )
    command.add_argument("--force", action="store_true", help="replace an existing output")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def add_raw_input(command: argparse.ArgumentParser) -> None:
    """Add the flags that say what a raw file holds."""
    from encke.cli.tensor_files import DTYPE_NAMES

    raw = command.add_argument_group("raw binary input")
    raw.add_argument("--dtype", metavar="TYPE", help=", ".join(DTYPE_NAMES))
    raw.add_argument("--shape", metavar="SIZES", help="as in 110,64,128")


def run(arguments: argparse.Namespace) -> int:
    """Compress every tensor of the input file and write the result at once."""
    from encke.atomic import check_output, replacing
    from encke.cli.progress import tracked
    from encke.cli.tensor_files import open_tensors
    from encke.codec import archive

    output: Path = arguments.output or arguments.input.with_suffix(".encke")
    check_output(output, force=arguments.force, inputs=[arguments.input])
    bound = given_bound(arguments)
    source = open_tensors(arguments.input, dtype=arguments.dtype, shape=arguments.shape)
    streams: dict[str, bytes] = {}
    report: list[dict[str, Any]] = []
    for name in tracked(source.names, "compressing"):
        x = source.load(name)
        fill = fill_of(arguments, source.fill(name))
        packed = _packed(name, x, bound, arguments, fill=fill, alone=not source.named)
        streams[name] = packed.to_bytes()
        report.append(_facts(name, packed, len(streams[name])))
        if arguments.verify:
            report[-1] |= _verified(x, streams[name], arguments.backend, fill or ())
    with replacing(output, force=arguments.force) as file:
        if source.named:
            beside = () if source.attributes is None else (source.attributes,)
            file.writelines(archive.parts(streams, *beside))
        else:
            file.write(streams[source.names[0]])
    _print(report, output, arguments)
    broken = [facts["name"] for facts in report if facts.get("bound_held") is False]
    if broken:
        print(f"encke: the bound does not hold for {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


def _packed(
    name: str,
    x: Tensor,
    bound: Bound,
    arguments: argparse.Namespace,
    *,
    fill: tuple[float, ...] | None,
    alone: bool,
) -> Packed:
    """`x` compressed as asked; in a file of several, a codec that takes `x` stands in."""
    from encke.bound import Lossless
    from encke.codec import compress, registry, stream
    from encke.errors import EnckeError, UnsupportedError

    codec: str = arguments.codec
    try:
        if x.dtype not in stream.DTYPE_IDS:
            allowed = ", ".join(str(d).removeprefix("torch.") for d in stream.DTYPE_IDS)
            raise UnsupportedError(f"dtype is {x.dtype}, allowed are {allowed}")
        if codec != "auto" and not alone and x.dtype not in registry.by_name(codec).dtypes:
            codec = "auto"
        return compress(
            x,
            bound if x.dtype.is_floating_point else Lossless(),
            codec=codec,
            prefer=arguments.prefer,
            dither=arguments.dither and x.dtype.is_floating_point,
            seed=arguments.seed,
            keep_nonzero=arguments.keep_nonzero,
            fill=fill,
            backend=arguments.backend,
        )
    except EnckeError as error:
        raise type(error)(str(error) if alone else f"tensor {name!r}: {error}") from None


def _facts(name: str, packed: Packed, written: int) -> dict[str, Any]:
    return {
        "name": name,
        "shape": list(packed.shape),
        "dtype": str(packed.dtype).removeprefix("torch."),
        "codec": packed.codec,
        "why": packed.why,
        "bound": packed.bound.kind,
        "bound_number": packed.bound.number,
        "promised": packed.promised,
        "holes": packed.holes,
        "plain_bytes": packed.plain_nbytes,
        "bytes": written,
        "ratio": packed.plain_nbytes / written,
    }


def _verified(
    x: Tensor, written: bytes, backend: str | None, fill: tuple[float, ...]
) -> dict[str, Any]:
    """The stream as it will be in the file, decoded and compared with what went in."""
    from encke.cli.measure import compare
    from encke.codec import Packed

    packed = Packed.from_bytes(written)
    found = compare(x, packed.decompress(backend=backend), fill=fill)
    pointwise = packed.bound.kind == "pointwise"
    error = found.max_pointwise if pointwise else found.max_error
    held = found.nonfinite_kept and error <= packed.promised
    return {
        "max_error": error,
        "psnr": found.psnr,
        "nonfinite_kept": found.nonfinite_kept,
        "bound_held": held,
    }


def _print(report: list[dict[str, Any]], output: Path, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"output": str(output), "tensors": report})
        return
    columns = ["tensor", "shape", "dtype", "codec", "bytes", "becomes", "ratio", "promised"]
    if arguments.verify:
        columns += ["max error"]
    rows = []
    for facts in report:
        row = [
            facts["name"],
            "×".join(map(str, facts["shape"])) or "scalar",
            facts["dtype"],
            facts["codec"],
            f"{facts['plain_bytes']:,}",
            f"{facts['bytes']:,}",
            f"{facts['ratio']:.2f}×",
            f"{facts['promised']:.4g}",
        ]
        rows.append(row + ([f"{facts['max_error']:.4g}"] if arguments.verify else []))
    print_table(columns, rows)
    plain = sum(facts["plain_bytes"] for facts in report)
    written = output.stat().st_size
    print(f"{output}: {plain:,} → {written:,} bytes, {plain / max(written, 1):.2f}×")
