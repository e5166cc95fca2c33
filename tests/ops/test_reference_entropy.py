"""`entropy` in plain torch: bounds, exactness, rate, and what hostile bytes do."""

from __future__ import annotations

import random
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.errors import CorruptStreamError
from encke.ops import quantiser
from encke.ops.quantiser import DITHER, HALF, PLAIN, POINTWISE, Quantiser
from encke.ops.reference import digits, entropy, rans, tables
from encke.ops.reference.coder import Settings
from encke.ops.reference.digits import VERBATIM, ZERO, Alphabet

pytestmark = pytest.mark.slow  # the reference takes its time

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
KINDS = [PLAIN, HALF, DITHER, POINTWISE]
SMALL_SIZES = [0, 1, 7, 8, 9, 31, 32, 33, 63, 65, 255, 257, 8191, 8192, 8193]
PATTERN = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
CPU = torch.device("cpu")


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
    n=st.sampled_from(SMALL_SIZES),
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
    payload = entropy.encode(x, quantiser_of(kind, bound, dtype, seed))
    check_promise(x, entropy.decode(payload, n, dtype), kind, bound)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    scale=st.sampled_from([0.3, 1.0, 4.0, 30.0, 1000.0]),
    n=st.sampled_from(SMALL_SIZES),
    zeros=st.sampled_from([0.0, 0.01, 0.6]),
    seed=st.integers(0, 2**32),
)
def test_codes_of_every_spread_come_back(
    dtype: torch.dtype, kind: int, scale: float, n: int, zeros: float, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=g, dtype=torch.float64) * scale * 0.02
    x = torch.where(torch.rand(n, generator=g) < zeros, 0, x).to(dtype)
    payload = entropy.encode(x, quantiser_of(kind, 0.01, dtype, seed))
    check_promise(x, entropy.decode(payload, n, dtype), kind, 0.01)


@pytest.mark.parametrize(
    ("n", "dtype", "kind"),
    [
        (65535, torch.float32, DITHER),
        (65536, torch.float64, HALF),
        (65537, torch.float32, PLAIN),
        (65537, torch.bfloat16, DITHER),
        (131073, torch.float16, POINTWISE),
        (200000, torch.float32, DITHER),
    ],
)
def test_sizes_around_a_chunk_come_back(n: int, dtype: torch.dtype, kind: int) -> None:
    x = sample(n, dtype, low=-2, high=0.5, special=0.02, seed=n)
    payload = entropy.encode(x, quantiser_of(kind, 5e-2, dtype, seed=n))
    check_promise(x, entropy.decode(payload, n, dtype), kind, 5e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_zeros_noise_and_outliers_stand_side_by_side(kind: int) -> None:
    n = 65536
    mixed = sample(4 * n + 100, torch.float32, low=-2, high=0, special=0.01, seed=1)
    mixed[:n] = 0.0  # all zero
    mixed[n : 2 * n] = float("nan")  # verbatim
    mixed[2 * n : 3 * n] *= 3000  # second tier
    payload = entropy.encode(mixed, quantiser_of(kind, 1e-2, torch.float32, seed=2))
    check_promise(mixed, entropy.decode(payload, mixed.numel(), torch.float32), kind, 1e-2)


@pytest.mark.parametrize("kind", [PLAIN, HALF, DITHER])
@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0, 60.0])
def test_size_is_near_the_entropy_of_the_codes(kind: int, scale: float) -> None:
    n, bound = 1 << 16, 0.5
    x = torch.randn(n, generator=torch.Generator().manual_seed(1)) * scale
    q = quantiser_of(kind, bound, torch.float32, seed=3)
    u = entropy.dither_of(q, n, torch.float32, CPU)
    codes = entropy.linear_codes(x, kind, q.step0, u)
    share = torch.unique(codes, return_counts=True)[1].double() / n
    ideal = -(share * share.log2()).sum().item() * n / 8
    size = entropy.encode(x, q).numel()
    assert size <= 1.04 * ideal + 700 * (8 if kind == DITHER else 1)


def test_knowing_the_dither_takes_the_rate_below_the_entropy_of_the_codes() -> None:
    n = 1 << 17
    x = torch.randn(n, generator=torch.Generator().manual_seed(1)) * 0.2
    q = quantiser_of(DITHER, 0.5, torch.float32, seed=3)
    codes = entropy.linear_codes(x, DITHER, q.step0, entropy.dither_of(q, n, x.dtype, CPU))
    share = torch.unique(codes, return_counts=True)[1].double() / n
    zero_order = -(share * share.log2()).sum().item() * n / 8
    assert entropy.encode(x, q).numel() < 0.8 * zero_order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 100, 70000])
def test_the_stage_brings_any_codes_back(kind: int, n: int) -> None:
    g = torch.Generator().manual_seed(n)
    codes = (torch.randn(n, generator=g) * 3).to(torch.int32)
    extremes = torch.tensor(
        [VERBATIM, ZERO, 2**17 - 1, 2**17, -(2**17), 2**30, -(2**30), VERBATIM + 1, ZERO - 1],
        dtype=torch.int32,
    )
    at = torch.randint(0, n, (n // 20,), generator=g)
    codes[at] = extremes[torch.randint(0, 9, (n // 20,), generator=g)]
    own, body = rans.encode_codes(codes, kind=kind, seed=5)
    assert torch.equal(rans.decode_codes(own, body, n, kind=kind, seed=5), codes)


def test_codes_that_are_all_zero_take_four_bytes_a_chunk() -> None:
    own, body = rans.encode_codes(torch.zeros(140000, dtype=torch.int32), kind=PLAIN, seed=0)
    assert body.numel() < 40
    decoded = rans.decode_codes(own, body, 140000, kind=PLAIN, seed=0)
    assert decoded.numel() == 140000
    assert not decoded.any()
    own, body = rans.encode_codes(torch.zeros(0, dtype=torch.int32), kind=PLAIN, seed=0)
    assert rans.decode_codes(own, body, 0, kind=PLAIN, seed=0).numel() == 0


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("bits", "base"), [(8, 0), (4, -7), (2, 3)])
def test_digits_are_inverted_or_escape(bits: int, base: int, zero: bool) -> None:
    alphabet = Alphabet(bits, base, zero)
    around = torch.arange(-70000, 70000)
    codes = torch.cat([around, torch.tensor([2**17 - 1, 1 - 2**17, 2**17, ZERO, VERBATIM])])
    digit, raw_bits, raw = digits.to_digits(codes, alphabet)
    back = digits.from_digits(digit, raw, alphabet)
    held = digit != alphabet.escape
    assert torch.equal(back[held], codes[held])
    inside = codes.abs() < 2**17
    if bits != 8:
        inside = (codes >= base) & (codes < base + alphabet.window)
    assert torch.equal(held, inside | (codes == ZERO) & zero)
    assert (raw < 1 << raw_bits).all()
    if bits == 8:
        assert torch.equal(raw_bits[held], digits.raw_bits_of_digit(CPU)[digit[held]])
        assert digit[inside].max() == 238


def scalar_decode(own: bytes, body: bytes, count: int) -> list[int]:
    """One chunk of kind plain, one state and one word at a time, as the format tells it."""
    bits, log_rows, precision, base, number, _ = struct.unpack("<BBBhBB", own)
    assert number == 1
    frequencies: dict[int, int] = {}
    at, symbol = 2, -1
    for _ in range(struct.unpack_from("<H", body)[0]):
        symbol += body[at] + 1
        low, at = body[at + 1], at + 2
        if low & 128:
            low, at = low & 127 | body[at] << 7, at + 1
        frequencies[symbol] = low + 1
    slots = [(s, f, i) for s, f in frequencies.items() for i in range(f)]
    at += 4 + 4
    number_words, number_exceptions = struct.unpack_from("<II", body, at)
    lanes = 8 << log_rows
    states = list(struct.unpack_from(f"<{lanes}I", body, at + 8))
    at += 8 + 4 * lanes
    words = list(struct.unpack_from(f"<{number_words}H", body, at))
    exceptions = list(struct.unpack_from(f"<{number_exceptions}I", body, at + 2 * number_words))
    raw_bits = digits.raw_bits_of_digit(CPU).tolist() if bits == 8 else [0] * 256
    k = 8 // bits
    out = [0] * (8 * k * rans.CHUNK)

    def refill(state: int) -> int:
        return state << 16 | words.pop(0) if state < 32768 else state

    for row in range(digits.rows_of(count, Alphabet(bits))):
        first = 8 * (row % (1 << log_rows))
        found = []
        for lane in range(8):
            s, f, inside = slots[states[first + lane] & ((1 << precision) - 1)]
            states[first + lane] = f * (states[first + lane] >> precision) + inside
            found.append(s)
        for lane in range(8):
            states[first + lane] = refill(states[first + lane])
        raw = [0] * 8
        for lane in range(8):
            r = raw_bits[found[lane]]
            raw[lane] = states[first + lane] & ((1 << r) - 1)
            states[first + lane] >>= r
        for lane in range(8):
            states[first + lane] = refill(states[first + lane])
        for lane in range(8):
            for j in range(k):
                digit = found[lane] >> (bits * j) & ((1 << bits) - 1)
                position = 8 * (k * row + j) + lane
                if digit == (1 << bits) - 1 and position < count:
                    z = exceptions.pop(0)
                    out[position] = (z >> 1) ^ -(z & 1)
                elif bits != 8:
                    out[position] = digit + base
                else:
                    index = (digit + 1) >> 1
                    if index >= 16:
                        exponent = 4 + (index - 16) // 8
                        index = (8 + index % 8) << (exponent - 3) | raw[lane]
                    out[position] = -index if digit & 1 else index
    assert states == [32768] * lanes
    assert not words
    assert not exceptions
    return out[:count]


@pytest.mark.parametrize(("spread", "bits"), [(1.0, 2), (5, 4), (300, 8), (60000, 8)])
def test_the_stream_is_what_a_scalar_decoder_expects(spread: float, bits: int) -> None:
    n = 39999
    g = torch.Generator().manual_seed(2)
    codes = torch.rand(n, generator=g) * 2 * spread - 0.5
    codes = codes.round().to(torch.int32)
    codes[::3000] = -(2**20)
    own, body = rans.encode_codes(codes, kind=PLAIN, seed=0)
    assert own[0] == bits
    assert scalar_decode(own, bytes(body.tolist()), n) == codes.tolist()


def tensor_of(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def stage(
    *,
    own: Settings | bytes,
    chunk: bytes,
    table: bytes = tables.write([{255: 256}]),
    lengths: bytes | None = None,
) -> tuple[bytes, Tensor]:
    settings_bytes = own if isinstance(own, bytes) else own.to_bytes()
    lengths = struct.pack("<I", len(chunk)) if lengths is None else lengths
    return settings_bytes, tensor_of(table + lengths + chunk)


ESCAPES = Settings(Alphabet(4, 0), 0, 8, 1)


def chunk_of(*exceptions: int, mode: int = 0, words: int = 0, state: int = 32768) -> bytes:
    head = struct.pack("<IIIIIIIIIII", mode, words, len(exceptions), *([state] * 8))
    return head + bytes(2 * words) + struct.pack(f"<{len(exceptions)}I", *exceptions)


def test_escapes_after_the_end_of_a_chunk_take_no_exception() -> None:
    own, body = stage(own=ESCAPES, chunk=chunk_of(6, 5, 0xFFFFFFFF))
    decoded = rans.decode_codes(own, body, 3, kind=PLAIN, seed=0)
    assert decoded.tolist() == [3, -3, VERBATIM]


def test_exceptions_stand_in_order_of_row_lane_digit() -> None:
    own, body = stage(own=ESCAPES, chunk=chunk_of(*range(0, 20, 2)))
    decoded = rans.decode_codes(own, body, 10, kind=PLAIN, seed=0)
    # Lanes 0 and 1 hold two codes each: positions 0, 8 and 1, 9.
    assert decoded.tolist() == [0, 2, 4, 5, 6, 7, 8, 9, 1, 3]


@pytest.mark.parametrize(
    "broken",
    [
        stage(own=ESCAPES, chunk=chunk_of(1, 2)),  # an exception too few
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, 4)),  # one too many
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, words=1)),  # a word too many
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, state=32769)),  # does not end at 2^15
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, state=17)),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, state=2**31)),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, mode=2)),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, mode=4)),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3, mode=256)),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3) + b"\0"),
        stage(own=ESCAPES, chunk=struct.pack("<II", 3, 0)),
        stage(own=ESCAPES, chunk=b""),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3), lengths=b"\xff\xff\xff\xff"),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3), table=tables.write([{255: 255}])),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3), table=tables.write([{1: 1, 255: 256}])),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3), table=b"\x00\x00"),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3), table=b"\x02\x00\xff\x7f\x00\x7f"),
        stage(own=ESCAPES, chunk=chunk_of(1, 2, 3), table=b"\x01\x00\xff\xff\x81\x00"),
        stage(own=b"\x08\x00\x08\x00\x00\x01\x00", chunk=b"", table=b"\x01\x00\xf0\xff\x01"),
        stage(own=b"\x08\x00\x08\x00\x00\x01\x00", chunk=b"", table=b"\x01\x00\xfe\xff\x01"),
        stage(own=b"\x03\x00\x08\x00\x00\x01\x00", chunk=chunk_of(1, 2, 3)),
        stage(own=b"\x04\x03\x08\x00\x00\x01\x00", chunk=chunk_of(1, 2, 3)),
        stage(own=b"\x04\x00\x07\x00\x00\x01\x00", chunk=chunk_of(1, 2, 3)),
        stage(own=b"\x04\x00\x0d\x00\x00\x01\x00", chunk=chunk_of(1, 2, 3)),
        stage(own=b"\x04\x00\x08\x00\x00\x08\x00", chunk=chunk_of(1, 2, 3)),
        stage(own=b"\x04\x00\x08\x00\x00\x01\x01", chunk=chunk_of(1, 2, 3)),
        stage(own=b"\x04\x00\x08\x00\x00\x01\x02", chunk=chunk_of(1, 2, 3)),
    ],
)
def test_a_stage_that_breaks_a_rule_is_rejected(broken: tuple[bytes, Tensor]) -> None:
    own, body = broken
    with pytest.raises(CorruptStreamError):
        rans.decode_codes(own, body, 3, kind=PLAIN, seed=0)


def test_an_impossible_count_is_rejected_before_memory_is_taken() -> None:
    x = torch.randn(100)
    for kind in KINDS:
        payload = entropy.encode(x, quantiser_of(kind, 0.1, torch.float32))
        with pytest.raises(CorruptStreamError):
            entropy.decode(payload, 2**50, torch.float32)


def test_no_values_take_the_parameters_and_nothing_else() -> None:
    for kind in KINDS:
        payload = entropy.encode(torch.empty(0), quantiser_of(kind, 0.1, torch.float32))
        assert payload.numel() == 32
        assert entropy.decode(payload, 0, torch.float32).numel() == 0
        with pytest.raises(CorruptStreamError):
            entropy.decode(torch.cat([payload, payload[:1]]), 0, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bound", [0.3, 1e-3])
def test_flipped_and_truncated_bytes_give_a_tensor_or_a_corrupt_stream_error(
    dtype: torch.dtype, kind: int, bound: float
) -> None:
    rng = random.Random(kind)
    n = 150
    x = sample(n, dtype, low=-3, high=0, special=0.05, seed=3)
    payload = bytes(entropy.encode(x, quantiser_of(kind, bound, dtype, seed=3)).tolist())
    errors = 0
    for _ in range(60):
        damaged = bytearray(payload)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        for _ in range(rng.randrange(1, 4)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            assert entropy.decode(tensor_of(bytes(damaged)), n, dtype).shape == (n,)
        except CorruptStreamError:
            errors += 1
    assert errors > 0
