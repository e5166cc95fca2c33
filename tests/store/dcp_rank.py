"""One rank of a test: saves or loads a sharded model through torch.distributed.checkpoint."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from encke import store


def parts(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 30))
    init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: Any) -> None:
    x = torch.ones(16, 40) * torch.linspace(-1, 1, 16)[:, None] + torch.randn(16, 40)
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: x.full_tensor().clone() for n, x in model.state_dict().items()}  # type: ignore[union-attr]


def main() -> None:
    action, folder, truth = sys.argv[1:4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer = parts(0 if action != "load" else 7)
    if action == "save":
        train(model, optimizer)
        states = get_state_dict(model, optimizer)
        state = {"model": states[0], "optim": states[1], "epoch": 5}
        dcp.save(state, storage_writer=store.dcp.Writer(folder, loss=1e-9, examples=16))
        found = whole(model)
        if dist.get_rank() == 0:
            store.save(truth, found)
    else:
        train(model, optimizer)
        states = get_state_dict(model, optimizer)
        state = {"model": states[0], "optim": states[1], "epoch": 0}
        dcp.load(state, storage_reader=store.dcp.Reader(folder))
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
        )
        found = whole(model)
        expected = store.load(truth)["model"]
        apart = max(float((found[n] - x).abs().max()) for n, x in expected.items())
        scale = max(float(x.abs().max()) for x in expected.values())
        assert state["epoch"] == 5
        assert 0 < apart < 0.2 * scale, (apart, scale)
        v = [s["exp_avg_sq"] for s in optimizer.state.values()]
        assert all(bool((x.full_tensor() >= 0).all()) for x in v)
        train(model, optimizer)
    dist.barrier()
    if dist.get_rank() == 0:
        print("done", os.environ["WORLD_SIZE"], flush=True)
    dist.destroy_process_group()
    os._exit(0)  # now and then torch's own threads abort a process that ends in the usual way


if __name__ == "__main__":
    main()
