"""Measures every codec and its peers: size, error and speed relative to memcpy.

    python benchmarks/codecs.py                      everything, rewrites results/
    python benchmarks/codecs.py --only ratio         one part; other rows stay
    python benchmarks/codecs.py --tensors relu       tensors whose name contains this
    python benchmarks/codecs.py --quick              fewer bounds and repeats

Writes results/codecs.csv, results/overhead.csv and, from both, results/summary.csv,
where each target is held against its measurement, and the chart results/codecs.svg.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import chart
import encke
import records
import targets
import tensors
import timing
import zero_order
from contestants import BOUNDED, UNBOUNDED, Contestant
from encke.bound import Absolute, Bound, RangeRelative, resolve
from encke.ops.select import select
from records import RESULTS, Record

BOUNDS = (2e-1, 1e-1, 5e-2, 1e-2, 1e-3)
QUICK_BOUNDS = (1e-1, 1e-2)
SPEED_BOUNDS = (1e-1, 2e-2, 1e-3)
SEED = 0


def bound_name(bound: Bound) -> str:
    return bound.kind if bound.kind == "lossless" else f"{bound.kind} {bound.number:g}"


def psnr(x: Tensor, y: Tensor) -> float | None:
    """Decibels of the range over the root mean square error; None if there is no error."""
    mean_square = (y.double() - x.double()).square().mean().item()
    low, high = torch.aminmax(x)
    extent = (high - low).item()
    if mean_square == 0.0 or extent == 0.0:
        return None
    return 20 * math.log10(extent) - 10 * math.log10(mean_square)


def measure(
    name: str,
    x: Tensor,
    bound: Bound,
    contestant: Contestant,
    *,
    label: str | None = None,
    repeats: int,
    entropy_bits: float | None = None,
) -> Record | None:
    """One row, or None where the codec says it does not take this combination."""
    error = resolve(bound, x).error or 0.0
    try:
        packed = contestant.encode(x, bound, error)
    except encke.UnsupportedError:
        return None
    y = contestant.decode(packed)
    size = contestant.size(packed)
    bits = 8 * size / x.numel()
    worst = (y.double() - x.double()).abs().max().item()
    times = timing.relative_to_copying(
        x,
        lambda: contestant.encode(x, bound, error),
        contestant.decode,
        repeats=repeats,
    )
    return Record(
        tensor=name,
        shape="×".join(map(str, x.shape)),
        dtype=str(x.dtype).removeprefix("torch."),
        bound=label or bound_name(bound),
        codec=contestant.name,
        dither=contestant.dither,
        seed=SEED,
        backend=select(x.device).name if contestant.ours else "",
        threads=torch.get_num_threads() if contestant.ours else 1,
        repeats=times.repeats,
        bytes=size,
        ratio=x.numel() * x.element_size() / size,
        encode_relative_to_memcpy=times.memcpy / times.encode,
        decode_relative_to_memcpy=times.memcpy / times.decode,
        encode_relative_to_clone=times.clone / times.encode,
        decode_relative_to_clone=times.clone / times.decode_afresh,
        max_error_over_bound=worst / error if error > 0 else None,
        psnr=psnr(x, y),
        entropy_bits=entropy_bits,
        bits=bits,
        overhead_over_entropy=bits / entropy_bits - 1 if entropy_bits else None,
    )


def chosen(pattern: str) -> list[Contestant]:
    return [contestant for contestant in BOUNDED if pattern in contestant.name]


def ratio_part(
    collected: dict[str, Tensor], *, bounds: tuple[float, ...], repeats: int, pattern: str
) -> Iterator[Record | None]:
    """Every tensor under every bound with every codec, on one thread."""
    torch.set_num_threads(1)
    for name, x in collected.items():
        for ratio in bounds:
            bound = RangeRelative(ratio)
            error = resolve(bound, x).error
            limits = {
                dither: zero_order.code_entropy(x, error, dither=dither, seed=SEED)
                for dither in (False, True)
            }
            for contestant in chosen(pattern):
                coded = contestant.name in ("fixed", "entropy")
                # SZ3's other algorithms are there for their ratio.
                few = contestant.name.startswith("SZ3 ")
                yield measure(
                    name,
                    x,
                    bound,
                    contestant,
                    repeats=min(repeats, 2) if few else repeats,
                    entropy_bits=limits[contestant.dither] if coded else None,
                )
        for contestant, settings in UNBOUNDED:
            if pattern in contestant.name:
                for bound in settings:
                    yield measure(name, x, bound, contestant, repeats=repeats)


def large_tensors(collected: dict[str, Tensor], *, megabytes: int) -> dict[str, Tensor]:
    """A gaussian, its ReLU and a real activation, tiled, each of that many megabytes."""
    count = megabytes * 2**20 // 4
    gaussian = torch.randn(count, generator=torch.Generator().manual_seed(SEED))
    activation = collected["activation/gelu_input"].flatten()
    return {
        f"large/gaussian {megabytes} MB": gaussian,
        f"large/relu {megabytes} MB": gaussian.relu(),
        f"large/gelu_input {megabytes} MB": activation.repeat(-(-count // activation.numel()))[
            :count
        ].clone(),
    }


def speed_part(
    collected: dict[str, Tensor], *, sizes: tuple[int, ...], repeats: int, pattern: str
) -> Iterator[Record | None]:
    """Large tensors under absolute bounds, on one thread and on two."""
    for megabytes in sizes:
        for name, x in large_tensors(collected, megabytes=megabytes).items():
            for ratio in SPEED_BOUNDS:
                bound = Absolute(resolve(RangeRelative(ratio), x).error or 0.0)
                label = f"abs {ratio:g} of range"
                for contestant in chosen(pattern):
                    if contestant.name.startswith("SZ3 "):
                        continue
                    for threads in (1, 2) if contestant.ours else (1,):
                        torch.set_num_threads(threads)
                        yield measure(
                            name,
                            x,
                            bound,
                            contestant,
                            label=label,
                            repeats=repeats if contestant.ours else 2,
                        )
    torch.set_num_threads(1)


def overhead_part(path: Path, *, calls: int) -> None:
    """What a call costs when there is next to nothing to compress."""
    torch.set_num_threads(1)
    x = torch.randn(1024, generator=torch.Generator().manual_seed(SEED))
    bound = Absolute(1e-2)
    packed = encke.compress(x, bound, codec="fixed")
    encode = timing.microseconds_per_call(
        lambda: encke.compress(x, bound, codec="fixed"), calls=calls, repeats=9
    )
    decode = timing.microseconds_per_call(
        lambda: encke.decompress(packed), calls=calls, repeats=9
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["call", "tensor_bytes", "codec", "backend", "microseconds"])
        backend = select(x.device).name
        table.writerow(["compress", 4096, "fixed", backend, f"{encode:.2f}"])
        table.writerow(["decompress", 4096, "fixed", backend, f"{decode:.2f}"])


def show(record: Record) -> None:
    dither = " dither" if record.dither else ""
    print(
        f"{record.tensor:34} {record.bound:18} {record.codec + dither:24} "
        f"{record.threads} {record.ratio:8.2f}×  in {record.encode_relative_to_memcpy:6.3f} "
        f"out {record.decode_relative_to_memcpy:6.3f} of memcpy",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure codecs and peers on real tensors.")
    parser.add_argument("--only", choices=("ratio", "speed", "overhead"))
    parser.add_argument("--tensors", default="", help="part of the names to measure")
    parser.add_argument("--codecs", default="", help="part of the codecs' names to measure")
    parser.add_argument("--quick", action="store_true", help="fewer bounds and repeats")
    parser.add_argument("--repeats", type=int, help="timings to take the best of")
    parser.add_argument("--data", help="directory of real data, if tensors must be collected")
    parser.add_argument("--cache", type=Path, default=tensors.CACHE)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    collected = tensors.load(options.cache, data=tensors.data_directory(options.data))
    wanted = {name: x for name, x in collected.items() if options.tensors in name}
    if not wanted:
        raise SystemExit(
            f"--tensors is {options.tensors!r}, which no name contains; "
            f"there are {', '.join(collected)}"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    repeats = options.repeats or (3 if options.quick else 7)
    parts: list[Iterator[Record | None]] = []
    if options.only in (None, "ratio"):
        bounds = QUICK_BOUNDS if options.quick else BOUNDS
        parts.append(ratio_part(wanted, bounds=bounds, repeats=repeats, pattern=options.codecs))
    if options.only in (None, "speed"):
        sizes = (16,) if options.quick else (16, 64)
        parts.append(
            speed_part(collected, sizes=sizes, repeats=repeats, pattern=options.codecs)
        )
    new: list[Record] = []
    for part in parts:
        for record in part:
            if record is not None:
                show(record)
                new.append(record)
    whole = not (options.only or options.tensors or options.codecs or options.quick)
    path = options.out / "codecs.csv"
    records.write(path, records.merged([] if whole else records.read(path), new))
    if options.only in (None, "overhead"):
        overhead_part(options.out / "overhead.csv", calls=200 if options.quick else 2000)
    for verdict in targets.write_summary(options.out):
        print(verdict)
    chart.draw(records.read(path), options.out / "codecs.svg")


if __name__ == "__main__":
    main()
