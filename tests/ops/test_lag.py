"""`entropy` with values predicted from the row before: bounds, zeros, sizes, hostile fields."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.bound import Absolute, RangeRelative
from encke.codec import Packed, compress
from encke.errors import CorruptStreamError
from encke.ops import native, quantiser
from encke.ops.quantiser import DITHER, HALF, PLAIN
from encke.ops.reference import entropy
from encke.ops.reference import lag as lagged
from encke.ops.reference.lag import Lag
from encke.ops.select import native_problem

SETS = native.isa_available() if native_problem() is None else []
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"dither": True, "seed": 9}, {"keep_nonzero": True})
PATTERN = {torch.float32: torch.int32, torch.float64: torch.int64}


@pytest.fixture(autouse=True)
def same_set_afterwards() -> Iterator[None]:
    before = native.isa() if SETS else ""
    yield
    if SETS:
        native.use_isa(before)


def smooth(
    shape: tuple[int, ...], *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Sums of noise along the last two dimensions, scaled to a deviation of about 1."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g, dtype=torch.float64).cumsum(-1).cumsum(-2)
    return (x / x.std()).to(dtype)


def predicts(packed: Packed) -> bool:
    return bool(packed.payload[7] & lagged.FLAG)


def field(packed: Packed) -> Lag:
    return Lag.from_bytes(bytes(packed.payload[32:48].tolist()))


def decoded_everywhere(packed: Packed) -> Tensor:
    """What the reference decodes, every instruction set agreeing bit for bit."""
    y = packed.decompress(backend="reference")
    for name in SETS:
        native.use_isa(name)
        other = packed.decompress(backend="native")
        assert torch.equal(other.view(PATTERN[y.dtype]), y.view(PATTERN[y.dtype]))
    return y


def check_promise(x: Tensor, y: Tensor, bound: float, *, nonzero: bool) -> None:
    finite = torch.isfinite(x)
    bits = PATTERN[x.dtype]
    assert torch.equal(x[~finite].view(bits), y[~finite].view(bits))
    a, b = x[finite].double(), y[finite].double()
    assert ((b - a).abs() <= bound).all()
    assert (b[a == 0] == 0).all()
    if nonzero:
        assert (b[a != 0] != 0).all()


@pytest.mark.parametrize("backend", ["reference", *SETS])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "dither", "nonzero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_smooth_map_takes_fewer_bytes_than_in_another_order(
    dtype: torch.dtype, options: dict[str, Any], backend: str
) -> None:
    x = smooth((3, 60, 60), dtype=dtype)
    if backend != "reference":
        native.use_isa(backend)
        backend = "native"
    packed = compress(x, Absolute(0.02), codec="entropy", backend=backend, **options)
    assert predicts(packed)
    assert field(packed)[:2] == (60, 3600)
    flat = compress(x.view(-1), Absolute(0.02), codec="entropy", backend=backend, **options)
    assert not predicts(flat)
    assert packed.nbytes < 0.8 * flat.nbytes
    y = decoded_everywhere(packed)
    check_promise(x, y, 0.02, nonzero=bool(options))


def test_channels_last_maps_are_predicted_along_their_rows_too() -> None:
    x = smooth((2, 16, 30, 30)).contiguous(memory_format=torch.channels_last)
    packed = compress(x, Absolute(0.02), codec="entropy", dither=True, seed=1)
    assert predicts(packed)
    assert field(packed).distance in (16, 480)
    check_promise(x, decoded_everywhere(packed), 0.02, nonzero=True)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(1)),  # rough
        smooth((2, 40, 40)),  # too small to look at
        smooth((3, 80, 80)).to(torch.bfloat16),
        smooth((100, 200)).view(-1),  # no row before
        smooth((4000, 4)),  # rows shorter than a group
        torch.zeros(4, 64, 64),
        torch.full((4, 64, 64), math.nan),
    ],
    ids=["noise", "small", "bfloat16", "flat", "narrow", "zeros", "nan"],
)
def test_nothing_is_predicted_where_it_would_not_help(x: Tensor) -> None:
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    for backend in ["reference", *(["native"] if SETS else [])]:
        packed = compress(x, Absolute(0.05), codec="entropy", backend=backend)
        assert not predicts(packed)
        y = packed.decompress(backend=backend)
        kept = ~torch.isfinite(x)
        assert torch.equal(x[kept].view(bits), y[kept].view(bits))


def test_the_choice_is_the_same_every_time_and_on_every_instruction_set() -> None:
    x = smooth((4, 50, 50), seed=7)
    payloads = []
    for name in [*SETS, *SETS]:
        native.use_isa(name)
        payloads.append(compress(x, Absolute(0.05), codec="entropy", dither=True).payload)
    assert all(torch.equal(payload, payloads[0]) for payload in payloads)
    again = [compress(x, Absolute(0.05), codec="entropy", backend="reference") for _ in "ab"]
    assert torch.equal(again[0].payload, again[1].payload)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.float64]),
    options=st.sampled_from(OPTIONS),
    shape=st.sampled_from(
        [
            (2, 5, 33, 31),
            (9, 1000),
            (130, 70),
            (1, 8, 8, 130),
            (3, 4, 8, 100),
            (700, 13),
            (3, 9, 353),
        ]
    ),
    exponent=st.floats(-9, 1),
    scale=st.sampled_from([1e-6, 1.0, 1e5, 1e30]),
    zeros=st.sampled_from([0.0, 0.01, 0.5]),
    special=st.sampled_from([0.0, 0.0, 0.003, 0.1]),
    seed=st.integers(0, 2**32),
)
def test_decoded_values_never_leave_the_bound(
    dtype: torch.dtype,
    options: dict[str, Any],
    shape: tuple[int, ...],
    exponent: float,
    scale: float,
    zeros: float,
    special: float,
    seed: int,
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = (smooth(shape, seed=seed, dtype=torch.float64) * scale).to(dtype)
    x[torch.rand(shape, generator=g) < zeros] = 0.0
    odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-40, 3e38, -1e35], dtype=dtype)
    odd = odd[torch.randint(0, len(odd), shape, generator=g)]
    x = torch.where(torch.rand(shape, generator=g) < special, odd, x)
    bound = 10.0**exponent * scale
    for name in SETS or [""]:
        if name:
            native.use_isa(name)
        packed = compress(x, Absolute(bound), codec="entropy", **options)
        check_promise(x, packed.decompress(), bound, nonzero=bool(options))


@pytest.mark.parametrize("kind", [PLAIN, HALF, DITHER])
@pytest.mark.parametrize(
    "lag", [Lag(8, 9, 16), Lag(13, 40, 7), Lag(900, 1801, 1), Lag(2100, 2**32 - 1, 15)]
)
def test_any_field_codes_any_values_within_the_bound(kind: int, lag: Lag) -> None:
    """Also where a prediction makes things worse: short periods, rough values."""
    for dtype, first in itertools.product((torch.float32, torch.float64), (0, 65536)):
        x = torch.randn(2201, generator=torch.Generator().manual_seed(first), dtype=dtype)
        x[::7], x[11], x[500] = 0.0, math.nan, 1e30
        q = quantiser.linear(0.25, dtype, kind=kind, seed=4)
        u = entropy.dither_of(q, x.numel(), dtype, x.device)
        codes = lagged.codes(x, q, u, lag, first=first)
        marked = (codes == lagged.VERBATIM) | (codes == lagged.ZERO)
        residuals = entropy.linear_values(
            torch.where(marked, 0, codes), kind, q.step0, u, dtype
        )
        y = lagged.values_of(residuals, ~marked, lag, first=first)
        kept = codes == lagged.VERBATIM
        assert int(kept.sum()) <= 2 + (kind == HALF) * 60
        assert ((y - x)[~kept].abs() <= 0.25).all()
        assert torch.equal(codes == lagged.ZERO, x == 0)


def test_several_chunks_start_anew_and_threads_do_not_matter() -> None:
    x = smooth((10, 170, 90), seed=5)
    packed = compress(x, RangeRelative(1e-2), codec="entropy", dither=True, seed=8)
    assert predicts(packed)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        other = compress(x, RangeRelative(1e-2), codec="entropy", dither=True, seed=8)
        assert torch.equal(other.payload, packed.payload)
        assert torch.equal(other.decompress(), packed.decompress())
    finally:
        torch.set_num_threads(threads)
    check_promise(x, decoded_everywhere(packed), packed.promised, nonzero=True)


def test_a_chunk_of_zeros_and_one_of_noise_stand_beside_predicted_ones() -> None:
    x = smooth((70, 64, 64), seed=2)
    x[16:32] = 0.0  # the second chunk
    x[32:48] = math.inf  # the third, verbatim
    x[48:64] *= 1e6  # the fourth, too coarse for its step
    packed = compress(x, Absolute(0.01), codec="entropy", keep_nonzero=True)
    check_promise(x, decoded_everywhere(packed), 0.01, nonzero=True)


GOOD = compress(smooth((3, 60, 60)), Absolute(0.05), codec="entropy", backend="reference")


@pytest.mark.parametrize(
    "broken",
    [
        struct.pack("<IIB7x", 7, 3600, 8),
        struct.pack("<IIB7x", 65536, 2**20, 8),
        struct.pack("<IIB7x", 0, 3600, 8),
        struct.pack("<IIB7x", 60, 60, 8),
        struct.pack("<IIB7x", 60, 0, 8),
        struct.pack("<IIB7x", 60, 3600, 0),
        struct.pack("<IIB7x", 60, 3600, 17),
        struct.pack("<IIB6xB", 60, 3600, 8, 1),
        struct.pack("<IIBB6x", 60, 3600, 8, 1),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_every_decoder(broken: bytes) -> None:
    payload = GOOD.payload.clone()
    assert payload[7] == lagged.FLAG
    payload[32:48] = torch.tensor(list(broken), dtype=torch.uint8)
    refused_everywhere(payload, 10800, torch.float32)


def refused_everywhere(payload: Tensor, count: int, dtype: torch.dtype) -> None:
    with pytest.raises(CorruptStreamError):
        entropy.decode(payload, count, dtype)
    for name in SETS:
        native.use_isa(name)
        with pytest.raises(CorruptStreamError):
            native.load().entropy_decode(payload, count, dtype)


def test_the_flag_is_refused_where_nothing_may_be_predicted() -> None:
    pointwise = GOOD.payload.clone()
    pointwise[0], pointwise[24] = 3, 1
    refused_everywhere(pointwise, 10800, torch.float32)
    refused_everywhere(GOOD.payload, 10800, torch.float16)
    refused_everywhere(GOOD.payload, 10800, torch.bfloat16)
    refused_everywhere(GOOD.payload[:32], 0, torch.float32)
    refused_everywhere(GOOD.payload[:40], 10800, torch.float32)
    flagged = compress(torch.ones(20), Absolute(0.1), codec="entropy").payload.clone()
    flagged[7] |= 4
    refused_everywhere(flagged, 20, torch.float32)


def test_a_zero_digit_in_kind_plain_needs_predictions() -> None:
    x = smooth((3, 60, 60))
    x[:, ::5] = 0.0
    packed = compress(x, Absolute(0.05), codec="entropy")
    assert packed.payload[7] == lagged.FLAG | 1
    check_promise(x, decoded_everywhere(packed), 0.05, nonzero=False)
    without = torch.cat([packed.payload[:32], packed.payload[48:]])
    without[7] = 1
    refused_everywhere(without, x.numel(), torch.float32)
