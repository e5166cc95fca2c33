"""Solving where the placement says, handing solutions to who needs them, preconditioning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from encke.wire.kfac.collectives import Collectives
from encke.wire.kfac.factors import Factors, mean_trace
from encke.wire.kfac.family import Family, families, packed, restore
from encke.wire.kfac.placement import Placement
from encke.wire.kfac.settings import Method
from encke.wire.kfac.solve import eigen_of, inverse_of, split_damping
from encke.wire.kfac.unit import Unit


class Solutions:
    """The solved factors that this rank holds, and the products with them."""

    def __init__(
        self, factors: Factors, comm: Collectives, *, method: Method, fraction: float
    ) -> None:
        self.factors = factors
        self._comm = comm
        self._method: Method = method
        units = factors.units
        self.placement = Placement.of(
            [unit.cost for unit in units], world=comm.world, fraction=fraction
        )
        like = factors.stacks[0].sum
        members: list[list[tuple[int, Unit]]] = [[] for _ in self.placement.columns]
        for number, unit in enumerate(units):
            members[self.placement.column_of(number)].append((number, unit))
        made = [families(m, device=like.device, dtype=like.dtype) for m in members]
        self.families: list[list[Family]] = [group for group, _ in made]
        self._results: list[Tensor] = [flat for _, flat in made]
        self._column = comm.rank // self.placement.workers
        for family in self.held:
            family.hold(method=method)
        self._within = self._groups(self.placement.columns)
        self._across = self._groups(self.placement.rows)
        #: λ of the solutions, and the units that have one somewhere.
        self.damping = 0.0
        self.ready = [False] * len(units)

    @property
    def held(self) -> list[Family]:
        """The families of this rank's column."""
        return self.families[self._column]

    def _groups(self, groups: Sequence[tuple[int, ...]]) -> Collectives | None:
        """This rank's of several groups; every rank takes part in making each."""
        if len(groups[0]) == 1:
            return None
        if len(groups) == 1:
            return self._comm
        made = [self._comm.subgroup(ranks) for ranks in groups]
        return made[next(i for i, ranks in enumerate(groups) if self._comm.rank in ranks)]

    def renew(self, *, damping: float, refuse: Callable[[int], None]) -> None:
        """Solve what has been seen and is this rank's, and share it within the column."""
        factors, me = self.factors, self._comm.rank
        seen = [updates > 0 for updates in factors.updates]
        mine = [n for n, who in enumerate(self.placement.solver) if who == me and seen[n]]
        self._solve(mine, damping, refuse)
        if self._within is not None:
            self._share()
        self.restored(damping=damping)

    def _solve(
        self, mine: Sequence[int], damping: float, refuse: Callable[[int], None]
    ) -> None:
        factors = self.factors
        wanted = set(mine)
        traces = torch.cat([mean_trace(stack, stack.mean) for stack in factors.stacks])
        damped = split_damping(traces, factors.partner.to(traces.device), damping)
        holders = {
            (number, name): (half, family.inside[i])
            for family in self.held
            for name, half in family.halves()
            for i, number in enumerate(family.numbers)
        }
        by_stack: dict[int, list[tuple[int, str]]] = {}
        for (number, name), address in factors.at.items():
            if number in wanted:
                by_stack.setdefault(id(address.stack), []).append((number, name))
        for stack in factors.stacks:
            keys = by_stack.get(id(stack), [])
            if not keys:
                continue
            whole = sum(factors.units[number].groups for number, _ in keys) == len(stack.mean)
            places = [factors.at[key].inside for key in keys]
            batch = stack.mean if whole else torch.cat([stack.mean[p] for p in places])
            if self._method == "inverse":
                own = damped[stack.slots]
                own = own if whole else torch.cat([own[p] for p in places])
                solved = inverse_of(batch, damping=own)
            else:
                solved = eigen_of(batch)
            first = 0
            for key in keys:
                half, inside = holders[key]
                stop = first + factors.units[key[0]].groups
                _put(half.matrix, inside, solved.matrix, slice(first, stop))
                _put(half.values, inside, solved.values, slice(first, stop))
                if bool(solved.clamped[first:stop].any()):
                    refuse(key[0])
                first = stop

    def _share(self) -> None:
        """Every solver of the column gives its solutions to the others."""
        assert self._within is not None
        ranks = self.placement.columns[self._column]
        symmetric = self._method == "inverse"
        underway = []
        for source, rank in enumerate(ranks):
            owned = {n for n, solver in enumerate(self.placement.solver) if solver == rank}
            parts = self._parts(owned)
            if not parts:
                continue
            message = torch.cat([p.flatten() for p in packed(parts, symmetric=symmetric)])
            sent = self._within.broadcast(
                message, source=source, bound=None, name=f"kfac.solutions.{rank}"
            )
            underway.append((rank, parts, sent))
        for rank, parts, sent in underway:
            if rank == self._comm.rank:
                continue
            shapes = [p.shape for p in packed(parts, symmetric=symmetric)]
            pieces = torch.split(sent.wait(), [shape.numel() for shape in shapes])
            for target, piece, shape in zip(parts, pieces, shapes, strict=True):
                restore(target, piece.view(shape), symmetric=symmetric)
        for rank, _, sent in underway:
            if rank == self._comm.rank:
                sent.wait()

    def _parts(self, chosen: set[int]) -> list[Tensor]:
        """The solution tensors of the chosen units, in an order that all ranks share."""
        return [
            part
            for family in self.held
            for _, half in family.halves()
            for i, number in enumerate(family.numbers)
            if number in chosen
            for part in half.parts(family.inside[i])
        ]

    def parts_of(self, unit: int) -> list[Tensor]:
        """The tensors that hold a unit's solution; none where this rank has none."""
        return self._parts({unit})

    def restored(self, *, damping: float) -> None:
        """What `parts_of` gives has been filled, for every unit that has been seen."""
        self.damping = damping
        for family in self.held:
            family.solved(damping=damping)
        self.ready = [updates > 0 for updates in self.factors.updates]

    def precondition(self, *, kl_clip: float | None, lr: float) -> float:
        """Replace the gradients of all solved units; what the clip multiplied them with."""
        active: list[tuple[Family, list[int]]] = []
        sources: list[Tensor] = []
        gradients: list[Tensor] = []
        targets: list[Tensor] = []
        for family in (f for column in self.families for f in column):
            members = [
                i
                for i, number in enumerate(family.numbers)
                if self.ready[number] and family.units[i].has_gradient()
            ]
            if len(members) < len(family.units):
                family.gradient.zero_()
            for i in members:
                sources += family.sources[i]
                targets += family.targets[i]
                gradients += family.units[i].gradients()
            active.append((family, members))
        if not gradients:
            return 1.0
        torch._foreach_copy_(sources, gradients)
        for family in self.held:
            family.run()
        self._exchange_results()
        scale = 1.0
        if kl_clip is not None:
            products = [
                torch.dot(f.gradient.flatten(), f.result.flatten()) for f, m in active if m
            ]
            change = lr * lr * float(torch.stack(products).sum())
            scale = min(1.0, math.sqrt(kl_clip / change)) if change > 0 else 1.0
            if scale < 1.0:
                for flat in self._results:
                    flat.mul_(scale)
        torch._foreach_copy_(gradients, targets)
        return scale

    def _exchange_results(self) -> None:
        """Along this rank's row, each column gives its preconditioned gradients."""
        if self._across is None:
            return
        underway = [
            (
                column,
                self._across.broadcast(
                    flat, source=column, bound=None, name=f"kfac.result.{column}"
                ),
            )
            for column, flat in enumerate(self._results)
            if flat.numel()  # with more columns than units, some have none
        ]
        for column, sent in underway:
            received = sent.wait()
            if column != self._column:
                self._results[column].copy_(received)


def _put(into: Tensor | None, inside: slice, solved: Tensor | None, taken: slice) -> None:
    if into is not None and solved is not None:
        into[inside] = solved[taken]
