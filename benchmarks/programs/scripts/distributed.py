"""Two ranks on one machine over gloo, started with spawn: DistributedDataParallel, FSDP2."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from data import batch, pictures
from log import Log, arguments
from resnet import ResNet
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def ddp():
    return DistributedDataParallel(ResNet(width=16, depth=(1, 1, 1)))


def fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 512), nn.GELU())
    for _ in range(3):
        block = nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 1024), nn.GELU())
        block.append(nn.Linear(1024, 512))
        fully_shard(block, mesh=mesh)
        model.append(block)
    model.append(nn.Linear(512, 10))
    return fully_shard(model, mesh=mesh)


def worker(rank, world, args, meeting):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world)
    torch.manual_seed(args.seed)
    images, labels = pictures(1024, 32)
    images, labels = images[rank::world], labels[rank::world]
    model = {"ddp": ddp, "fsdp": fsdp}[args.name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    size = {"ddp": 32, "fsdp": 256}[args.name]
    log = Log()
    for step in range(args.steps):
        x, y = batch(step, size, images, labels)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    if rank == 0:
        log.end()
    dist.destroy_process_group()


def main():
    args = arguments(steps=30, names=("ddp", "fsdp"))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (2, args, os.path.join(folder, "meeting")), nprocs=2)


if __name__ == "__main__":
    main()
