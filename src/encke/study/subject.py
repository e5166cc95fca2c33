"""What a cell trains: a network, its batches, its loss and its metric.

From the zoo and the data sources by name, or from a user's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from encke.study import data as sources
from encke.study import zoo
from encke.study.cells import Cell
from encke.study.data import Examples, Source, Text
from encke.study.fitting import fitted_options
from encke.study.metric import TEXT_LOSS, Metric, counted, default_metric
from encke.study.own import is_own, load_own, own_batches, own_loss, own_metric, own_network
from encke.study.settings import Settings
from encke.study.zoo import Batch

_TEST_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A network with everything that training it takes.

    train  the batches of an epoch, by its number
    steps  how many batches an epoch has
    """

    build: Callable[[], nn.Module]
    train: Callable[[int], Iterable[Batch]]
    test: Callable[[], Iterable[Batch]]
    steps: int
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Metric

    @torch.no_grad()
    def evaluate(self, network: nn.Module) -> tuple[float, float]:
        """Mean loss and metric on the test split."""
        was = network.training
        network.eval()
        loss = metric = 0.0
        count = 0
        for inputs, target in self.test():
            output = network(*inputs)
            weight = counted(target)
            found = float(self.loss(output, target))
            loss += found * weight
            measure = self.metric.measure
            metric += (found if measure is None else measure(output, target)) * weight
            count += weight
        network.train(was)
        return loss / max(1, count), metric / max(1, count)


def subject_of(cell: Cell) -> Subject:
    """What `cell` trains, its data loaded."""
    torch.manual_seed(cell.seed)
    settings = cell.training
    batches: Callable[[int], Iterable[Batch]]
    tests: Callable[[], Iterable[Batch]]
    if is_own(cell.data.of):
        loaders = load_own(cell.data.of, folder=cell.folder)
        train, test = own_batches(loaders, cell, settings)
        metric = own_metric(loaders)
        loss = own_loss(loaders)
        steps, batches, tests = len(train), train.of_epoch, test.all
        source: Source | None = None
    else:
        source = load_source(cell)
        steps, batches, tests = _from_source(source, settings, cell.seed)
        metric, loss = (TEXT_LOSS if isinstance(source, Text) else None), None
    build, network_loss, network_metric = _network(cell, source)
    loss = loss or network_loss or default_loss
    example = next(iter(tests())).target
    metric = metric or network_metric or default_metric(example)
    return Subject(
        build=build, train=batches, test=tests, steps=steps, loss=loss, metric=metric
    )


def load_source(cell: Cell) -> Source:
    """The data set of a cell, cut to what its training uses."""
    limits = {"train": cell.training.train, "test": cell.training.test}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    readers = {k: v for k, v in limits.items() if k in sources.options(cell.data.of)}
    source = sources.load(cell.data.of, **(readers | dict(cell.data.options)))
    return source.head(**limits) if isinstance(source, Examples) else source


def _from_source(
    source: Source, settings: Settings, seed: int
) -> tuple[int, Callable[[int], Iterable[Batch]], Callable[[], Iterable[Batch]]]:
    count = source.count("train")
    full = count >= settings.batch
    augment = source.augments() if settings.augment is None else settings.augment

    def train(epoch: int) -> Iterable[Batch]:
        return source.batches(
            "train", settings.batch, 1000 * seed + epoch, augment=augment, drop_last=full
        )

    def test() -> Iterable[Batch]:
        limit = settings.test if settings.test is not None else source.count("test")
        for number, batch in enumerate(source.batches("test", min(_TEST_BATCH, limit))):
            if number * _TEST_BATCH >= limit:
                break
            yield batch

    return max(1, count // settings.batch), train, test


def _network(
    cell: Cell, source: Source | None
) -> tuple[Callable[[], nn.Module], Callable[[Tensor, Tensor], Tensor] | None, Metric | None]:
    if is_own(cell.model.of):
        file = load_own(cell.model.of, folder=cell.folder)
        return lambda: own_network(file, cell), own_loss(file), own_metric(file)
    options: dict[str, Any] = dict(cell.model.options)
    if source is not None:
        options = fitted_options(options, zoo.model(cell.model.of).options, source)
    model = zoo.model(cell.model.of, **options)
    return lambda: model.build(seed=cell.seed), model.loss, None


def default_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of classes in the last dimension, the mean squared error of numbers."""
    if target.is_floating_point():
        return nn.functional.mse_loss(output, target)
    return zoo.cross_entropy(output, target)
