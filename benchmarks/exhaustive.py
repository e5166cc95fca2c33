"""Every float32 bit pattern through `fixed`: the bound is never exceeded.

All 2^32 patterns go through the native encoder and decoder, in each way a value can be
coded, and are compared in double precision. NaN and infinities must come back bit for
bit, zeros as zeros, and, where that is asked for, non-zeros as non-zeros.

    cmake --build build/check --target exhaustive     # `make exhaustive` does all of it
    python benchmarks/exhaustive.py build/check/exhaustive
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch

from encke.ops.quantiser import DITHER, HALF, PLAIN, linear

#: name → (kind of quantiser, whether every second value is made zero)
WAYS = {
    "dense": (PLAIN, False),
    "sparse": (PLAIN, True),
    "dithered": (DITHER, False),
    "dithered sparse": (DITHER, True),
    "keep_nonzero": (HALF, False),
}


def run(
    program: str, error: float, kind: int, sparse: bool, stride: int, isa: str
) -> list[int]:
    """How many patterns were tried and how many came back wrong."""
    q = linear(error, torch.float32, kind=kind, seed=1 if kind == DITHER else 0)
    numbers = [repr(error), *map(repr, q), str(int(sparse)), str(stride)]
    result = subprocess.run(
        [program, *numbers],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "ENCKE_ISA": isa},
    )
    return [int(word) for word in result.stdout.split()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the executable `exhaustive`")
    parser.add_argument("--errors", default="1e-3,0.7", help="absolute bounds, by commas")
    parser.add_argument("--stride", type=int, default=1, help="take every n-th pattern")
    parser.add_argument("--isa", default="avx2", choices=("avx2", "portable"))
    args = parser.parse_args()
    if args.stride < 1:
        parser.error(f"--stride is {args.stride}, allowed is 1 and more")
    total = 0
    for error in map(float, args.errors.split(",")):
        for way, (kind, sparse) in WAYS.items():
            began = time.monotonic()
            patterns, wrong = run(args.program, error, kind, sparse, args.stride, args.isa)
            total += wrong
            print(
                f"bound {error:g}, {way}: {patterns:,} patterns, {wrong} violations", flush=True
            )
            print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if total else 0


if __name__ == "__main__":
    raise SystemExit(main())
