"""The targets of the codecs, each held against what was measured.

Reads results/codecs.csv and results/overhead.csv and nothing else, so a verdict can
be traced to rows. A target counts over cases (a tensor under a bound): it is met when
every case is, and the row names the worst case with its number.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import records
from records import Record

SZ3 = "SZ3"
Case = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One target: what was asked, the worst that was seen, and in how many cases it held."""

    target: str
    required: str
    measured: str
    status: str
    held: int
    cases: int
    worst_case: str

    def __str__(self) -> str:
        return (
            f"{self.status:11} {self.target}: {self.required} required, {self.measured} "
            f"measured ({self.held} of {self.cases} cases; worst: {self.worst_case})"
        )


def at_least(target: str, required: float, seen: dict[str, float]) -> Verdict:
    return _judge(target, f"≥ {required:g}", seen, lambda value: value >= required, min)


def at_most(target: str, required: float, seen: dict[str, float]) -> Verdict:
    return _judge(target, f"≤ {required:g}", seen, lambda value: value <= required, max)


def _judge(target, required, seen, holds, worst_of) -> Verdict:  # type: ignore[no-untyped-def]
    if not seen:
        return Verdict(
            target=target,
            required=required,
            measured="",
            status="not measured",
            held=0,
            cases=0,
            worst_case="",
        )
    held = sum(map(holds, seen.values()))
    worst = worst_of(seen, key=seen.__getitem__)
    return Verdict(
        target=target,
        required=required,
        measured=f"{seen[worst]:.6g}",
        status="pass" if held == len(seen) else "missed",
        held=held,
        cases=len(seen),
        worst_case=worst,
    )


def _case(record: Record) -> str:
    return f"{record.tensor}, {record.bound}" + (", dither" if record.dither else "")


def _speed(rows: list[Record]) -> Iterable[Verdict]:
    large = [row for row in rows if row.tensor.startswith("large/")]
    for codec, into, out in (("fixed", 0.9, 1.2), ("entropy", 0.25, 0.4)):
        for dither in (False, True):
            named = f"{codec} with dither" if dither else codec
            kept = [row for row in large if row.codec == codec and row.dither == dither]
            single = {_case(row): row for row in kept if row.threads == 1}
            for direction, required in (("encode", into), ("decode", out)):
                field = f"{direction}_relative_to_memcpy"
                yield at_least(
                    f"speed: {named} {direction}, of memcpy, one thread",
                    required,
                    {case: getattr(row, field) for case, row in single.items()},
                )
                fresh = f"{direction}_relative_to_clone"
                yield at_least(
                    f"speed: {named} {direction}, of a copy into fresh memory, one thread",
                    required,
                    {case: getattr(row, fresh) for case, row in single.items()},
                )
                yield at_least(
                    f"speed: {named} {direction}, two threads over one",
                    1.6,
                    {
                        _case(row): getattr(row, field) / getattr(single[_case(row)], field)
                        for row in kept
                        if row.threads == 2 and _case(row) in single
                    },
                )


def _overhead(path: Path) -> Iterable[Verdict]:
    seen: dict[str, float] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            seen = {row["call"]: float(row["microseconds"]) for row in csv.DictReader(file)}
    yield at_most("overhead: microseconds of a call on 4 KB, fixed", 20.0, seen)


def _entropy_stage(rows: list[Record]) -> Iterable[Verdict]:
    for dither in (False, True):
        named = "entropy with dither" if dither else "entropy"
        kept = {
            _case(row): row
            for row in rows
            if row.codec == "entropy"
            and row.dither == dither
            and row.overhead_over_entropy is not None
        }
        overheads = {case: row.overhead_over_entropy or 0.0 for case, row in kept.items()}
        yield at_most(
            f"ratio: {named}, overhead over the entropy of its codes", 0.03, overheads
        )
        substantial = {
            case: overhead
            for case, overhead in overheads.items()
            if (kept[case].entropy_bits or 0.0) >= 0.1
        }
        yield at_most(
            f"ratio: {named}, the same where that entropy is 0.1 bit or more", 0.03, substantial
        )


def _against_sz3(rows: list[Record]) -> Iterable[Verdict]:
    plain: dict[Case, dict[str, Record]] = {}
    for row in rows:
        if not row.dither and row.bound.startswith("range "):
            plain.setdefault((row.tensor, row.bound), {})[row.codec] = row
    for prefix, codecs, ratio, speed in (
        ("activation/", ("entropy", "predict"), 1.0, 10.0),
        ("climate/", ("predict",), 0.9, 5.0),
    ):
        title = f"against SZ3: {' or '.join(codecs)} on {prefix.rstrip('/')}"
        ratios, best_ratios, encoding, decoding = {}, {}, {}, {}
        for (tensor, bound), row in plain.items():
            ours = [row[codec] for codec in codecs if codec in row]
            if not tensor.startswith(prefix) or SZ3 not in row or len(ours) < len(codecs):
                continue
            case, peer = f"{tensor}, {bound}", row[SZ3]
            best = min(ours, key=lambda record: record.bytes)
            strongest = min(
                record.bytes for name, record in row.items() if name.startswith(SZ3)
            )
            ratios[case] = peer.bytes / best.bytes
            best_ratios[case] = strongest / best.bytes
            encoding[case] = best.encode_relative_to_memcpy / peer.encode_relative_to_memcpy
            decoding[case] = best.decode_relative_to_memcpy / peer.decode_relative_to_memcpy
        yield at_least(f"{title}, ratio over its default's", ratio, ratios)
        yield at_least(f"{title}, ratio over the best of its algorithms'", ratio, best_ratios)
        yield at_least(f"{title}, encoding speed over its default's", speed, encoding)
        yield at_least(f"{title}, decoding speed over its default's", speed, decoding)


def _bounds_kept(rows: list[Record]) -> Iterable[Verdict]:
    errors = {
        f"{row.codec}: {_case(row)}": row.max_error_over_bound
        for row in rows
        if row.backend and row.max_error_over_bound is not None
    }
    yield at_most("bound: largest error over the bound, every codec", 1.0, errors)


def evaluate(results: Path) -> list[Verdict]:
    """Every target, from the rows in `results`."""
    rows = records.read(results / "codecs.csv")
    return [
        *_speed(rows),
        *_overhead(results / "overhead.csv"),
        *_entropy_stage(rows),
        *_against_sz3(rows),
        *_bounds_kept(rows),
    ]


def write_summary(results: Path) -> list[Verdict]:
    """Evaluates and writes results/summary.csv."""
    verdicts = evaluate(results)
    with (results / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([field.name for field in fields(Verdict)])
        table.writerows(astuple(verdict) for verdict in verdicts)
    return verdicts


if __name__ == "__main__":
    for verdict in write_summary(records.RESULTS):
        print(verdict)
