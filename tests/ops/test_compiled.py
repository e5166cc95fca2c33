"""Under torch.compile a round trip is one graph, and gives what eager code gives."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from encke.bound import Absolute, Bound, FixedRate, Lossless, PointwiseRelative, RangeRelative
from encke.codec import compress, decompress
from encke.ops import quantiser, schema

CASES: list[tuple[str, Bound, dict[str, Any]]] = [
    ("fixed", Absolute(0.1), {}),
    ("fixed", Absolute(0.1), {"dither": True, "seed": 4}),
    ("fixed", RangeRelative(0.01), {}),
    ("fixed", RangeRelative(0.01), {"keep_nonzero": True}),
    ("fixed", PointwiseRelative(0.01), {}),
    ("entropy", Absolute(0.1), {}),
    ("entropy", RangeRelative(0.01), {"dither": True, "seed": 4}),
    ("group", FixedRate(4), {"seed": 4}),
    ("mask", Lossless(), {}),
    ("index", Lossless(), {}),
]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def values(codec: str, seed: int = 0, shape: tuple[int, ...] = (12, 90)) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).relu_()
    if codec == "mask":
        return x > 0
    return (x * 30).to(torch.int32) if codec == "index" else x


def round_trip(codec: str, bound: Bound, options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        return decompress(compress(x, bound, codec=codec, **options))

    return call


def bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize(("codec", "bound", "options"), CASES, ids=str)
def test_a_round_trip_is_one_graph_that_new_values_do_not_compile_again(
    codec: str, bound: Bound, options: dict[str, Any]
) -> None:
    eager = round_trip(codec, bound, options)
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            x = values(codec, seed)
            x = x if codec == "mask" else x * (seed + 1)
            assert torch.equal(bits(compiled(x)), bits(eager(x)))


def test_channels_last_and_transposed_inputs_come_back_with_their_values() -> None:
    eager = round_trip("fixed", Absolute(1e-3), {})
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True)
    image = torch.randn(2, 5, 6, 7, generator=torch.Generator().manual_seed(1))
    last = image.to(memory_format=torch.channels_last)
    y = compiled(last)
    assert torch.equal(y, eager(last))
    assert y.stride() == last.stride()
    x = torch.randn(9, 31, generator=torch.Generator().manual_seed(2)).t()
    assert (compiled(x) - x).abs().max().item() <= 1e-3


def test_inductor_gives_what_eager_gives() -> None:
    def step(x: Tensor) -> Tensor:
        y = torch.relu(x) * 2
        packed = compress(y, RangeRelative(0.05), codec="entropy", dither=True, seed=8)
        return decompress(packed) + 1

    compiled = torch.compile(step, fullgraph=True)
    for seed in (0, 1):
        x = torch.randn(3000, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(compiled(x), step(x))


@pytest.mark.parametrize("codec", ["fixed", "entropy"])
def test_shapes_may_be_symbols(codec: str) -> None:
    eager = round_trip(codec, Absolute(0.1), {})
    compiled = torch.compile(eager, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for count in (100, 250, 4000):
            x = values(codec, shape=(count, 3))
            assert torch.equal(compiled(x), eager(x))


def test_a_number_given_at_the_call_becomes_a_bound() -> None:
    def call(x: Tensor, error: float) -> Tensor:
        return decompress(compress(x, Absolute(error), codec="fixed"))

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for error in (0.1, 0.2, 0.3):
        assert torch.equal(compiled(values("fixed"), error), call(values("fixed"), error))


@pytest.mark.slow
def test_a_codec_that_cannot_be_traced_is_refused_with_those_that_can() -> None:
    # In a process of its own: once Dynamo has failed, Python holds arguments of calls for
    # longer there, and a tape has to take them for tensors that somebody may still use.
    program = (
        "import torch, encke\n"
        "def f(x): return encke.decompress(encke.compress(x, encke.Absolute(0.1)))\n"
        "torch.compile(f, backend='eager', fullgraph=True)(torch.randn(100))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    allowed = "fixed, entropy, group, mask, index"
    # torch puts what is raised while it traces into an error of its own.
    assert re.search(f"UnsupportedError.*'auto'.*allowed are {allowed}", done.stderr)


@pytest.mark.slow
def test_importing_encke_is_all_that_compiling_needs() -> None:
    program = (
        "import torch, encke\n"
        "def f(x): return encke.decompress("
        "encke.compress(x, encke.Absolute(0.1), codec='fixed'))\n"
        "x = torch.linspace(-1, 1, 100)\n"
        "y = torch.compile(f, backend='eager', fullgraph=True)(x)\n"
        "assert (y - x).abs().max() <= 0.1\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def numbers_of(kind: int, dtype: torch.dtype) -> Tensor:
    code = PointwiseRelative.code if kind == quantiser.POINTWISE else Absolute.code
    made: Tensor = torch.ops.encke.quantiser(torch.zeros(3, dtype=dtype), code, 0.1, kind)
    return made


def samples() -> dict[str, list[tuple[Any, ...]]]:
    """Arguments for every operator."""
    kinds = (quantiser.PLAIN, quantiser.HALF, quantiser.DITHER, quantiser.POINTWISE)
    ops = torch.ops.encke
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in schema._SCHEMAS}
    for dtype in FLOATS:
        x = values("fixed").to(dtype)
        # No NaN: opcheck compares values, and a NaN equals nothing.
        x[0, :3] = torch.tensor([-math.inf, math.inf, -0.0], dtype=dtype)
        for code in (Absolute.code, RangeRelative.code):
            found["quantiser"].append((x, code, 0.25, quantiser.DITHER))
        for name in ("fixed", "entropy"):
            for kind in kinds:
                arguments = (x, numbers_of(kind, dtype), 6)
                found[f"{name}_encode"].append(arguments)
                payload = getattr(ops, f"{name}_encode")(*arguments)
                found[f"{name}_decode"].append((payload, x.numel(), dtype))
        found["group_encode"].append((x, 4, True, 6))
        payload = ops.group_encode(x, 4, True, 6)
        found["group_decode"].append((payload, x.numel(), dtype))
    truth, index = values("mask"), values("index")
    found["mask_encode"].append((truth,))
    found["mask_decode"].append((ops.mask_encode(truth), truth.numel()))
    found["index_encode"].append((index,))
    found["index_decode"].append((ops.index_encode(index), index.numel(), index.dtype))
    return found


@pytest.mark.parametrize("name", schema._SCHEMAS)
def test_an_operator_is_what_its_schema_and_its_fake_say(name: str) -> None:
    arguments = samples()[name]
    assert arguments
    for taken in arguments:
        torch.library.opcheck(getattr(torch.ops.encke, name).default, taken)
