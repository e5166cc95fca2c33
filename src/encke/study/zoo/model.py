"""A network of the zoo: how it is built, what it eats and what it is trained for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from encke.errors import UnsupportedError
from encke.study.zoo.batch import Batch

#: Batch size, source of randomness, every option of the model → a batch of real shapes.
Sampler = Callable[[int, torch.Generator, Mapping[str, Any]], Batch]


@dataclass(frozen=True, kw_only=True)
class Family:
    """An entry of the registry.

    `network` builds the module, and all its parameters have defaults: they are the options
    of the model. `shape` holds further options with their defaults that only say how large
    the samples are, for networks that take inputs of any size.
    """

    name: str
    about: str
    network: Callable[..., nn.Module]
    sample: Sampler
    loss: Callable[[Tensor, Tensor], Tensor]
    shape: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        required = [name for name, value in self.defaults().items() if value is Parameter.empty]
        if required:
            raise UnsupportedError(
                f"model {self.name!r}: the network's {', '.join(required)} have no default; "
                "every option needs one"
            )

    def defaults(self) -> dict[str, Any]:
        """Every option with the value it has unless another is given."""
        parameters = signature(self.network).parameters.values()
        return {p.name: p.default for p in parameters} | dict(self.shape)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A family with its options fixed.

    `options` may name some of the family's options; afterwards it holds them all.

    >>> from encke.study import zoo
    >>> model = zoo.model("gpt", n_layer=1, n_embd=32, n_head=2, block_size=16)
    >>> model.options["vocab"]
    65
    >>> (tokens,), target = model.sample_batch(4)
    >>> tokens.shape, target.shape
    (torch.Size([4, 16]), torch.Size([4, 16]))
    >>> model.build(seed=0)(tokens).shape
    torch.Size([4, 16, 65])
    """

    family: Family
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        defaults = self.family.defaults()
        unknown = sorted(self.options.keys() - defaults.keys())
        if unknown:
            raise UnsupportedError(
                f"model {self.name!r} was given {', '.join(unknown)}, its options are "
                f"{', '.join(f'{name}={value!r}' for name, value in defaults.items())}"
            )
        complete = MappingProxyType(defaults | dict(self.options))
        object.__setattr__(self, "options", complete)

    @property
    def name(self) -> str:
        """What the registry calls the family."""
        return self.family.name

    def build(self, *, seed: int | None = None) -> nn.Module:
        """A new network; with a seed its weights repeat, and torch's own generator stays."""
        options = {k: v for k, v in self.options.items() if k not in self.family.shape}
        if seed is None:
            return self.family.network(**options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.family.network(**options)

    def sample_batch(self, batch: int, *, seed: int = 0) -> Batch:
        """A synthetic batch with the shapes and types of real ones; equal for equal seeds."""
        if batch < 1:
            raise UnsupportedError(f"batch is {batch}, it must be at least 1")
        generator = torch.Generator().manual_seed(seed)
        return self.family.sample(batch, generator, self.options)

    def sample_input(self, batch: int, *, seed: int = 0) -> tuple[Tensor, ...]:
        """The arguments of `forward` in `sample_batch`."""
        return self.sample_batch(batch, seed=seed).inputs

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss that the network is trained with."""
        return self.family.loss(output, target)

    def loss_of(self, network: nn.Module, batch: Batch) -> Tensor:
        """The loss of `network` on `batch`: a forward pass."""
        return self.family.loss(network(*batch.inputs), batch.target)
