"""Fields with holes beside SZ3 and beside the same fields without holes.

    python benchmarks/holes/run.py ../shared/data            sizes: results/holes.csv
    python benchmarks/holes/run.py ../shared/data --speed    times: results/holes_speed.csv
    python benchmarks/holes/tables.py --write                the tables of docs/holes.md

SZ3 gets the field as it is, as its users give it, and in a second column what a careful user
would do: holes replaced by the mean of the values, with the mask beside it through zstd.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cases
import numpy as np
import torch
import zstandard
from pysz import sz, szAlgorithm, szConfig, szErrorBoundMode

import encke
from encke.codec import hole_parts

RESULTS = Path(__file__).parents[1] / "results"
BOUNDS = (1e-2, 1e-3, 1e-4)
SPEED_SHARES = (0.05, 0.3, 0.7)
PATTERN = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def sz3_bytes(x: np.ndarray, error: float) -> int:
    settings = szConfig(x.shape)
    settings.errorBoundMode = szErrorBoundMode.ABS
    settings.absErrorBound = error
    settings.cmprAlgo = szAlgorithm.INTERP_LORENZO
    settings.openmp = False
    return int(sz.compress(np.ascontiguousarray(x), settings)[0].nbytes)


def mask_bytes(packed: encke.Packed) -> int:
    if not packed.holes:
        return 0
    count, size = int(np.prod(packed.shape)), packed.dtype.itemsize
    parts = hole_parts.part(packed.payload, count=count, size=size)
    return sum(bitmap.numel() for bitmap in parts.bitmaps)


def sizes(folder: Path) -> Iterator[dict[str, Any]]:
    for field in cases.fields(folder):
        for dtype in (np.float32, np.float64, np.float16):
            values = field.values.astype(dtype)
            for bound in BOUNDS:
                yield from of_field(field.name, values, bound)


def of_field(name: str, values: np.ndarray, bound: float) -> Iterator[dict[str, Any]]:
    whole = torch.from_numpy(values)
    for coast in cases.coasts(values.ndim):
        holes = coast.holes(values.shape)
        valid = values[~holes].astype(np.float64)
        error = bound * (valid.max() - valid.min())
        x = coast.put(values, holes)
        fill = None if coast.filler == "nan" else float(x[holes][0])
        packed = encke.compress(torch.from_numpy(x), encke.RangeRelative(bound), fill=fill)
        y = packed.decompress().numpy()
        bits = PATTERN[x.dtype.itemsize]
        row = {
            "field": name,
            "dimensions": values.ndim,
            "dtype": x.dtype.name,
            "coast": coast.kind,
            "holes": coast.share,
            "mask": "moving" if coast.moving else "fixed",
            "filler": coast.filler,
            "bound": bound,
            "codec": packed.codec,
            "bytes": packed.nbytes,
            "ratio": round(packed.ratio, 3),
            "error_over_bound": float(
                np.abs(y[~holes].astype(np.float64) - valid).max() / error
            ),
            "holes_exact": bool(np.array_equal(x.view(bits)[holes], y.view(bits)[holes])),
        }
        clean = encke.compress(whole, encke.Absolute(error)).nbytes
        mask = mask_bytes(packed)
        row["mask_bytes"] = mask
        row["over_clean"] = round(packed.nbytes / (clean * len(valid) / x.size + mask) - 1, 4)
        if x.dtype != np.float16:
            filled = np.where(holes, valid.mean(), values).astype(x.dtype)
            beside = len(zstandard.compress(np.packbits(holes).tobytes(), 19))
            row["of_sz3"] = round(sz3_bytes(x, error) / packed.nbytes, 3)
            row["of_sz3_filled"] = round((sz3_bytes(filled, error) + beside) / packed.nbytes, 3)
        yield row


def speeds(folder: Path) -> Iterator[dict[str, Any]]:
    """`predict` on a field with holes and on the same without, in turns, one thread."""
    torch.set_num_threads(1)
    for field in cases.fields(folder):
        values = field.values
        for bound in BOUNDS:
            for share in SPEED_SHARES:
                for moving in (False, True) if values.ndim > 2 else (False,):
                    coast = cases.Coast("smooth", share, moving, "fill")
                    yield of_speed(field.name, values, bound, coast)


def of_speed(name: str, values: np.ndarray, bound: float, coast: cases.Coast) -> dict[str, Any]:
    holes = coast.holes(values.shape)
    error = bound * float(np.ptp(values))
    clean = torch.from_numpy(values)
    holed = torch.from_numpy(coast.put(values, holes))
    options: dict[str, Any] = {"codec": "predict"}
    packed = [
        encke.compress(clean, encke.Absolute(error), **options),
        encke.compress(holed, encke.Absolute(error), fill=cases.FILL, **options),
    ]
    calls: list[Callable[[], Any]] = [
        lambda: encke.compress(clean, encke.Absolute(error), **options),
        lambda: encke.compress(holed, encke.Absolute(error), fill=cases.FILL, **options),
        packed[0].decompress,
        packed[1].decompress,
    ]
    best = [float("inf")] * len(calls)
    for _ in range(15):
        for i, call in enumerate(calls):
            started = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - started)
    rate = [values.nbytes / seconds / 1e9 for seconds in best]
    return {
        "field": name,
        "values": values.size,
        "bound": bound,
        "holes": coast.share,
        "mask": "moving" if coast.moving else "fixed",
        "clean_encode_gbps": round(rate[0], 3),
        "holed_encode_gbps": round(rate[1], 3),
        "clean_decode_gbps": round(rate[2], 3),
        "holed_decode_gbps": round(rate[3], 3),
        "encode_of_clean": round(rate[1] / rate[0], 3),
        "decode_of_clean": round(rate[3] / rate[2], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where climate.npz is")
    parser.add_argument("--speed", action="store_true", help="measure times, not sizes")
    options = parser.parse_args()
    rows = list((speeds if options.speed else sizes)(options.folder))
    path = RESULTS / ("holes_speed.csv" if options.speed else "holes.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
