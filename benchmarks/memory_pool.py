"""The memory pool against glibc: time of a block, and growth of a heap of equal sizes.

    python benchmarks/memory_pool.py

Writes benchmarks/results/memory_pool.csv. Each measurement runs in a process of its own, with
one thread, in turn with its counterpart; the best of the repeats counts for times, the median
for memory.

- `pair`: seconds of `torch.empty(n)` and freeing it, among 200 live blocks of mixed sizes, with
  the time of torch itself. `pair of 64 bytes` never reaches the pool: it shows that time, and
  what the pool adds to small blocks.
- `growth`: 20 blocks of different sizes; half of them are freed and allocated again, one by
  one, with a small tensor in between, 200 times. Bytes by which the process grew, relative to
  those 20 blocks.
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "memory_pool.csv"
REPEATS = 5
KB, MB = 1 << 10, 1 << 20
SIZES = {"64 bytes": 64, "64 KB": 64 * KB, "1 MB": MB, "16 MB": 16 * MB, "256 MB": 256 * MB}

START = """
import sys, timeit, torch, encke.memory
torch.set_num_threads(1)
if sys.argv[1] == "pool":
    assert encke.memory.install(), encke.memory.pool().reason
"""
PAIR = """
size = int(sys.argv[2])
live = [torch.empty(65536 * (1 + i * 7 % 23), dtype=torch.uint8) for i in range(400)]
del live[::2]
count = 20000
print(min(timeit.repeat(lambda: torch.empty(size, dtype=torch.uint8), number=count)) / count)
"""
GROWTH = """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
sizes = [80000 + 18000 * i for i in range(20)]
blocks = [torch.ones(size) for size in sizes]
before = resident()
for step in range(200):
    for i in range(step % 2, len(sizes), 2):
        blocks[i] = None
        small = torch.ones(200)
        blocks[i] = torch.ones(sizes[i])
print((resident() - before) / (4 * sum(sizes)))
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement; `unit` says what the two numbers are."""

    measure: str
    unit: str
    glibc: float
    pool: float
    repeats: int


def measured(program: str, way: str, *arguments: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", START + program, way, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return float(done.stdout)


def rows() -> list[Row]:
    made = []
    for name, size in SIZES.items():
        times: dict[str, list[float]] = {"glibc": [], "pool": []}
        for _ in range(REPEATS):
            for way, found in times.items():
                found.append(measured(PAIR, way, str(size)) * 1e6)
        best = {way: round(min(found), 3) for way, found in times.items()}
        made.append(Row(measure=f"pair of {name}", unit="µs", repeats=REPEATS, **best))
    grown: dict[str, list[float]] = {"glibc": [], "pool": []}
    for _ in range(REPEATS):
        for way, found in grown.items():
            found.append(measured(GROWTH, way))
    middle = {way: round(statistics.median(found), 3) for way, found in grown.items()}
    made.append(Row(measure="growth", unit="of the live bytes", repeats=REPEATS, **middle))
    return made


def main() -> None:
    table = rows()
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(
            file, [field.name for field in fields(Row)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(asdict(row) for row in table)
    print(f"{'':18} {'glibc':>9} {'pool':>9}")
    for row in table:
        print(f"{row.measure:18} {row.glibc:9.3f} {row.pool:9.3f}  {row.unit}")


if __name__ == "__main__":
    main()
