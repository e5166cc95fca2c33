"""Real tensors to measure codecs on: what two trained networks keep, and climate fields.

    python benchmarks/tensors.py --data DIRECTORY

trains both networks with fixed seeds (a minute or two) and saves their tensors to
build/bench/tensors.npz, so that every later run measures the same ones. Without a
directory, pictures come from scikit-learn's digits and text from the standard library's
sources, and the climate fields and jets are left out.

The bits of a trained activation depend on the machine's kernels: numbers that gate
anything come from fixtures.py instead.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import networks

CACHE = Path(__file__).parent.parent / "build" / "bench" / "tensors.npz"

#: What a tensor's name starts with, and the class it is charted and judged under.
CLASSES = ("activation", "gradient", "weight", "climate", "jets")


def tensor_class(name: str) -> str:
    """The class of a tensor, the part of its name before the slash."""
    return name.split("/")[0]


class Recorder:
    """Collects what passes through chosen modules during one forward and backward."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def keep(self, name: str, x: Tensor) -> None:
        self.tensors[name] = x.detach().contiguous().clone()

    def inputs_of(self, module: nn.Module, name: str) -> None:
        module.register_forward_pre_hook(lambda _, given: self.keep(name, given[0]))

    def outputs_of(self, module: nn.Module, name: str) -> None:
        module.register_forward_hook(lambda _, given, result: self.keep(name, result))

    def gradient_at_output_of(self, module: nn.Module, name: str) -> None:
        def watch(_: nn.Module, given: object, result: Tensor) -> None:
            result.register_hook(lambda gradient: self.keep(name, gradient))

        module.register_forward_hook(watch)


def resnet_tensors(data: Path | None, *, steps: int) -> dict[str, Tensor]:
    network, images, labels = networks.train_resnet(data, steps=steps)
    recorder = Recorder()
    recorder.outputs_of(network.stem[2], "activation/relu_early")
    recorder.outputs_of(network.stage3.relu1, "activation/relu_deep")
    recorder.inputs_of(network.stem[1], "activation/batchnorm_input_early")
    recorder.inputs_of(network.stage3.norm2, "activation/batchnorm_input_deep")
    recorder.gradient_at_output_of(network.stage1.conv1, "gradient/activation_conv")
    F.cross_entropy(network(images), labels).backward()
    weight = network.stage3.conv2.weight
    recorder.keep("gradient/weight_conv", weight.grad)
    recorder.keep("weight/conv", weight)
    return recorder.tensors


def gpt_tensors(data: Path | None, *, steps: int) -> dict[str, Tensor]:
    network, batch = networks.train_gpt(data, steps=steps)
    block = network.blocks[2]
    recorder = Recorder()
    recorder.inputs_of(block.gelu, "activation/gelu_input")
    recorder.outputs_of(block.gelu, "activation/gelu_output")
    recorder.inputs_of(block.norm2, "activation/layernorm_input")
    recorder.gradient_at_output_of(block.up, "gradient/activation_linear")
    logits = network(batch[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
    for name, x in block.attention.seen.items():
        recorder.keep(f"activation/attention_{name}", x)
    recorder.keep("gradient/weight_linear", block.up.weight.grad)
    recorder.keep("weight/linear", block.up.weight)
    return recorder.tensors


def stored_fields(data: Path) -> dict[str, Tensor]:
    """Climate fields and jet pictures, as they are in the directory."""
    fields: dict[str, Tensor] = {}
    with np.load(data / "climate.npz") as file:
        for name in ("TREFHT_57", "TS_b003", "uvt_U", "uvt_T"):
            fields[f"climate/{name}"] = torch.from_numpy(file[name]).squeeze(0)
    with np.load(data / "jets.npz") as file:
        fields["jets/top"] = torch.from_numpy(file["top"])
    return fields


def collect(
    data: Path | None, *, steps: int, say: Callable[[str], None] = print
) -> dict[str, Tensor]:
    """Every tensor by name, sorted; the same bits on the same machine."""
    torch.use_deterministic_algorithms(True)
    tensors: dict[str, Tensor] = {}
    for title, make in (("residual network", resnet_tensors), ("transformer", gpt_tensors)):
        started = time.perf_counter()
        tensors.update(make(data, steps=steps))
        say(f"{title}: {steps} steps in {time.perf_counter() - started:.0f} s")
    torch.use_deterministic_algorithms(False)
    if data is not None:
        tensors.update(stored_fields(data))
    return dict(sorted(tensors.items()))


def load(
    cache: Path = CACHE, *, data: Path | None = None, steps: int = 200
) -> dict[str, Tensor]:
    """The cached tensors, collected first if there is no cache."""
    if not cache.exists():
        print(f"no tensors at {cache}: training the networks first")
        save(collect(data, steps=steps), cache)
    with np.load(cache) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def save(tensors: dict[str, Tensor], cache: Path = CACHE) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.open("wb") as file:
        np.savez(file, **{name: x.numpy() for name, x in tensors.items()})


def data_directory(given: str | None) -> Path | None:
    """The directory of --data or ENCKE_DATA, or None when neither is given."""
    name = given or os.environ.get("ENCKE_DATA")
    if name is None:
        return None
    if not Path(name).is_dir():
        raise SystemExit(f"--data is {name!r}, which is no directory; give one that exists")
    return Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Collect the tensors that are measured.")
    parser.add_argument("--data", help="directory of real data (default: $ENCKE_DATA)")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each network")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tensors = collect(data_directory(options.data), steps=options.steps)
    save(tensors, options.cache)
    for name, x in tensors.items():
        print(f"{name:34} {'×'.join(map(str, x.shape)):18} {x.numel():9,} values")


if __name__ == "__main__":
    main()
