"""What the ranks of a test do; each function runs on every rank and returns what it saw."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from small_cells import small_study, without_timings

from encke.study.exchange import parse, wrap
from encke.study.ranks import Ranks
from encke.study.train import own_state, train
from encke.study.training import Point, Training

LONGER = {"steps": 12, "points": 3, "pairs": 1, "train": 512, "test": 64}


def here() -> Ranks:
    return Ranks(rank=dist.get_rank(), world=dist.get_world_size())


def weights(directory: Path) -> list[torch.Tensor]:
    state = torch.load(directory / "checkpoint.pt", weights_only=True)
    return list(state["network"].values())


def whole_and_resumed(rank: int, folder: str) -> dict[str, Any]:
    """A training with a compressed wire, and the same from its checkpoint in the middle."""
    whole, half = Path(folder) / "whole", Path(folder) / "half"
    study = small_study("encke", training=LONGER)

    def keep(point: Point) -> None:
        if point["step"] == 8:
            shutil.copytree(whole, half)

    options = {"ranks": here(), "wire": parse("0.01")}
    row = train(study, whole, on_point=keep, **options)
    dist.barrier()
    middle = torch.load(half / "checkpoint.pt", weights_only=True)
    dist.barrier()
    again = train(study, half, resume=True, **options)
    dist.barrier()
    return {
        "status": row["status"],
        "rows": [json.dumps(without_timings(one)) for one in (row, again)],
        "whole": weights(whole),
        "half": weights(half),
        "middle": middle,
    }


def apart(rank: int, folder: str) -> list[torch.Tensor]:
    """Weights of a plain training whose batches are shared out, exchanged by DDP itself."""
    out = Path(folder) / "apart"
    train(
        small_study("plain", training=LONGER),
        out,
        ranks=here(),
        wire=parse("off"),
    )
    dist.barrier()
    return weights(out)


def other_number(rank: int, state: dict[str, Any]) -> int:
    """A state of two ranks, taken up by this number of them for the rest of the training."""
    from encke.study.cell import prepare

    (cell,) = small_study("encke", training=LONGER).cells
    training: Training = prepare(cell, ranks=here())
    training.wrapped = wrap(training, parse("0.01"))
    training.load_state_dict(own_state(state, here()))
    training.run()
    assert training.wrapped.comm is not None
    training.wrapped.comm.close()
    return training.step


def all_of(rank: int, folder: str) -> tuple[dict[str, Any], list[torch.Tensor]]:
    return whole_and_resumed(rank, folder), apart(rank, folder)
