"""`group`: its promise is never exceeded, its rounding has no bias, its bytes are one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from awkward import awkward, noise
from hypothesis import given, settings
from hypothesis import strategies as st

import encke
from encke.errors import BoundError, CorruptStreamError, UnsupportedError
from encke.ops import native, select
from encke.ops.backend import Backend

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
RATES = (1, 2, 4, 8)
BACKENDS = ["reference"]
if select.native_problem() is None:
    BACKENDS += native.isa_available()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "reference":
        yield select.load("reference")
        return
    before = native.isa()
    native.use_isa(request.param)
    yield select.load("native")
    native.use_isa(before)


def bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", RATES)
@pytest.mark.parametrize("stochastic", [False, True])
def test_all_backends_give_the_same_bytes_and_the_same_values(
    backend: Backend, bits: int, stochastic: bool, dtype: torch.dtype
) -> None:
    reference = select.load("reference")
    for x in (awkward(dtype), *(noise(n, dtype) for n in (0, 1, 7, 255, 257, 66_000))):
        payload = backend.group_encode(x, bits, stochastic, 2**64 - 5)
        assert torch.equal(payload, reference.group_encode(x, bits, stochastic, 2**64 - 5))
        decoded = backend.group_decode(payload, x.numel(), dtype)
        expected = reference.group_decode(payload, x.numel(), dtype)
        assert torch.equal(bits_of(decoded), bits_of(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", RATES)
def test_groups_that_are_not_finite_come_back_bit_for_bit(
    backend: Backend, bits: int, dtype: torch.dtype
) -> None:
    x = awkward(dtype)
    payload = backend.group_encode(x, bits, True, 1)
    y = backend.group_decode(payload, x.numel(), dtype)
    for start in (768, 1024):
        assert torch.equal(bits_of(y[start : start + 256]), bits_of(x[start : start + 256]))
    assert torch.equal(y[256:768], x[256:768])


def values_of(dtype: torch.dtype) -> st.SearchStrategy[list[float]]:
    width = {torch.float64: 64, torch.float32: 32, torch.float16: 16, torch.bfloat16: 32}[dtype]
    wide = st.floats(width=width, allow_nan=True, allow_infinity=True)
    narrow = st.floats(-2.0, 2.0, width=width)
    offset = st.floats(1000.0, 1001.0, width=64).map(float)
    return st.one_of(
        st.lists(wide, min_size=1, max_size=40),
        st.lists(narrow, min_size=1, max_size=300),
        st.lists(offset, min_size=1, max_size=40),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stochastic", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_promised_error_is_never_exceeded(
    dtype: torch.dtype, stochastic: bool, data: st.DataObject
) -> None:
    x = torch.tensor(data.draw(values_of(dtype)), dtype=torch.float64).to(dtype)
    seed = data.draw(st.integers(0, 2**64 - 1))
    if stochastic:
        bound: encke.Bound = encke.FixedRate(data.draw(st.sampled_from(RATES)))
    else:
        bound = encke.RangeRelative(data.draw(st.sampled_from([0.51, 0.2, 0.04, 0.01])))
    try:
        packed = encke.compress(x, bound, codec="group", seed=seed)
    except BoundError:
        # Rounding to 16 bits or a range beyond float64 may leave no room.
        assert not stochastic
        return
    y = packed.decompress()
    finite = x.isfinite()
    assert packed.max_error(x) <= packed.promised
    assert torch.equal(bits_of(y[~finite]), bits_of(x[~finite]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", RATES)
def test_the_promise_is_about_one_step_of_the_widest_group(
    dtype: torch.dtype, bits: int
) -> None:
    x = noise(5000, dtype)
    packed = encke.compress(x, encke.FixedRate(bits), codec="group")
    groups = [x[start : start + 256].double() for start in range(0, 5000, 256)]
    step = max(float(g.max() - g.min()) for g in groups) / (2**bits - 1)
    rounding = float(x.abs().max()) * torch.finfo(dtype).eps
    assert step <= packed.promised <= step * 1.001 + rounding


@pytest.mark.parametrize("bits", RATES)
def test_stochastic_rounding_has_no_bias(bits: int) -> None:
    x = noise(256, torch.float32).repeat(1600)
    y = encke.compress(x, encke.FixedRate(bits), codec="group", seed=7).decompress()
    step = float(x.max() - x.min()) / (2**bits - 1)
    mean_error = (y - x).double().view(1600, 256).mean(0)
    # Each mean of 1,600 errors deviates by at most step/2 / 40; 5.5 of those over 256 means.
    assert mean_error.abs().max() < 5.5 * step / 80
    assert abs(mean_error.mean()) < 5.5 * step / 80 / 16


def test_nearest_rounding_errs_at_most_half_as_far() -> None:
    x = noise(4096, torch.float32)
    stochastic = encke.compress(x, encke.FixedRate(4), codec="group")
    # The arithmetic's own rounding is not halved, hence the 1e-4.
    half = stochastic.promised * 0.5001
    nearest = encke.compress(x, encke.Absolute(half), codec="group")
    assert nearest.payload[0] == 4
    assert nearest.max_error(x) <= nearest.promised <= half


def test_an_error_bound_takes_the_fewest_bits_that_keep_it() -> None:
    x = torch.rand(4096, generator=torch.Generator().manual_seed(2))
    for bits in RATES:
        bound = encke.Absolute(0.51 / (2**bits - 1))
        packed = encke.compress(x, bound, codec="group")
        assert packed.payload[0] == bits
        assert packed.max_error(x) <= packed.promised <= bound.error


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    x = noise(1000, torch.float32)
    first, again, other = (
        encke.compress(x, encke.FixedRate(2), codec="group", seed=seed).payload
        for seed in (3, 3, -4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_group_cannot_keep_is_refused_with_what_can() -> None:
    x = noise(1000, torch.float32)
    with pytest.raises(BoundError, match="1, 2, 4 or 8"):
        encke.compress(x, encke.FixedRate(3), codec="group")
    with pytest.raises(BoundError, match="'fixed'"):
        encke.compress(x, encke.Absolute(1e-6), codec="group")
    with pytest.raises(BoundError, match="'entropy'"):
        encke.compress(x, encke.PointwiseRelative(0.1), codec="group")
    with pytest.raises(UnsupportedError, match="stochastically"):
        encke.compress(x, encke.FixedRate(2), codec="group", dither=True)
    with pytest.raises(UnsupportedError, match="'entropy'"):
        encke.compress(x, encke.FixedRate(2), codec="group", keep_nonzero=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [1, 8])
def test_broken_payloads_give_the_reference_tensor_or_an_error(
    backend: Backend, bits: int, dtype: torch.dtype
) -> None:
    x = noise(700, dtype)
    x[300] = math.nan
    payload = backend.group_encode(x, bits, False, 0)
    reference = select.load("reference")
    generator = torch.Generator().manual_seed(bits)
    for length in (*range(0, 30), payload.numel() - 1):
        with pytest.raises(CorruptStreamError):
            backend.group_decode(payload[:length], 700, dtype)
    with pytest.raises(CorruptStreamError):
        backend.group_decode(payload, 2**55, dtype)
    for position in (*range(40), *range(payload.numel() - 9, payload.numel())):
        broken = payload.clone()
        broken[position] = torch.randint(256, (), generator=generator)
        try:
            expected = reference.group_decode(broken, 700, dtype)
        except CorruptStreamError:
            with pytest.raises(CorruptStreamError):
                backend.group_decode(broken, 700, dtype)
        else:
            decoded = backend.group_decode(broken, 700, dtype)
            assert torch.equal(bits_of(decoded), bits_of(expected))


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(1.5),
        torch.zeros(0, 4),
        noise(1200, torch.float32).view(30, 40).t(),
        noise(2400, torch.float32).view(2, 50, 4, 6).to(memory_format=torch.channels_last),
        noise(600, torch.float32).view(1, 600).expand(5, 600),
    ],
    ids=["scalar", "empty", "transposed", "channels-last", "expanded"],
)
def test_shapes_and_strides_survive_a_stream(x: torch.Tensor) -> None:
    packed = encke.compress(x, encke.FixedRate(8), codec="group")
    y = encke.Packed.from_bytes(packed.to_bytes()).decompress()
    assert y.shape == x.shape
    assert y.stride() == packed.decompress().stride()
    assert packed.max_error(x) <= packed.promised
