"""Downscale surface temperature with a U-Net, trained plainly and with Encke.

    ENCKE_DATA=<folder of climate.npz> python examples/climate/train.py --seeds 0 1 2

The data are yearly means of CESM's temperature at reference height (TREFHT, 64×128 points, four
ensemble members). The network gets the means of 4×4 points and gives back the points; it is
trained on all members but the last and tested on that one, beside interpolation, the delta
method and regression. For each seed both trainings start from the same weights and see the same
batches. Writes every measure to benchmarks/results/climate.csv and prints tables of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

import command
import measured
from climate_tables import BASELINES, NETWORKS, tables
from downscaling import OUTPUTS, Downscaling, Globe, coarsen, interpolate
from field_errors import area_weights, errors, extremes, quantile
from measured import Row
from pair import Pair, passes

from encke.errors import EnckeError
from encke.study import zoo
from encke.study.data import Examples, Split, climate

TAIL = 0.01  # of the area: what counts as extreme
QUANTILES = (0.001, 0.01, 0.99, 0.999)


def load(variable: str = "TREFHT") -> tuple[Tensor, Tensor]:
    """Fields in kelvin, (years, rows, columns): of all members but the last, and of that."""
    stored = climate.arrays()
    members = [stored[name] for name in sorted(stored) if name.rpartition("_")[0] == variable]
    if len(members) < 2:
        raise EnckeError(
            f"climate.npz has {len(members)} members of {variable}; two or more are needed, "
            "one of them to test on"
        )
    return torch.cat(members[:-1]).float(), members[-1].float()


def train(
    fields: Tensor, place: Downscaling, *, seed: int, options: argparse.Namespace
) -> Pair:
    """Both trainings from one seed."""
    steps = options.epochs * (len(fields) // options.batch)
    rows, columns = fields.shape[1:]
    area = (area_weights(rows) * rows).float()[:, None]
    pair = Pair.of(
        lambda: Globe(
            zoo.build(
                "unet", seed=seed, channels=4, outputs=OUTPUTS, width=options.width, depth=3
            ),
            outputs=OUTPUTS,
            shape=(rows, columns),
        ),
        rate=options.rate,
        steps=steps,
        tolerance=options.tolerance,
    )
    pairs = Split(place.inputs(coarsen(fields)), place.target(fields))
    source = Examples(name="downscaling", train=pairs, test=pairs)
    pair.train(
        passes(source, batch=options.batch, epochs=options.epochs, seed=seed),
        lambda output, target: (area * (output - target).square()).mean(),
        steps=steps,
        name=f"seed {seed}",
    )
    return pair


@torch.no_grad()
def predict(network: torch.nn.Module, place: Downscaling, coarse: Tensor) -> Tensor:
    network.eval()
    return torch.cat(
        [place.fields(network(place.inputs(part)), part) for part in coarse.split(10)]
    )


def measures(predicted: Tensor, truth: Tensor, place: Downscaling) -> dict[str, float]:
    """Errors in kelvin over all points and over the extremes, and how far quantiles are off."""
    weights = area_weights(truth.shape[1])
    found = {}
    masks: dict[str, Tensor | None] = {"all": None}
    masks["coldest"], masks["hottest"] = extremes(truth, TAIL, weights=weights)
    unusual = truth - place.climatology
    masks["below normal"], masks["above normal"] = extremes(unusual, TAIL, weights=weights)
    for name, where in masks.items():
        of = errors(predicted, truth, weights=weights, where=where)
        found |= {
            f"RMSE, {name}": of.rmse,
            f"MAE, {name}": of.mae,
            f"bias, {name}": of.bias,
        }
    for share in QUANTILES:
        true = quantile(unusual, share, weights=weights)
        mine = quantile(predicted - place.climatology, share, weights=weights)
        found[f"quantile {share:.1%} of anomalies, error"] = mine - true
    return found


def run(options: argparse.Namespace) -> list[Row]:
    """Every measure of every way and seed, as it is in the file."""
    known, truth = load()
    known, truth = known[: options.limit], truth[: options.limit]
    place = Downscaling.learn(known)
    coarse = coarsen(truth)
    rows: list[Row] = []

    def note(way: str, seed: int | None, found: dict[str, float]) -> None:
        rows.extend(Row(way, seed, measure, value) for measure, value in found.items())

    simple = interpolate(coarse), place.delta(coarse), place.regression(coarse)
    guesses = dict(zip(BASELINES, simple, strict=True))
    for way, guess in guesses.items():
        note(way, None, measures(guess, truth, place))
    for seed in options.seeds:
        pair = train(known, place, seed=seed, options=options)
        for way, training in zip(NETWORKS, (pair.plain, pair.encke), strict=True):
            guess = predict(training.network, place, coarse)
            guesses.setdefault(way, guess)
            note(way, seed, measures(guess, truth, place))
            note(way, seed, {"training loss": sum(training.losses[-10:]) / 10})
        found = {"kept, times smaller": pair.kept(), "relative time": pair.relative_time()}
        note(NETWORKS[1], seed, found)
        measured.write(options.out, rows)
    if options.picture is not None:
        from climate_picture import draw

        draw(guesses, truth, place, out=options.picture)
    return measured.read(options.out)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        __doc__, epochs=4, batch=6, width=8, rate=1e-2, results="climate.csv"
    )
    return command.carry_out(parser.parse_args(arguments), run, tables)


if __name__ == "__main__":
    sys.exit(main())
