"""The promises of codec `predict`, on every backend there is and between them."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.bound import Absolute, FixedRate, PointwiseRelative, RangeRelative
from encke.codec import Packed, compress
from encke.codec.predict import predict_quantiser
from encke.errors import BoundError, CorruptStreamError, UnsupportedError
from encke.ops.reference import predict_plan, predict_sparse
from encke.ops.select import load, native_problem

BACKENDS = ["reference"] + (["native"] if native_problem() is None else [])
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
#: By name: chosen, chosen with zeros kept apart, and one of each mode and order.
PLANS = {
    "chosen": (0,),
    "keeping non-zeros": (1,),
    "Lorenzo, first order": (0, 1, 1, 2),
    "Lorenzo, second order": (0, 1, 2, 3),
    "regression, first order": (0, 2, 1, 2, 8),
    "regression, second order": (0, 2, 2, 3, 5),
    "halved thrice, finer below": (0, 3, 0, 2, 3 | 9 << 2, 2 | 4 << 2, 3 | 8 << 2),
    "not halved, as differences": (0, 3, 1, 0),
}


def smooth(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """A field whose neighbours are alike, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(shape, dtype=torch.float64)
    for d, n in enumerate(shape):
        line = torch.sin(torch.arange(n, dtype=torch.float64) * (0.21 + 0.13 * d))
        x = x + line.view([-1 if i == d else 1 for i in range(len(shape))])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (3 * x + 0.02 * noise).to(dtype)


def with_oddities(x: Tensor) -> Tensor:
    """The same with NaN, infinities, zeros and a value far out."""
    x = x.clone()
    flat = x.view(-1)
    flat[3], flat[10], flat[11] = float("nan"), float("inf"), -float("inf")
    flat[17] = 3e4
    flat[20:31] = 0
    flat[31] = -0.0
    return x


def bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def assert_kept(x: Tensor, y: Tensor, error: float) -> None:
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    finite = torch.isfinite(x)
    difference = (y.double() - x.double()).abs()[finite]
    assert difference.numel() == 0 or difference.max().item() <= error
    assert torch.equal(bits(y[~finite]), bits(x[~finite]))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_decoded_values_never_leave_the_bound(
    backend: str, dtype: torch.dtype, name: str
) -> None:
    x = with_oddities(smooth((3, 12, 17), dtype))
    kernels = load(backend)
    for error, dither in itertools.product((0.8, 0.01), (False, True)):
        q = predict_quantiser(x, error, dither=dither, seed=7)
        payload = kernels.predict_encode(x, tuple(x.shape), q, PLANS[name])
        y = kernels.predict_decode(payload, tuple(x.shape), dtype)
        assert_kept(x, y, error)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_backends_decode_each_other_to_the_same_bits(dtype: torch.dtype, name: str) -> None:
    x = with_oddities(smooth((2, 16, 19), dtype))
    shape = tuple(x.shape)
    for error, dither in itertools.product((0.3, 0.005), (False, True)):
        q = predict_quantiser(x, error, dither=dither, seed=3)
        for writer in BACKENDS:
            payload = load(writer).predict_encode(x, shape, q, PLANS[name])
            decoded = [bits(load(r).predict_decode(payload, shape, dtype)) for r in BACKENDS]
            assert all(torch.equal(d, decoded[0]) for d in decoded)


@pytest.mark.parametrize("error", [1.0, 0.05, 0.001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(40, 50), (5, 6, 7, 8), (3000,), (2, 2, 3, 4, 5)], ids=str)
def test_every_backend_chooses_the_same_plan(
    shape: tuple[int, ...], dtype: torch.dtype, error: float
) -> None:
    x = smooth(shape, dtype)
    q = predict_quantiser(x, error, dither=False, seed=0)
    payloads = [load(b).predict_encode(x, shape, q, (0,)) for b in BACKENDS]
    heads = [bytes(p[32 : 36 + int(p[35])].tolist()) for p in payloads]
    assert heads == [heads[0]] * len(BACKENDS)


finite_or_not = st.one_of(
    st.floats(width=32),
    st.floats(-10, 10, width=32),
    st.sampled_from([0.0, -0.0, 3.4e38, -3.4e38, 1e-45, float("nan"), float("inf")]),
)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(finite_or_not, max_size=70),
    columns=st.integers(1, 9),
    error=st.sampled_from([1e-200, 1e-30, 1e-6, 0.1, 1e9, 1e38, 1e300]),
    dither=st.booleans(),
    keep=st.booleans(),
    backend=st.sampled_from(BACKENDS),
)
def test_any_values_at_any_bound_come_back_within_it(
    values: list[float], columns: int, error: float, dither: bool, keep: bool, backend: str
) -> None:
    rows = len(values) // columns
    x = torch.tensor(values[: rows * columns], dtype=torch.float32).view(rows, columns)
    packed = compress(
        x,
        Absolute(error),
        codec="predict",
        dither=dither,
        seed=5,
        keep_nonzero=keep,
        backend=backend,
    )
    y = packed.decompress(backend=backend)
    assert_kept(x, y, error)
    if keep:
        assert torch.equal(y == 0, x == 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keep_nonzero_keeps_the_zeros_and_only_those(backend: str, dtype: torch.dtype) -> None:
    x = smooth((4, 20, 20), dtype).relu()
    packed = compress(x, Absolute(0.7), codec="predict", keep_nonzero=True, backend=backend)
    y = packed.decompress(backend=backend)
    assert torch.equal(y == 0, x == 0)
    assert_kept(x, y, 0.7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1), (2, 1, 3, 1, 2, 2)])
def test_every_shape_comes_back(backend: str, shape: tuple[int, ...]) -> None:
    x = torch.linspace(1, 2, max(1, torch.Size(shape).numel()))[: torch.Size(shape).numel()]
    x = x.view(shape)
    packed = compress(x, Absolute(0.01), codec="predict", backend=backend)
    assert_kept(x, packed.decompress(backend=backend), 0.01)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_range_of_zero_keeps_every_bit(backend: str) -> None:
    x = torch.full((6, 30), 0.1)
    x[2, 3], x[4, 4] = float("nan"), float("inf")
    y = compress(x, RangeRelative(0.1), codec="predict", backend=backend).decompress()
    assert torch.equal(bits(x), bits(y))


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_that_nothing_predicts_take_little_more_than_they_did(backend: str) -> None:
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randint(-(2**31), 2**31, (500,), generator=generator)
    x = patterns.to(torch.int32).view(torch.float32)
    packed = compress(x, Absolute(1e-20), codec="predict", backend=backend)
    assert packed.payload.numel() <= x.nbytes + 40
    assert_kept(x, packed.decompress(), 1e-20)


def test_smooth_fields_take_less_than_without_prediction() -> None:
    x = smooth((24, 32, 40))
    bound = RangeRelative(1e-2)
    predicted = compress(x, bound, codec="predict")
    assert predicted.nbytes * 2 < compress(x, bound, codec="entropy").nbytes


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_seed_gives_the_same_bytes_and_another_one_others(backend: str) -> None:
    x = smooth((9, 64))
    one, again, other = (
        compress(x, Absolute(0.2), codec="predict", dither=True, seed=seed, backend=backend)
        for seed in (1, 1, 2)
    )
    assert torch.equal(one.payload, again.payload)
    assert not torch.equal(one.decompress(), other.decompress())


def test_dither_leaves_an_error_that_does_not_depend_on_the_value() -> None:
    x = torch.full((64, 64), 0.37)
    y = compress(x, Absolute(0.5), codec="predict", dither=True, seed=1).decompress()
    error = (y - x).double()
    assert abs(error.mean().item()) < 0.03
    assert abs(error.std().item() - 1 / 12**0.5) < 0.02


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.slow
def test_broken_payloads_raise_and_nothing_else(backend: str, name: str) -> None:
    x = with_oddities(smooth((4, 13, 21)))
    shape = tuple(x.shape)
    kernels = load(backend)
    q = predict_quantiser(x, 0.05, dither=True, seed=9)
    payload = kernels.predict_encode(x, shape, q, PLANS[name])
    generator = torch.Generator().manual_seed(4)
    whole = payload.numel()
    cuts = [payload[:n].clone() for n in (*range(0, min(whole, 60), 7), whole // 2, whole - 1)]
    flips = []
    for at in [*range(64), *torch.randint(0, whole, (40,), generator=generator).tolist()]:
        broken = payload.clone()
        broken[at % whole] ^= int(torch.randint(1, 256, (1,), generator=generator))
        flips.append(broken)
    refused = 0
    for broken in cuts + flips:
        try:
            y = kernels.predict_decode(broken, shape, x.dtype)
        except CorruptStreamError:
            refused += 1
        else:
            assert y.shape == x.shape
    assert refused >= len(cuts) - 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_short_payload_cannot_claim_a_huge_tensor(backend: str) -> None:
    with pytest.raises(CorruptStreamError, match="at least"):
        load(backend).predict_decode(
            torch.zeros(64, dtype=torch.uint8), (2**40,), torch.float32
        )


def test_bounds_that_predict_cannot_keep_are_refused_with_a_remedy() -> None:
    x = smooth((8, 8))
    with pytest.raises(BoundError, match="codec='fixed' or 'entropy'"):
        compress(x, PointwiseRelative(0.1), codec="predict")
    with pytest.raises(BoundError, match="codec='group' or 'zfp'"):
        compress(x, FixedRate(4), codec="predict")
    with pytest.raises(UnsupportedError, match="takes bfloat16"):
        compress(torch.arange(4), Absolute(1.0), codec="predict")


def test_a_stream_of_bytes_comes_back() -> None:
    x = with_oddities(smooth((3, 11, 18)))
    packed = compress(x, Absolute(0.02), codec="predict")
    again = Packed.from_bytes(packed.to_bytes()).decompress()
    assert torch.equal(bits(again), bits(packed.decompress()))


@pytest.mark.parametrize(
    "plan", [(), (2,), (0, 9), (0, 1, 3, 1), (0, 2, 1, 1, 1), (0, 3, 0, 0, 36)]
)
def test_plans_that_mean_nothing_are_refused(plan: tuple[int, ...]) -> None:
    x = smooth((1, 1, 9))
    q = predict_quantiser(x, 0.1, dither=False, seed=0)
    with pytest.raises(UnsupportedError, match="plan"):
        load("reference").predict_encode(x, tuple(x.shape), q, plan)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.one_of(st.just(0), st.integers(-3, 3), st.integers(1 - 2**31, 2**31 - 1)),
        max_size=80,
    )
)
def test_the_adaptive_coder_gives_its_codes_back(codes: list[int]) -> None:
    x = torch.tensor(codes, dtype=torch.int32)
    nonzero = int(torch.count_nonzero(x))
    assert torch.equal(predict_sparse.decode(predict_sparse.encode(x), nonzero, x.numel()), x)


def test_a_tensor_that_is_smooth_along_one_axis_is_halved_along_that_axis() -> None:
    generator = torch.Generator().manual_seed(2)
    lines = torch.randn(64, 1, generator=generator) * 5
    x = lines + torch.linspace(0, 1, 256).view(1, 256)
    step = torch.tensor(0.02)
    plan = predict_plan.choose(x.reshape(-1), (1, 1, 64, 256), step)
    assert plan.mode == predict_plan.INTERPOLATION
    assert {axis for axis, _ in plan.steps[:4]} == {3}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("backend", BACKENDS[-1:])
def test_the_number_of_threads_does_not_change_the_bytes(backend: str, name: str) -> None:
    x = smooth((40, 50, 60))
    shape, kernels = tuple(x.shape), load(backend)
    q = predict_quantiser(x, 0.3, dither=False, seed=0)
    before = torch.get_num_threads()
    payloads, decoded = [], []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            payloads.append(kernels.predict_encode(x, shape, q, PLANS[name]))
            decoded.append(kernels.predict_decode(payloads[0], shape, x.dtype))
    finally:
        torch.set_num_threads(before)
    for payload, y in zip(payloads, decoded, strict=True):
        assert torch.equal(payload, payloads[0])
        assert torch.equal(y, decoded[0])
