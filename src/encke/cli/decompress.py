"""`encke decompress`: the tensors of an `.encke` file in a file others can read."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_to(commands: Any) -> None:
    """Add `decompress` to the command line."""
    command: argparse.ArgumentParser = commands.add_parser(
        "decompress",
        help="restore the tensors of an .encke file",
        description="Restore to .npy, .npz, .safetensors or .nc, by the ending of the output; "
        "any other ending gets raw binary.",
    )
    command.add_argument("input", type=Path, help="file that encke compress wrote")
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        help="default: the input's name, .npy for one tensor, .npz for several, .nc for what "
        "came from one",
    )
    command.add_argument(
        "--backend", help="native or reference (default: the fastest there is)"
    )
    command.add_argument("--force", action="store_true", help="replace an existing output")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Decode every stream of the input and write all tensors at once."""
    from encke.atomic import check_output, replacing
    from encke.cli.netcdf_files import is_described
    from encke.cli.progress import tracked
    from encke.cli.stream_files import attributes_in, open_streams
    from encke.cli.tensor_files import check_writable, write_tensors
    from encke.codec import Packed
    from encke.codec.stream import read
    from encke.errors import EnckeError

    streams, several = open_streams(arguments.input)
    attributes = attributes_in(arguments.input) if several else None
    ending = ".nc" if is_described(attributes) else ".npz" if several else ".npy"
    output: Path = arguments.output or arguments.input.with_suffix(ending)
    check_output(output, force=arguments.force, inputs=[arguments.input])
    dtypes = {}
    tensors = {}
    try:
        for name, stream in streams.items():
            dtypes[name] = read(stream)[0].dtype
        check_writable(output, dtypes)
        for name in tracked(list(streams), "decompressing"):
            packed = Packed.from_bytes(streams[name])
            tensors[name] = packed.decompress(backend=arguments.backend)
    except EnckeError as error:
        raise type(error)(f"{arguments.input}: {error}") from None
    with replacing(output, force=arguments.force) as file:
        write_tensors(file, output, tensors, attributes)
    count = f"{len(tensors)} tensors" if several else "1 tensor"
    print(f"{output}: {count}, {output.stat().st_size:,} bytes")
    return 0
