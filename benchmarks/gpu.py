"""How fast the codecs are on your GPU, against copying the same bytes. Run it once:

    python benchmarks/gpu.py                     # writes benchmarks/results/gpu_<name>.csv

Every row gives GB/s of plain values: encoding into a buffer without waiting (the mode for
training), encoding with the one wait that an exact allocation takes, and decoding what was
made here. Each is the median of many runs between events, taken in turns with a copy of
the same tensor on the device. Beside them stands casting to bfloat16, which halves a tensor
and bounds no error, and what cuSZp reports for itself.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from records import RESULTS

NO_GPU = (
    "No GPU that torch and Triton can use was found, so there is nothing to measure. What the "
    "kernels compile to without one is in benchmarks/results/gpu_kernels.csv (make gpu-check)."
)
#: GB/s to compress and to decompress, as their authors report them.
PUBLISHED = {
    "cuSZp, its torch example": (231.0, 350.0),
    "cuSZp2, A100": (332.0, 513.0),
}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One way to keep a tensor. Speeds are in GB/s of plain values."""

    gpu: str
    way: str
    tensor: str
    megabytes: int
    ratio: float
    encode: float
    encode_with_wait: float | None
    decode: float
    copy: float


def device() -> torch.device | None:
    """A GPU that the Triton backend can run on, or None."""
    from encke.ops import triton

    kind = triton.device_here()
    if kind in (None, "cpu") or triton.problem() is not None:
        return None
    return torch.device(kind)


def milliseconds(calls: dict[str, Callable[[], Any]], *, repeats: int) -> dict[str, float]:
    """The median time of each call on the device, measured in turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start, end = (torch.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            found[name].append(start.elapsed_time(end))
    return {name: statistics.median(times) for name, times in found.items()}


def tensors(count: int, where: torch.device) -> dict[str, Tensor]:
    """What layers keep: inputs of a GELU or a norm, outputs of a ReLU, and bfloat16."""
    generator = torch.Generator(where).manual_seed(0)
    x = torch.randn(count, generator=generator, device=where)
    return {"gelu_input": x, "relu": x.clamp(min=0), "gelu_input bfloat16": x.bfloat16()}


def measured(name: str, x: Tensor, *, repeats: int) -> list[Speed]:
    """Every way to keep `x`, timed."""
    from encke.ops.quantiser import DITHER, PLAIN, linear
    from encke.ops.triton.backend import Triton

    backend, gpu = Triton(), torch.get_device_module(x.device.type).get_device_name(x.device)
    there, plain = torch.empty_like(x), x.numel() * x.element_size()
    extent = float(x.max() - x.min())
    found = []

    def add(
        way: str,
        encode: Callable[[], Any],
        waiting: Callable[[], Tensor] | None,
        decode: Callable[[], Any],
        stored: int,
    ) -> None:
        calls: dict[str, Callable[[], Any]] = {"encode": encode, "decode": decode}
        calls["copy"] = lambda: there.copy_(x)
        if waiting is not None:
            calls["waiting"] = waiting
        times = {k: plain / 1e6 / ms for k, ms in milliseconds(calls, repeats=repeats).items()}
        found.append(
            Speed(
                gpu=gpu,
                way=way,
                tensor=name,
                megabytes=plain >> 20,
                ratio=plain / stored,
                encode=times["encode"],
                encode_with_wait=times.get("waiting"),
                decode=times["decode"],
                copy=times["copy"],
            )
        )

    for share in (0.001, 0.02, 0.1):
        for kind, words in ((PLAIN, "plain"), (DITHER, "dither")):
            q = linear(share * extent, x.dtype, kind=kind, seed=1)
            payload = backend.fixed_encode(x, q)
            room = payload.numel() + payload.numel() // 32
            add(
                f"fixed {words}, {share:g} of the range",
                lambda q=q, room=room: backend.fixed_encode_later(x, q, capacity=room),
                lambda q=q: backend.fixed_encode(x, q),
                lambda p=payload: backend.fixed_decode(p, x.numel(), x.dtype, there.view(-1)),
                payload.numel(),
            )
    for bits in (2, 4, 8):
        payload = backend.group_encode(x, bits, True, 1)
        add(
            f"group, {bits} bits",
            lambda bits=bits: backend.group_encode_later(x, bits, True, 1),
            lambda bits=bits: backend.group_encode(x, bits, True, 1),
            lambda p=payload: backend.group_decode(p, x.numel(), x.dtype),
            payload.numel(),
        )
    bits_of = backend.positive_encode(x)
    add(
        "ReLU's mask",
        lambda: backend.positive_encode(x),
        None,
        lambda: backend.positive_decode(bits_of, x.numel(), x.dtype),
        bits_of.numel(),
    )
    if x.dtype == torch.float32:
        half = x.bfloat16()
        add("cast to bfloat16", x.bfloat16, None, half.float, 2 * x.numel())
    return found


def table(rows: list[Speed]) -> str:
    """The rows as text, with what others report below."""
    lines = [
        f"{'way':<34}{'tensor':<22}{'ratio':>7}{'encode':>9}{'waiting':>9}{'decode':>9}{'copy':>8}"
    ]
    for r in rows:
        waiting = "" if r.encode_with_wait is None else f"{r.encode_with_wait:.0f}"
        lines.append(
            f"{r.way:<34}{r.tensor:<22}{r.ratio:>7.1f}{r.encode:>9.0f}{waiting:>9}"
            f"{r.decode:>9.0f}{r.copy:>8.0f}"
        )
    for name, (into, out) in PUBLISHED.items():
        lines.append(f"{name + ' (reported)':<63}{into:>9.0f}{'':>9}{out:>9.0f}")
    return "\n".join(
        [*lines, "GB/s of plain values; a copy reads and writes each of them once."]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="size of each tensor")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path, help="the CSV to write")
    given = parser.parse_args(arguments)
    where = device()
    if where is None:
        print(NO_GPU, file=sys.stderr)
        return 2
    rows: list[Speed] = []
    for name, x in tensors(given.megabytes << 18, where).items():
        rows += measured(name, x, repeats=given.repeats)
    print(table(rows))
    slug = rows[0].gpu.lower().replace(" ", "_").replace("/", "_")
    path = given.out or RESULTS / f"gpu_{slug}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Speed)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
