"""The names that the tables of benchmarks/results give to ways to train."""

from __future__ import annotations

from encke.study.ways import Way, parse

WAYS: dict[str, Way] = {
    name: parse(text)
    for name, text in {
        "plain": "plain",
        "bf16": "bf16",
        "checkpoint": "checkpoint",
        "save_on_cpu": "save_on_cpu",
        "group 4 bits": "group:bits=4",
        "group 2 bits": "group:bits=2",
        "ActNN/GACT rule, 2 bits": "group:bits=2,adaptive=true",
        "fixed 2%": "fixed:range=0.02",
        "fixed 10%, dithered": "fixed:range=0.1,dither=true",
        "COMET": "comet",
        "Encke": "encke",
        "Encke, ratio": "encke:prefer=ratio",
    }.items()
}
