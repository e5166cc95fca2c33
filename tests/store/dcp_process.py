"""A checkpoint that another process writes: torch's asynchronous saves of that kind."""

from __future__ import annotations

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from encke import store


def main(folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    dist.init_process_group("gloo")
    state = {"model": nn.Linear(5, 6).state_dict(), "n": 3}
    dcp.async_save(
        state,
        storage_writer=store.dcp.Writer(folder),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    ).result()
    found = {"model": {n: torch.zeros_like(x) for n, x in state["model"].items()}, "n": 0}
    dcp.load(found, storage_reader=store.dcp.Reader(folder))
    assert all(torch.equal(found["model"][n], x) for n, x in state["model"].items())
    assert found["n"] == 3
    print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
