"""Tell jets of top quarks from those of light ones, trained plainly and with Encke.

    ENCKE_DATA=<folder of jets.npz> python examples/jets/train.py --seeds 0 1 2

The data are calorimeter images of 32×32 pixels, 1,500 of each kind; 40 % are held out for the
test. For each seed a small residual network is trained twice, from the same weights and on the
same batches. Writes every measure to benchmarks/results/jets.csv, the ROC curves to
jets_roc.csv beside it, and prints tables of the measures.
"""

from __future__ import annotations

import argparse
import csv
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import command
import measured
from jets_tables import BASELINE, EFFICIENCIES, NETWORKS, tables
from mass import MassCut
from measured import Row
from pair import Pair, passes
from roc import Array, Statistic, area, background_at, difference, interval, rejection, roc

from encke.study import data, zoo
from encke.study.data.jets import load_jets

CURVE = np.linspace(0.02, 1, 50)  # signal efficiencies of the curves in the file
STATISTICS: dict[str, Statistic] = {
    "AUC": area,
    **{f"1/eps_B at {e:.0%}": partial(rejection, efficiency=e) for e in EFFICIENCIES},
}


def turned(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image mirrored or turned by quarters at random: a jet has no preferred side."""
    ways = torch.randint(8, (len(images),), generator=generator)
    out = torch.empty_like(images)
    for way in range(8):
        chosen = images[ways == way]
        out[ways == way] = (chosen.flip(-1) if way >= 4 else chosen).rot90(way % 4, (-2, -1))
    return out


def train(source: data.Examples, *, seed: int, options: argparse.Namespace) -> Pair:
    """Both trainings from one seed."""
    steps = options.epochs * (source.count("train") // options.batch)
    pair = Pair.of(
        lambda: zoo.build(
            "resnet_cifar", seed=seed, depth=8, width=options.width, channels=1, classes=2
        ),
        rate=options.rate,
        steps=steps,
        tolerance=options.tolerance,
        weight_decay=1e-2,
    )
    generator = torch.Generator().manual_seed(seed)
    feed = passes(source, batch=options.batch, epochs=options.epochs, seed=seed)
    varied = ((turned(images, generator), labels) for images, labels in feed)
    pair.train(varied, F.cross_entropy, steps=steps, name=f"seed {seed}")
    return pair


@torch.no_grad()
def score(network: torch.nn.Module, source: data.Examples) -> Array:
    """For each jet of the test split: how much more the network takes it for a top."""
    network.eval()
    outputs = [network(images) for (images,), _ in source.batches("test", 200)]
    return torch.cat([output[:, 1] - output[:, 0] for output in outputs]).double().numpy()


def run(options: argparse.Namespace) -> list[Row]:
    """Every measure of every way and seed, as it is in the file."""
    source = load_jets(test_share=0.4).head(train=options.limit, test=options.limit)
    labels = source.test.target.numpy()
    drawn = options.out.with_name(f"{options.out.stem}_roc.csv")
    rows: list[Row] = []
    curves: list[tuple[str, int | None, Array]] = []

    def note(way: str, seed: int | None, scores: Array) -> None:
        for name, statistic in STATISTICS.items():
            low, high = interval(statistic, scores, labels)
            rows.append(Row(way, seed, name, statistic(scores, labels)))
            rows.append(Row(way, seed, f"{name}, 16 % of samples below", low))
            rows.append(Row(way, seed, f"{name}, 16 % of samples above", high))
        curves.append((way, seed, scores))

    cut = MassCut(source.train.inputs[:, 0], source.train.target)
    note(BASELINE, None, cut(source.test.inputs[:, 0]).numpy())
    for seed in options.seeds:
        pair = train(source, seed=seed, options=options)
        plain, mine = (score(one.network, source) for one in (pair.plain, pair.encke))
        note(NETWORKS[0], seed, plain)
        note(NETWORKS[1], seed, mine)
        for name, statistic in STATISTICS.items():
            found, spread = difference(statistic, plain, mine, labels)
            rows.append(Row("Encke less plain", seed, name, found))
            rows.append(Row("Encke less plain", seed, f"{name}, bootstrap deviation", spread))
        rows.append(Row(NETWORKS[1], seed, "kept, times smaller", pair.kept()))
        rows.append(Row(NETWORKS[1], seed, "relative time", pair.relative_time()))
        measured.write(options.out, rows)
        write_curves(drawn, curves, labels)
    if options.picture is not None:
        from jets_picture import draw

        draw(drawn, options.picture)
    return measured.read(options.out)


def write_curves(
    path: Path, curves: list[tuple[str, int | None, Array]], labels: np.ndarray
) -> None:
    """The share of background that passes at each of CURVE's signal efficiencies."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["way", "seed", "eps_S", "eps_B"])
        for way, seed, scores in curves:
            curve = roc(scores, labels)
            for efficiency in CURVE:
                passed = background_at(curve, float(efficiency))
                table.writerow(
                    [way, "" if seed is None else seed, f"{efficiency:.2f}", f"{passed:.5g}"]
                )


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(__doc__, epochs=6, batch=60, width=8, rate=4e-3, results="jets.csv")
    return command.carry_out(parser.parse_args(arguments), run, tables)


if __name__ == "__main__":
    sys.exit(main())
