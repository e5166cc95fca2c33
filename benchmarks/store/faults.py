"""What happens to files: saves killed at random moments, and files damaged at random.

python benchmarks/store/faults.py --kills 50 --damaged 100000
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from store_rows import put

from encke import store
from encke.bound import RmsRelative
from encke.errors import EnckeError

_SAVER = """
import sys, torch
from encke import store
torch.set_num_threads(1)
n = int(sys.argv[2])
state = {"y": torch.randn(600, 600)}
while True:
    n += 1
    state |= {"n": torch.tensor(n), "x": torch.full((600, 600), float(n))}
    store.save(sys.argv[1], state)
    print(n, flush=True)
"""


def killed(folder: Path, times: int) -> dict[str, int]:
    """A process saves without end and is killed; the file must be whole each time."""
    path, last, whole = folder / "killed.encke", 0, 0
    chance = random.Random(0)
    for _ in range(times):
        child = subprocess.Popen(
            [sys.executable, "-c", _SAVER, str(path), str(last)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.3 * chance.random())
        child.send_signal(signal.SIGKILL)
        child.communicate()
        found = store.load(path)["model"]
        number = int(found["n"])
        whole += number > last and bool((found["x"] == number).all())
        last = number
    return {"tried": times, "right": whole, "wrong": times - whole}


def damaged(folder: Path, times: int) -> None:
    """Single bits, runs of bytes, cuts: refused, partly loaded and right, or wrong."""
    torch.manual_seed(0)
    path = folder / "damaged.encke"
    state = {f"layer.{n}": torch.randn(70, 50) for n in range(3)}
    state |= {"large": torch.randn(260, 260), "exact": torch.arange(999)}
    bounds = {"layer.*": RmsRelative(0.2), "large": RmsRelative(0.2)}
    store.save(path, state, bounds=bounds)
    truth, raw = store.load(path)["model"], path.read_bytes()
    chance = random.Random(1)
    counts = {k: {"refused": 0, "partly": 0, "wrong": 0} for k in ("bit", "bytes", "cut")}
    for number in range(times):
        if number % 5000 == 0 and number:
            record(counts)
        kind = chance.choice(list(counts))
        path.write_bytes(_changed(raw, kind, chance))
        try:
            store.load(path)
            counts[kind]["wrong"] += 1
            continue
        except EnckeError:
            pass
        try:
            found = store.load(path, partial=True)
        except EnckeError:
            counts[kind]["refused"] += 1
            continue
        right = all(torch.equal(x, truth[n]) for n, x in found.get("model", {}).items())
        counts[kind]["partly" if right and found["missing"] else "wrong"] += 1
    record(counts)


def record(counts: dict[str, dict[str, int]]) -> None:
    """What has been found so far."""
    rows = [
        {"fault": f"damaged: {kind}", "tried": sum(found.values()), "right": 0, **found}
        for kind, found in counts.items()
    ]
    put("store_faults.csv", rows, key=("fault",))


def _changed(raw: bytes, kind: str, chance: random.Random) -> bytes:
    changed = bytearray(raw)
    place = chance.randrange(len(raw))
    if kind == "bit":
        changed[place] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        return raw[:place]
    else:
        length = min(chance.randrange(1, 300), len(raw) - place)
        run = changed[place : place + length]
        changed[place : place + length] = bytes(b ^ chance.randrange(1, 256) for b in run)
    return bytes(changed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--damaged", type=int, default=100_000)
    arguments = parser.parse_args()
    import logging

    logging.getLogger("encke").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.kills:
            found = killed(Path(folder), arguments.kills)
            row = {"fault": "killed", "tried": found["tried"], "right": found["right"]}
            row |= {"refused": 0, "partly": 0, "wrong": found["wrong"]}
            put("store_faults.csv", [row], key=("fault",))
        if arguments.damaged:
            damaged(Path(folder), arguments.damaged)
    return 0


if __name__ == "__main__":
    sys.exit(main())
