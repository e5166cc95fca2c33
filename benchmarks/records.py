"""The rows of benchmarks/results/codecs.csv and how they are kept."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One codec on one tensor under one bound.

    Speeds are relative to copying the same bytes in the same run: 2 means twice as
    fast. `memcpy` copies between touched buffers, `clone` into fresh memory, as decoding
    must. Entropy and its overhead are those of the quantised codes, where codes are known.
    """

    tensor: str
    shape: str
    dtype: str
    bound: str
    codec: str
    dither: bool
    seed: int
    backend: str
    threads: int
    repeats: int
    bytes: int
    ratio: float
    encode_relative_to_memcpy: float
    decode_relative_to_memcpy: float
    encode_relative_to_clone: float
    decode_relative_to_clone: float
    max_error_over_bound: float | None
    psnr: float | None
    entropy_bits: float | None
    bits: float
    overhead_over_entropy: float | None

    @property
    def key(self) -> tuple[str, str, str, bool, int]:
        return self.tensor, self.bound, self.codec, self.dither, self.threads


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    # Four digits would round an error just above its bound down to 1.
    digits = 10 if name == "max_error_over_bound" else 4
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _parse(kind: str, text: str) -> object:
    if text == "" and "None" in kind:
        return None
    if kind == "bool":
        return text == "True"
    if kind == "int":
        return int(text)
    return text if kind == "str" else float(text)


def read(path: Path) -> list[Record]:
    """The rows of a file, none if there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Record(**{f.name: _parse(str(f.type), row[f.name]) for f in fields(Record)})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


def write(path: Path, records: Iterable[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([f.name for f in fields(Record)])
        for record in records:
            table.writerow([_text(name, value) for name, value in asdict(record).items()])


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Old rows with the new ones in place of those that measured the same."""
    rows = {record.key: record for record in old}
    rows.update({record.key: record for record in new})
    return sorted(rows.values(), key=lambda record: record.key)
