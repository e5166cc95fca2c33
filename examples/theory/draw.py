"""Draws the pictures of docs/theory.md into docs/pictures/, from computations made here.

    python examples/theory/draw.py

Only the layers of the two large networks come from a file, benchmarks/results/tape_theory.csv.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import closed_form
import dither
import kept
import network
import picture
import torch
import water_filling

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the svg files")
    options = parser.parse_args()
    torch.manual_seed(0)
    picture.save(dither.draw(), options.out / "dither.svg")
    picture.save(closed_form.draw(), options.out / "closed-form.svg")
    trained = network.train()
    picture.save(kept.draw(trained), options.out / "kept.svg")
    picture.save(water_filling.draw(trained), options.out / "water-filling.svg")
    print(f"wrote {', '.join(path.name for path in sorted(options.out.glob('*.svg')))}")


if __name__ == "__main__":
    main()
