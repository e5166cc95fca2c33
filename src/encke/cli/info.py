"""`encke info`: what an `.encke` file says about itself, without decoding it, or what the
tensors of another file look like."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from encke.cli.output import print_json, print_table

if TYPE_CHECKING:
    from torch import Tensor

_FLAGS, _CHECKSUMMED = 7, 1  # offset and bit, docs/format.md section 1


def add_to(commands: Any) -> None:
    """Add `info` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "info",
        help="say what an .encke file, or a file to compress, holds",
        description="Of an .encke file, headers and checksums; no tensor is decoded. Of .npy, "
        ".npz, .safetensors or .nc, the range of each tensor, what is not finite, and numbers "
        'that look as if they stood for "no value".',
    )
    command.add_argument("input", type=Path, help="file that encke compress wrote, or may")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one row for each tensor; a failed checksum is an error."""
    from encke.cli.stream_files import attributes_in, is_compressed, open_streams
    from encke.cli.tensor_files import is_known
    from encke.errors import EnckeError

    if is_known(arguments.input) and not is_compressed(arguments.input):
        from encke.cli.info_tensors import describe

        return describe(arguments, facts=_facts)
    streams, several = open_streams(arguments.input)
    try:
        report = [_facts(name, stream) for name, stream in streams.items()]
    except EnckeError as error:
        raise type(error)(f"{arguments.input}: {error}") from None
    attributes = attributes_in(arguments.input) if several else None
    total = arguments.input.stat().st_size
    plain = sum(facts["plain_bytes"] for facts in report)
    if arguments.json:
        print_json(
            {
                "file": str(arguments.input),
                "archive": several,
                "bytes": total,
                "plain_bytes": plain,
                "attributes": attributes,
                "tensors": report,
            }
        )
        return 0
    print_table(
        [
            "tensor",
            "shape",
            "dtype",
            "codec",
            "bound",
            "promised",
            "bytes",
            "ratio",
            "checksum",
        ],
        [
            [
                facts["name"],
                "×".join(map(str, facts["shape"])) or "scalar",
                facts["dtype"],
                facts["codec"] + (", holes" if facts["holes"] else ""),
                _bound_in_words(facts),
                f"{facts['promised']:.4g}",
                f"{facts['bytes']:,}",
                f"{facts['ratio']:.2f}×",
                facts["checksum"],
            ]
            for facts in report
        ],
    )
    print(f"{arguments.input}: {total:,} bytes for {plain:,}, {plain / total:.2f}×")
    return 0


def _facts(name: str, held: memoryview | Tensor, *more: Any) -> dict[str, Any]:
    """What is known of one tensor: of its stream, or of its values and fill values."""
    if isinstance(held, memoryview):
        return _stream_facts(name, held)
    from encke.cli.info_tensors import tensor_facts

    return tensor_facts(name, held, *more)


def _stream_facts(name: str, blob: memoryview) -> dict[str, Any]:
    from encke.bound.kinds import KINDS
    from encke.codec import registry
    from encke.codec.stream import read
    from encke.errors import CorruptStreamError

    header, payload = read(blob)
    if header.bound_code not in KINDS:
        raise CorruptStreamError(f"stream has unknown bound kind {header.bound_code}")
    plain = header.count * header.dtype.itemsize
    return {
        "name": name,
        "shape": list(header.shape),
        "memory_order": list(header.order),
        "dtype": str(header.dtype).removeprefix("torch."),
        "codec": registry.by_id(header.codec_id).name,
        "holes": header.holes,
        "bound": KINDS[header.bound_code].kind,
        "bound_number": header.bound_number,
        "promised": header.promised,
        "plain_bytes": plain,
        "payload_bytes": len(payload),
        "bytes": len(blob),
        "ratio": plain / len(blob),
        "bits_per_value": 8 * len(blob) / header.count if header.count else None,
        "checksum": "ok" if blob[_FLAGS] & _CHECKSUMMED else "none",
    }


def _bound_in_words(facts: dict[str, Any]) -> str:
    kind: str = facts["bound"]
    return kind if kind == "lossless" else f"{kind} {facts['bound_number']:g}"
