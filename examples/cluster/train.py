"""A small training on all ranks that torchrun or SLURM start, gradients compressed.

torchrun --nproc-per-node=2 examples/cluster/train.py --wire auto
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from encke import wire


def network() -> nn.Sequential:
    hidden = [nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(512, 10))


def batch(rank: int, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    own = torch.Generator().manual_seed(10_000 * rank + step)
    x = torch.randn(128, 64, generator=own)
    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))
    return x.to(device), (x @ teacher).argmax(1).to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire", default="auto", help="auto, entropy, fixed or off")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, help="folder to resume from and save to")
    arguments = parser.parse_args()

    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    torch.manual_seed(0)
    wrapped = wire.ddp(
        network().to(device),
        wire=arguments.wire,
        tolerance=arguments.tolerance,
        sample_batch=batch(rank, 0, device),
        replan=100,
    )
    model, comm = wrapped.model, wrapped.comm
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    own = arguments.checkpoint / f"{rank}.pt" if arguments.checkpoint else None
    if own is not None and own.exists():  # every rank has a state of its own
        state = torch.load(own, map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        if comm is not None and state["comm"] is not None:
            comm.load_state_dict(state["comm"])
    for step in range(first, first + arguments.steps):
        x, target = batch(rank, step, device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    if own is not None:
        own.parent.mkdir(parents=True, exist_ok=True)
        torch.save(
            {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": first + arguments.steps,
                "comm": comm.state_dict() if comm is not None else None,
            },
            own,
        )
    if rank == 0:
        print(wrapped.explain())
        if comm is not None:
            plain, sent = comm.gradients.plain_bytes, comm.exchange.sent_bytes
            print(f"rank 0 sent {sent:,} bytes for {plain:,} bytes of gradients")
    if comm is not None:
        comm.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
