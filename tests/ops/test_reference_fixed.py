"""`fixed` in plain torch: bounds, exactness, bytes, and what hostile bytes do."""

from __future__ import annotations

import random
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops import quantiser
from encke.ops.quantiser import DITHER, HALF, PLAIN, POINTWISE, Quantiser
from encke.ops.reference import fixed

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS = [PLAIN, HALF, DITHER, POINTWISE]
SIZES = [0, 1, 7, 8, 31, 32, 33, 8191, 8192, 8193, 65535, 65536, 65537]
PATTERN = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def quantiser_of(kind: int, bound: float, dtype: torch.dtype, seed: int = 0) -> Quantiser:
    if kind == POINTWISE:
        return quantiser.pointwise(min(bound, 0.5), dtype)
    return quantiser.linear(bound, dtype, kind=kind, seed=seed)


def sample(
    n: int, dtype: torch.dtype, *, low: float, high: float, special: float, seed: int
) -> Tensor:
    """Magnitudes from 10^low to 10^high, a share of them NaN, Inf, ±0 or subnormal."""
    g = torch.Generator().manual_seed(seed)
    exponent = torch.rand(n, generator=g, dtype=torch.float64) * (high - low) + low
    x = 10.0**exponent * (torch.randint(0, 2, (n,), generator=g) * 2 - 1)
    x = x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=dtype)
    odd = torch.cat([odd, torch.full((1,), 3, dtype=PATTERN[dtype]).view(dtype)])
    odd = torch.cat([odd, torch.full((1,), -2, dtype=PATTERN[dtype]).view(dtype)])  # a NaN
    replaced = torch.rand(n, generator=g) < special
    return torch.where(replaced, odd[torch.randint(0, len(odd), (n,), generator=g)], x)


def check_promise(x: Tensor, y: Tensor, kind: int, bound: float) -> None:
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    finite = torch.isfinite(x)
    assert torch.equal(x[~finite].view(PATTERN[x.dtype]), y[~finite].view(PATTERN[x.dtype]))
    a, b = x[finite].double(), y[finite].double()
    if kind == POINTWISE:
        assert ((b - a).abs() <= a.abs() * bound * (1 + 2**-51)).all()
    else:
        assert ((b - a).abs() <= bound).all()
    if kind != PLAIN:
        # Zero stays zero, and nothing else becomes one.
        assert torch.equal(a == 0, b == 0)
    else:
        assert (b[a == 0] == 0).all()


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    exponent=st.floats(-12, 3),
    n=st.sampled_from(SIZES[:10]),
    low=st.floats(-46, 38.5),
    span=st.floats(0, 30),
    special=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_decoded_values_never_leave_the_bound(
    dtype: torch.dtype,
    kind: int,
    exponent: float,
    n: int,
    low: float,
    span: float,
    special: float,
    seed: int,
) -> None:
    bound = 10.0**exponent
    x = sample(n, dtype, low=low, high=min(low + span, 38.5), special=special, seed=seed)
    payload = fixed.encode(x, quantiser_of(kind, bound, dtype, seed))
    check_promise(x, fixed.decode(payload, n, dtype), kind, bound)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_every_size_comes_back(n: int, dtype: torch.dtype, kind: int) -> None:
    x = sample(n, dtype, low=-2, high=1, special=0.02, seed=n)
    payload = fixed.encode(x, quantiser_of(kind, 1e-2, dtype, seed=n))
    check_promise(x, fixed.decode(payload, n, dtype), kind, 1e-2)


@pytest.mark.parametrize("kind", [PLAIN, HALF, DITHER])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_pattern_keeps_the_bound(dtype: torch.dtype, kind: int) -> None:
    x = torch.arange(65536).to(torch.int16).view(dtype)
    for exponent in range(-30, 20, 5):
        bound = 1.37 * 2.0**exponent
        payload = fixed.encode(x, quantiser_of(kind, bound, dtype, seed=exponent))
        check_promise(x, fixed.decode(payload, 65536, dtype), kind, bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_pattern_keeps_the_pointwise_bound_exactly(dtype: torch.dtype) -> None:
    x = torch.arange(65536).to(torch.int16).view(dtype)
    finite = torch.isfinite(x) & (x != 0)
    for ratio in (0.5, 0.3, 0.1, 0.01, 1e-3, 1e-9):
        y = fixed.decode(fixed.encode(x, quantiser.pointwise(ratio, dtype)), 65536, dtype)
        check_promise(x, y, POINTWISE, ratio)
        limit = Fraction(ratio)
        pairs = zip(x[finite][::7].tolist(), y[finite][::7].tolist(), strict=True)
        assert all(abs(Fraction(b) - Fraction(a)) <= limit * abs(Fraction(a)) for a, b in pairs)


@pytest.mark.parametrize("kind", [PLAIN, HALF, DITHER])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_at_the_limits_and_between_codes_keep_the_bound(
    dtype: torch.dtype, kind: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    for bound in (1e-30, 1e-6, 0.1, 0.25, 7341.442796350994, 1e30, 1e38, 1e300):
        q = quantiser_of(kind, bound, dtype, seed=4)
        if q.limit1 == 0:
            continue
        highest = int(q.limit1 / q.step1)
        codes = torch.randint(-highest, highest + 1, (4000,), generator=generator).double()
        ties = (codes + 0.5) * q.step1
        small = (torch.arange(-300, 300).double() / 2) * q.step0
        limits = torch.tensor([q.limit0, q.limit1], dtype=torch.float64).repeat(40)
        x = torch.cat([ties, codes * q.step1, small, limits, -limits]).to(dtype)
        bits = x.view(PATTERN[dtype])
        x = torch.cat([x, (bits + 1).view(dtype), (bits - 1).view(dtype)])
        y = fixed.decode(fixed.encode(x, q), x.numel(), dtype)
        check_promise(x, y, kind, bound)


def test_same_input_gives_the_same_bytes() -> None:
    x = sample(10000, torch.float32, low=-3, high=0, special=0.1, seed=1)
    q = quantiser_of(DITHER, 1e-3, torch.float32, seed=9)
    assert torch.equal(fixed.encode(x, q), fixed.encode(x.clone(), q))


def body_of(x: Tensor, q: Quantiser) -> bytes:
    """The bytes of a single chunk, after the parameters and its length."""
    payload = bytes(fixed.encode(x, q).tolist())
    assert struct.unpack("<I", payload[32:36]) == (len(payload) - 36,)
    return payload[36:]


UNIT = Quantiser(PLAIN, 1.0, 1.0, 100.0, 1000.0, 0)


def test_bytes_are_those_that_the_format_describes() -> None:
    # All codes zero: a header and nothing else.
    assert body_of(torch.full((32,), 0.3), UNIT) == b"\x00"
    # Unsigned, width 1, dense: one plane, bit j for value j.
    alternating = torch.arange(32).remainder(2).float()
    assert body_of(alternating, UNIT) == b"\x81" + struct.pack("<I", 0xAAAAAAAA)
    # Signed, width 2: planes of 0b11 for -1 and 0b01 for 1.
    signs = alternating * 2 - 1
    assert body_of(signs, UNIT) == b"\x02" + struct.pack("<II", 0xFFFFFFFF, 0x55555555)
    # Tier 1 and sparse: 500 takes nine bits, one non-zero code takes two bytes.
    lone = torch.zeros(32)
    lone[3] = 500
    expected = b"\xe9" + struct.pack("<IH", 1 << 3, 500)
    assert body_of(lone, UNIT) == expected
    # Sparse codes lie one after the other: 5, 1, 6, 2 in three bits each.
    few = torch.zeros(32)
    few[[3, 7, 20, 31]] = torch.tensor([5.0, 1.0, 6.0, 2.0])
    packed = 5 | 1 << 3 | 6 << 6 | 2 << 9
    assert body_of(few, UNIT) == b"\xc3" + struct.pack("<IH", 0x80100088, packed)
    # Raw, only the values that exist.
    assert body_of(torch.tensor([1.0, float("nan")]), UNIT)[0] == 0xFF
    assert len(body_of(torch.tensor([1.0, float("nan")]), UNIT)) == 9
    # Half: -0.3 has the code 0, so width 0; a partial block is sparse.
    half = Quantiser(HALF, 1.0, 1.0, 100.0, 1000.0, 0)
    assert body_of(torch.tensor([-0.3, -0.3]), half) == b"\xc0" + struct.pack("<I", 3)
    # Pointwise: the smallest level first, then codes 2 (k - base) + sign.
    one = struct.unpack("<i", struct.pack("<f", 1.0))[0]
    tight = Quantiser(POINTWISE, 0.0, 0.0, 0.0, 0.0, 1)
    assert body_of(torch.tensor([1.0, -1.0]), tight) == b"\xc1" + struct.pack("<QIB", one, 3, 2)


def rejected(payload: bytes, count: int, dtype: torch.dtype = torch.float32) -> bool:
    try:
        fixed.decode(torch.frombuffer(bytearray(payload), dtype=torch.uint8), count, dtype)
    except CorruptStreamError:
        return True
    return False


def one_chunk(body: bytes, kind: int = PLAIN, step: float = 1.0, seed: int = 0) -> bytes:
    return struct.pack("<B7xddQI", kind, step, step, seed, len(body)) + body


def test_a_stream_that_breaks_a_rule_is_rejected() -> None:
    assert not rejected(one_chunk(b"\x00"), 32)
    assert rejected(one_chunk(b"\x1f" + bytes(124)), 32)  # width 31
    assert rejected(one_chunk(b"\x20"), 32)  # signed width 0
    assert rejected(one_chunk(b"\x81" + bytes(3)), 32)  # a plane cut short
    assert rejected(one_chunk(b"\x81" + bytes(5)), 32)  # a byte too many
    assert rejected(one_chunk(b"\x00") + b"\x00", 32)  # bytes behind the chunks
    assert rejected(one_chunk(b"\x00"), 33)  # a block missing
    assert rejected(one_chunk(b"\x00", kind=4), 32)
    assert rejected(one_chunk(b"\x00", step=float("nan")), 32)
    assert rejected(one_chunk(b"\x00", step=-1.0), 32)
    assert rejected(one_chunk(b"\x00", step=0.1), 32)  # not a float32
    assert not rejected(one_chunk(b"\x00", step=0.1), 32, torch.float64)
    assert rejected(one_chunk(b"\x00", kind=POINTWISE, seed=0), 32)
    assert rejected(one_chunk(b"\xff" + bytes(127)), 32)  # raw cut short
    assert rejected(bytes(31), 0)
    assert not rejected(bytes(32), 0)
    assert rejected(bytes(33), 0)


def test_an_impossible_count_is_rejected_before_memory_is_taken() -> None:
    assert rejected(one_chunk(b"\x00"), 2**50)


def test_pointwise_levels_beyond_the_largest_value_saturate() -> None:
    block = b"\xc2" + struct.pack("<QIB", 2**64 - 1, 1, 0b11)
    payload = one_chunk(block, kind=POINTWISE, step=0.0, seed=2**64 - 1)
    data = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    for dtype in DTYPES:
        y = fixed.decode(data, 1, dtype)
        assert y.item() == -torch.finfo(dtype).max


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_flipped_and_truncated_bytes_give_a_tensor_or_a_corrupt_stream_error(
    dtype: torch.dtype, kind: int
) -> None:
    rng = random.Random(kind)
    n = 200
    x = sample(n, dtype, low=-3, high=0, special=0.05, seed=3)
    payload = bytes(fixed.encode(x, quantiser_of(kind, 1e-2, dtype, seed=3)).tolist())
    outcomes = set()
    for _ in range(40):
        damaged = bytearray(payload)
        if rng.random() < 0.3:
            del damaged[rng.randrange(len(damaged)) :]
        for _ in range(rng.randrange(3)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        data = torch.tensor(list(damaged), dtype=torch.uint8)
        try:
            assert fixed.decode(data, n, dtype).shape == (n,)
            outcomes.add("tensor")
        except CorruptStreamError:
            outcomes.add("error")
    assert outcomes == {"tensor", "error"}


def test_a_million_values_come_back() -> None:
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)).relu()
    q = quantiser_of(DITHER, 0.05, torch.float32, seed=1)
    payload = fixed.encode(x, q)
    check_promise(x, fixed.decode(payload, x.numel(), x.dtype), DITHER, 0.05)
    assert payload.numel() < x.numel()
