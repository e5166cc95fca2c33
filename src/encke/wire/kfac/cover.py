"""Which parameters of a model are covered, by which units, and which are not and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from encke.wire.kfac.rows import (
    Convolution,
    Reader,
    convolution_rows,
    embedding_rows,
    linear_rows,
)
from encke.wire.kfac.unit import Side, Unit

#: Names of the four matrices of `nn.MultiheadAttention`.
PROJECTIONS = ("query", "key", "value", "out")


@dataclass(frozen=True, kw_only=True)
class Uncovered:
    """A trainable parameter whose gradient is left as it is."""

    name: str
    shape: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.shape}: {self.reason}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Where a unit is used: a module, how its rows are read, and which part of it."""

    module: nn.Module
    unit: Unit
    read: Reader
    part: str = ""


@dataclass(kw_only=True, eq=False)
class Cover:
    """Units in the order of the model, the places that use them, and what is left over."""

    units: list[Unit] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    uncovered: list[Uncovered] = field(default_factory=list)


def cover(model: nn.Module, *, largest_factor: int, dtype: torch.dtype) -> Cover:
    """Every layer that K-FAC knows, in one pass over the model.

    Modules of one kind that share their parameters become one unit that is used in several
    places. A parameter that different kinds of layers share is covered by neither.
    """
    finder = _Finder(largest_factor=largest_factor, dtype=dtype)
    for name, module in model.named_modules():
        finder.visit(name, module)
    return finder.result(model)


@dataclass(kw_only=True, eq=False)
class _Finder:
    largest_factor: int
    dtype: torch.dtype
    _known: dict[tuple[object, ...], Unit] = field(default_factory=dict)
    _places: list[Place] = field(default_factory=list)
    _reasons: dict[int, str] = field(default_factory=dict)
    _skip: set[int] = field(default_factory=set)

    def visit(self, name: str, module: nn.Module) -> None:
        if id(module) in self._skip:
            return
        match module:
            case nn.MultiheadAttention():
                self._skip.add(id(module.out_proj))
                if self._accept(module, nn.MultiheadAttention):
                    self._attention(name, module)
            case nn.Linear():
                if self._accept(module, nn.Linear):
                    self._linear(name, module)
            case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
                kind = next(
                    k for k in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(module, k)
                )
                if self._accept(module, kind):
                    self._convolution(name, module)
            case nn.Embedding():
                if self._accept(module, nn.Embedding):
                    self._embedding(name, module)
            case _:
                self._explain(
                    module, f"{type(module).__name__} is not a kind of layer that K-FAC knows"
                )

    def _accept(self, module: nn.Module, kind: type[nn.Module]) -> bool:
        if type(module).forward is not kind.forward:
            reason = f"{type(module).__name__} has a forward of its own"
        elif any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
            reason = "it is lazy: run the model once before"
        elif any(hasattr(p, "device_mesh") for p in module.parameters()):
            reason = "it is sharded over ranks"
        elif hasattr(module, "parametrizations"):
            reason = "it is made from other parameters (torch.nn.utils.parametrize)"
        else:
            return True
        for child in module.modules():
            self._explain(child, reason)
        return False

    def _explain(self, module: nn.Module, reason: str) -> None:
        for parameter in module.parameters(recurse=False):
            self._reasons.setdefault(id(parameter), reason)

    def _side(self, size: int, *, diagonal: bool = False) -> Side:
        return Side(size=size, diagonal=diagonal or size > self.largest_factor)

    def _add(self, place: Place) -> None:
        unit = place.unit
        key = (id(unit.weight), id(unit.bias), unit.weight_first, unit.shape, unit.input_side)
        known = self._known.setdefault(key, unit)
        if known is not unit:
            place = Place(module=place.module, unit=known, read=place.read, part=place.part)
        self._places.append(place)

    def _trainable(self, module: nn.Module) -> tuple[nn.Parameter | None, nn.Parameter | None]:
        """Weight and bias as far as they learn; a bias alone is not covered."""
        weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
        if bias is not None and not bias.requires_grad:
            bias = None
        if weight is None or not weight.requires_grad:
            self._explain(module, "the weight of its layer does not learn")
            return None, None
        return weight, bias

    def _linear(self, name: str, module: nn.Linear) -> None:
        weight, bias = self._trainable(module)
        if weight is None:
            return
        self._matrix(name, module, weight=weight, bias=bias, outputs=module.out_features)

    def _matrix(
        self,
        name: str,
        module: nn.Module,
        *,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        outputs: int,
        weight_first: int = 0,
        bias_first: int = 0,
        part: str = "",
    ) -> None:
        has_bias = bias is not None
        unit = Unit(
            name=name,
            weight=weight,
            bias=bias,
            groups=1,
            rows=self._side(outputs),
            columns=self._side(weight.shape[1] + has_bias),
            weight_first=weight_first,
            bias_first=bias_first,
        )
        read = partial(linear_rows, bias=has_bias, dtype=self.dtype)
        self._add(Place(module=module, unit=unit, read=read, part=part))

    def _convolution(self, name: str, module: Convolution) -> None:
        weight, bias = self._trainable(module)
        if weight is None:
            return
        has_bias = bias is not None
        unit = Unit(
            name=name,
            weight=weight,
            bias=bias,
            groups=module.groups,
            rows=self._side(module.out_channels // module.groups),
            columns=self._side(weight[0].numel() + has_bias),
        )
        read = partial(convolution_rows, module, bias=has_bias, dtype=self.dtype)
        self._add(Place(module=module, unit=unit, read=read))

    def _embedding(self, name: str, module: nn.Embedding) -> None:
        weight, _ = self._trainable(module)
        if weight is None:
            return
        for option in ("sparse", "scale_grad_by_freq", "max_norm"):
            if getattr(module, option):
                self._explain(module, f"nn.Embedding with {option} is not supported")
                return
        unit = Unit(
            name=name,
            weight=weight,
            bias=None,
            groups=1,
            rows=self._side(module.num_embeddings, diagonal=True),
            columns=self._side(module.embedding_dim),
            input_side="rows",
        )
        read = partial(
            embedding_rows,
            vocabulary=module.num_embeddings,
            padding=module.padding_idx,
            dtype=self.dtype,
        )
        self._add(Place(module=module, unit=unit, read=read))

    def _attention(self, name: str, module: nn.MultiheadAttention) -> None:
        prefix = f"{name}." if name else ""
        packed = module.in_proj_weight
        separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        bias: nn.Parameter | None = module.in_proj_bias
        if bias is not None and not bias.requires_grad:
            bias = None
        for number, part in enumerate(PROJECTIONS[:3]):
            weight = packed if packed is not None else separate[number]
            if weight is None or not weight.requires_grad:
                continue
            first = number * module.embed_dim
            self._matrix(
                prefix + part,
                module,
                weight=weight,
                bias=bias,
                outputs=module.embed_dim,
                weight_first=first if packed is not None else 0,
                bias_first=first,
                part=part,
            )
        out_weight, out_bias = self._trainable(module.out_proj)
        if out_weight is not None:
            self._matrix(
                prefix + "out",
                module,
                weight=out_weight,
                bias=out_bias,
                outputs=module.embed_dim,
                part="out",
            )
        self._explain(module, "bias_k and bias_v of attention are not a layer's weights")

    def result(self, model: nn.Module) -> Cover:
        owners: dict[tuple[int, int], set[Unit]] = {}
        for unit in self._known.values():
            for parameter, first in unit.claims():
                owners.setdefault((id(parameter), first), set()).add(unit)
        torn = {unit for units in owners.values() if len(units) > 1 for unit in units}
        units = [unit for unit in self._known.values() if unit not in torn]
        names = {id(p): n for n, p in model.named_parameters()}
        for unit in torn:
            others = sorted(u.name for u in torn if u.weight is unit.weight)
            for parameter, _ in unit.claims():
                self._reasons[id(parameter)] = (
                    f"shared by layers that differ: {', '.join(others)}"
                )
        held = {id(parameter) for unit in units for parameter, _ in unit.claims()}
        uncovered = [
            Uncovered(
                name=names[id(p)],
                shape=tuple(p.shape),
                reason=self._reasons.get(id(p), "no layer was found that uses it"),
            )
            for p in model.parameters()
            if p.requires_grad and id(p) not in held
        ]
        kept = [place for place in self._places if place.unit in set(units)]
        return Cover(units=units, places=kept, uncovered=uncovered)
