"""The dither: the numbers of the format, and the statistics it is there for."""

from __future__ import annotations

import math

import pytest
import torch

from encke.ops import quantiser
from encke.ops.reference import dither, fixed

CPU = torch.device("cpu")


def scalar_dither(seed: int, i: int) -> tuple[int, int]:
    """Class and m of one index, in Python's integers, as docs/format.md writes it."""
    page, j = i >> 16, i & 65535
    mask32, mask64 = 2**32 - 1, 2**64 - 1
    z = (seed + (page + 1) * 0x9E3779B97F4A7C15) & mask64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask64
    key = z ^ (z >> 31)

    def hashed(at: int) -> int:
        h = at ^ (key & mask32)
        h = ((h ^ (h >> 16)) * 0x85EBCA6B) & mask32
        h ^= key >> 32
        h = ((h ^ (h >> 13)) * 0xC2B2AE35) & mask32
        return h ^ (h >> 16)

    odd = (j >> 3) & 1
    counter = (j >> 4) * 8
    rotation = (hashed(counter) >> (29 - 3 * odd)) & 7
    fraction = (hashed(counter + (j & 7)) >> (13 * odd)) & 8191
    own_class = (j + rotation) & 7
    return own_class, own_class * 8192 + fraction


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 12345, 2**64 - 1])
def test_vectorised_dither_equals_the_scalar_definition(seed: int) -> None:
    start, count = 65536 - 40, 100
    m = dither.integers(seed, count, CPU, start=start).tolist()
    assert m == [scalar_dither(seed, i)[1] for i in range(start, start + count)]
    classes = dither.classes(seed, 1, 60, CPU).tolist()
    assert classes == [scalar_dither(seed, 65536 + j)[0] for j in range(60)]


def test_a_range_of_indices_is_a_slice_of_all() -> None:
    whole = dither.integers(9, 3 * 65536 + 5, CPU)
    for start, count in [(0, 1), (65535, 2), (65536, 65536), (131071, 65538), (7, 0)]:
        part = dither.integers(9, count, CPU, start=start)
        assert torch.equal(part, whole[start : start + count])


def test_every_group_of_eight_has_each_class_once() -> None:
    classes = dither.classes(3, 5, 65536, CPU).view(-1, 8)
    assert torch.equal(classes.sort(1).values, torch.arange(8).expand(8192, 8))


def test_no_position_in_a_group_prefers_a_class() -> None:
    classes = dither.classes(3, 5, 65536, CPU).view(-1, 8)
    for position in range(8):
        counts = torch.bincount(classes[:, position], minlength=8).double()
        chi_squared = ((counts - 1024) ** 2 / 1024).sum().item()
        assert chi_squared < 30  # 7 degrees of freedom: exceeded once in 10,000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_offsets_are_exact_inside_the_half_and_never_zero(dtype: torch.dtype) -> None:
    m = dither.integers(11, 70000, CPU)
    u = dither.offsets(11, 70000, dtype, CPU)
    assert torch.equal(u.double(), (m.double() + 0.5) / 65536 - 0.5)
    assert u.abs().max() < 0.5
    assert (u != 0).all()


def test_neighbouring_groups_that_share_hashes_are_unrelated() -> None:
    m = dither.integers(21, 65536, CPU).view(-1, 2, 8)
    u = (m & 8191).double() / 8192 - 0.5
    correlation = (u[:, 0] * u[:, 1]).mean() * 12
    assert abs(correlation) < 5 / math.sqrt(32768)
    rotation = dither.rotations(21, 0, 8192, CPU).view(-1, 2)
    pairs = torch.bincount(rotation[:, 0] * 8 + rotation[:, 1], minlength=64).double()
    assert ((pairs - 64) ** 2 / 64).sum() < 115  # 63 degrees of freedom: once in 10,000


def test_seeds_and_pages_give_unrelated_dithers() -> None:
    n = 65536
    a = dither.offsets(1, 2 * n, torch.float64, CPU)
    b = dither.offsets(2, n, torch.float64, CPU)
    for other in (b, a[n:]):
        correlation = (a[:n] * other).mean() * 12
        assert abs(correlation) < 5 / math.sqrt(n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", ["constant", "normal", "ramp"])
def test_dithered_error_is_unbiased_uniform_and_independent_of_the_value(
    dtype: torch.dtype, shape: str
) -> None:
    n, error = 1 << 18, 0.25
    generator = torch.Generator().manual_seed(5)
    x = {
        "constant": torch.full((n,), 0.377),
        "normal": torch.randn(n, generator=generator),
        "ramp": torch.linspace(0.01, 3, n),
    }[shape].to(dtype)
    q = quantiser.linear(error, dtype, kind=quantiser.DITHER, seed=77)
    y = fixed.decode(fixed.encode(x, q), n, dtype)
    e = (y.double() - x.double()) / q.step0
    deviation = 1 / math.sqrt(12)
    assert abs(e.mean().item()) < 5 * deviation / math.sqrt(n)
    # The fourth moment of a uniform error puts the variance's own deviation at 1/√(180 n).
    assert abs(e.var().item() - 1 / 12) < 5 / math.sqrt(180 * n)
    gaps = (e.sort().values - ((torch.arange(n) + 0.5) / n - 0.5)).abs()
    assert gaps.max() < 2.5 / math.sqrt(n)
    if shape != "constant":
        centred = x.double() - x.double().mean()
        correlation = (centred * e).mean() / (centred.std() * deviation)
        assert abs(correlation.item()) < 5 / math.sqrt(n)
