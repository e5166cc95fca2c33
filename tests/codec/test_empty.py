"""Every codec takes tensors without values, and no stream that claims to be one breaks it."""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Iterator

import pytest
import torch

import encke
from encke.bound import Bound
from encke.codec import Packed, names, registry
from encke.errors import CorruptStreamError
from encke.ops import native
from encke.ops.select import load, native_problem

SHAPES = [(0,), (3, 0), (0, 4, 5), (2, 3, 0, 4), (0, 0), (2, 0, 3, 4, 5), (2**57, 0, 1)]
BACKENDS = ["reference"] + ([] if native_problem() is not None else native.isa_available())
BOUNDS: dict[str, Bound] = {
    "group": encke.FixedRate(4),
    "mask": encke.Lossless(),
    "index": encke.Lossless(),
    "lossless": encke.Lossless(),
}
CASES = [
    pytest.param(codec, dtype, id=f"{codec}-{str(dtype).removeprefix('torch.')}")
    for codec in names()
    for dtype in sorted(registry.by_name(codec).dtypes, key=str)
]
#: Mode and plan bytes of every way to predict.
PLANS = {
    "lorenzo": (1, [1, 2]),
    "lorenzo of three axes": (1, [2, 3]),
    "regression": (2, [1, 1, 8]),
    "regression of three axes": (2, [2, 3, 64]),
    "interpolation": (3, [0, 0]),
    "interpolation of differences": (3, [1, 1]),
    "a halving of the first axis": (3, [0, 0, 0 | 8 << 2]),
    "a halving of the last axis": (3, [0, 1, 3 | 8 << 2]),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "reference":
        yield "reference"
        return
    before = native.isa()
    native.use_isa(request.param)
    yield "native"
    native.use_isa(before)


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_a_tensor_without_values_comes_back(
    codec: str, dtype: torch.dtype, backend: str
) -> None:
    bound = BOUNDS.get(codec, encke.Absolute(1e-2))
    for shape in SHAPES:
        x = torch.empty(shape, dtype=dtype)
        blob = encke.compress(x, bound, codec=codec, backend=backend).to_bytes()
        packed = Packed.from_bytes(blob)
        y = packed.decompress(backend=backend)
        assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
        assert packed.decompress(out=x, backend=backend) is x
        assert packed.max_error(x) == 0.0
        assert packed.decompress(backend="reference").shape == x.shape
        assert f"{packed}{packed!r}"  # a ratio of 0 / n is no division by zero


@pytest.mark.parametrize("codec", [name for name in names() if name not in BOUNDS])
def test_every_option_takes_a_tensor_without_values(codec: str, backend: str) -> None:
    options: list[dict[str, object]] = [{}]
    if codec != "zfp":
        options += [{"dither": True, "seed": 3}, {"keep_nonzero": True}]
    bounds: list[Bound] = [encke.Absolute(0.1), encke.RangeRelative(0.1), encke.RmsRelative(1)]
    bounds += [encke.PointwiseRelative(0.1)] if codec in ("fixed", "entropy") else []
    for shape, bound, how in itertools.product(SHAPES, bounds, options):
        if bound.kind == "pointwise" and "dither" in how:
            continue  # has no meaning, whatever the tensor
        packed = encke.compress(
            torch.empty(shape),
            bound,
            codec=codec,
            backend=backend,
            **how,  # type: ignore[arg-type]
        )
        y = Packed.from_bytes(packed.to_bytes()).decompress(backend=backend)
        assert tuple(y.shape) == shape


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_a_permuted_tensor_without_values_comes_back(
    shape: tuple[int, ...], backend: str
) -> None:
    for order in itertools.islice(itertools.permutations(range(len(shape))), 8):
        x = torch.empty(shape).permute(order)
        for codec in ("auto", "fixed", "entropy", "predict", "group", "lossless", "zfp"):
            packed = encke.compress(x, encke.Absolute(0.1), codec=codec, backend=backend)
            for memory_order in (packed.order, order):
                moved = dataclasses.replace(packed, order=memory_order)
                y = Packed.from_bytes(moved.to_bytes()).decompress(backend=backend)
                assert (y.shape, y.dtype) == (x.shape, x.dtype)


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_a_payload_with_values_is_refused_where_the_shape_has_none(
    codec: str, dtype: torch.dtype, backend: str
) -> None:
    x = torch.arange(120).sin().mul(40).view(2, 3, 5, 4)
    full = x > 0 if dtype == torch.bool else x.abs().to(dtype)
    packed = encke.compress(full, BOUNDS.get(codec, encke.Absolute(1e-2)), codec=codec)
    for shape in SHAPES:
        order = tuple(reversed(range(len(shape))))
        claims = dataclasses.replace(packed, shape=shape, order=order)
        with pytest.raises(CorruptStreamError):
            Packed.from_bytes(claims.to_bytes()).decompress(backend=backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("plan", PLANS)
def test_nothing_is_predicted_where_the_shape_has_no_values(
    plan: str, dtype: torch.dtype, backend: str
) -> None:
    mode, own = PLANS[plan]
    empty = Packed.from_bytes(
        encke.compress(
            torch.empty(0, dtype=dtype), encke.Absolute(0.5), codec="predict"
        ).to_bytes()
    )
    head = bytes(8) + struct.pack("<ddQ", 0.5, 0.0, 0)
    for shape, flags, runs in itertools.product(SHAPES, (0, 1, 3), (bytes(1), bytes(8))):
        payload = head + bytes([mode, flags, 0, len(own), *own]) + bytes(2) + runs
        claims = dataclasses.replace(
            empty,
            shape=shape,
            order=tuple(range(len(shape))),
            payload=torch.frombuffer(bytearray(payload), dtype=torch.uint8),
        )
        with pytest.raises(CorruptStreamError):
            Packed.from_bytes(claims.to_bytes()).decompress(backend=backend)


def test_a_given_plan_is_not_needed_without_values(backend: str) -> None:
    from encke.codec.predict import predict_quantiser

    kernels = load(backend)
    q = predict_quantiser(torch.empty(0), 0.1, dither=False, seed=0)
    whole = kernels.predict_encode(torch.empty(0), (0,), q, (0,))
    for (mode, own), shape in itertools.product(PLANS.values(), SHAPES):
        found = kernels.predict_encode(torch.empty(shape), shape, q, (0, mode, *own))
        assert torch.equal(found, whole)


@pytest.mark.parametrize(
    ("shape", "channels", "inner"),
    [((0, 3, 4), 3, 4), ((2, 3, 0), 3, 0), ((2, 0, 4), 0, 4), ((2, 0), 0, 1)],
)
def test_norms_behind_relu_take_tensors_without_values(
    shape: tuple[int, ...], channels: int, inner: int, backend: str
) -> None:
    kernels = load(backend)
    x, one = torch.empty(shape), torch.ones(channels)
    bits = kernels.positive_encode(x)
    assert kernels.affine_where(x, bits, one, one, inner).shape == x.shape
    values, sums = kernels.gated_close(x, bits, one, one, inner)
    assert values.numel() == 0
    assert torch.equal(sums, torch.zeros(3, channels, dtype=sums.dtype))
    back = kernels.gated_open(values, bits, (one, one, one), inner, shape)
    kernels.gated_add(x, values, bits, (one, one), inner)
    assert back.shape == x.shape
