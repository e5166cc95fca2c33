"""FSDP2: its reduce-scatter of gradients, taken over unit by unit.

FSDP2 lets a unit's reduce-scatter be replaced. What it hands over is one flat tensor of as
many chunks as there are ranks; each chunk has a part of every parameter, one after another.
Where these parts lie follows from FSDP2's own list of parameters, which is private to
torch: all that is asked of it stands in `_parts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from encke.errors import UnsupportedError
from encke.wire.message import Stretch

if TYPE_CHECKING:
    from encke.wire.comm import CompressedComm


class CompressedReduceScatter(ReduceScatter):
    """The mean or the sum of one unit's gradients, each rank's part on that rank."""

    def __init__(
        self, comm: CompressedComm, names: Sequence[str], parts: Sequence[int]
    ) -> None:
        self._comm = comm
        self._names = names
        self._parts = parts  # values of each parameter in one rank's chunk
        self._step = 0

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        factor = self._factor(op, group)
        self._step += 1
        step = self._step
        queue = self._comm.queue

        def work() -> Tensor:
            # Every unit's last step is over when the first one's next begins.
            queue.completed_step = max(queue.completed_step, step - 1)
            return self._comm.gradients.reduce_scatter(
                input_tensor, self._chunks(input_tensor.numel()), step=step
            )

        done = self._comm.submit(
            work,
            input_tensor,
            what=f"the unit of {self._names[0]} … in step {step}",
        )
        output_tensor.copy_(done.wait())
        if factor != 1:
            output_tensor.mul_(factor)

    def _factor(self, op: Any, group: Any) -> float:
        """What makes of a mean over ranks the result of `op`."""
        world = dist.get_world_size(group)
        if world != self._comm.world:
            raise UnsupportedError(
                f"FSDP2 shards over {world} ranks, this CompressedComm has {self._comm.world}; "
                "make it with group= the mesh's shard dimension"
            )
        if op == dist.ReduceOp.AVG:
            return 1.0
        if op == dist.ReduceOp.SUM:
            return float(world)
        raise UnsupportedError(
            f"FSDP2 asks for {op}, the wire gives means and sums; leave the gradient divide "
            "factor alone, or call set_force_sum_reduction_for_comms(True)"
        )

    def _chunks(self, values: int) -> list[list[Stretch]]:
        chunk = values // self._comm.world
        if chunk != sum(self._parts):  # unused parameters have no gradient to reduce
            return [
                [Stretch(f"{self._names[0]}…", rank * chunk, (rank + 1) * chunk)]
                for rank in range(self._comm.world)
            ]
        chunks = []
        for rank in range(self._comm.world):
            start, stretches = rank * chunk, []
            for name, part in zip(self._names, self._parts, strict=True):
                stretches.append(Stretch(name, start, start + part))
                start += part
            chunks.append(stretches)
        return chunks


def attach(comm: CompressedComm, module: nn.Module) -> int:
    """Replace the reduce-scatter of every FSDP2 unit in `module`."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    units = 0
    for unit in module.modules():
        if not isinstance(unit, FSDPModule):
            continue
        listed = _parts(unit, comm.world)
        if not listed:
            continue  # a root whose parameters all belong to units within it
        unit.set_custom_reduce_scatter(
            CompressedReduceScatter(
                comm, [names[id(parameter)] for parameter, _ in listed], [n for _, n in listed]
            )
        )
        units += 1
    if not units:
        raise UnsupportedError(
            "no FSDP2 unit in this module; call torch.distributed.fsdp.fully_shard first"
        )
    return units


def _parts(unit: Any, world: int) -> list[tuple[nn.Parameter, int]]:
    """The unit's parameters in FSDP2's order, with the values each has in a chunk."""
    found = []
    for group in unit._get_fsdp_state()._fsdp_param_groups:
        for managed in group.fsdp_params:
            parameter = managed.sharded_param
            rows, *others = (
                managed._orig_size
                if managed.fsdp_placement.dim == 0
                else (
                    managed.sharded_size[0] * world,
                    *managed.sharded_size[1:],
                )
            )
            found.append((parameter, -(-rows // world) * math.prod(others)))
    return found
