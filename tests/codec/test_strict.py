"""The bound is never exceeded, whatever the values, the bound, the dtype and the options."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.bound import (
    Absolute,
    Bound,
    FixedRate,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)
from encke.codec import Packed, compress, registry
from encke.errors import BoundError

BOUNDED = ("fixed", "entropy", "predict", "group", "zfp")
#: Codecs that offer `dither` and `keep_nonzero`.
QUANTISED = ("fixed", "entropy", "predict")
POINTWISE = ("fixed", "entropy")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SHAPES = ((1,), (3,), (31, 2), (5, 7, 9), (1000,), (2, 3, 8, 50), (9001,))
INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Recipe:
    """Values of many magnitudes from a seed, so that a failure prints in one line."""

    shape: tuple[int, ...]
    low: float  # decimal exponents of the magnitudes
    high: float
    zeros: float  # shares of
    special: float
    smooth: bool
    seed: int

    def tensor(self, dtype: torch.dtype) -> Tensor:
        g = torch.Generator().manual_seed(self.seed)

        def uniform() -> Tensor:
            return torch.rand(self.shape, generator=g, dtype=torch.float64)

        x = 10 ** (self.low + (self.high - self.low) * uniform())
        x = torch.where(uniform() < 0.5, -x, x)
        if self.smooth:
            x = x.view(-1).cumsum(0).view(self.shape)
        x = torch.where(uniform() < self.zeros, 0.0, x)
        limits = torch.finfo(dtype)
        x = x.clamp(limits.min, limits.max).to(dtype)
        odd = [math.nan, math.inf, -math.inf, -0.0, limits.max, limits.min]
        odd += [limits.tiny, limits.smallest_normal / 2, -limits.smallest_normal / 2]
        choice = torch.randint(len(odd), self.shape, generator=g)
        return torch.where(uniform() < self.special, torch.tensor(odd, dtype=dtype)[choice], x)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    low = draw(st.sampled_from([-46.0, -38.0, -12.0, -3.0, -1.0, 0.0, 4.0, 30.0, 38.0]))
    span = draw(st.sampled_from([0.0, 1.0, 4.0, 85.0]))
    return Recipe(
        shape=draw(st.sampled_from(SHAPES)),
        low=low,
        high=min(low + span, 38.5),
        zeros=draw(st.sampled_from([0.0, 0.3, 0.99])),
        special=draw(st.sampled_from([0.0, 0.0, 0.01, 0.3])),
        smooth=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32)),
    )


def bounds(*kinds: type[Bound]) -> st.SearchStrategy[Bound]:
    usual = st.floats(-12, 3).map(lambda exponent: 10.0**exponent)
    wide = st.one_of(usual, usual, st.sampled_from([1e-320, 1e-45, 1e-30, 1e38, 1e300]))
    small = st.floats(-9, 0).map(lambda exponent: 10.0**exponent)
    each: dict[type[Bound], st.SearchStrategy[Bound]] = {
        Absolute: wide.map(Absolute),
        RangeRelative: small.map(RangeRelative),
        RmsRelative: small.map(RmsRelative),
        PointwiseRelative: small.map(lambda r: PointwiseRelative(r / 2)),
        FixedRate: st.sampled_from([1, 2, 4, 8]).map(FixedRate),
    }
    return st.one_of([each[kind] for kind in kinds])


LINEAR = (Absolute, RangeRelative, RmsRelative)
SEEDS = st.integers(0, 2**64 - 1)
LIMITS = settings(max_examples=150, deadline=None)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(INTEGER[x.element_size()])


def assert_kept(x: Tensor, y: Tensor, packed: Packed) -> None:
    finite = torch.isfinite(x)
    assert torch.equal(bits(x[~finite]), bits(y[~finite]))
    was, now = x[finite].double(), y[finite].double()
    if was.numel() == 0:
        return
    error = (now - was).abs()
    if isinstance(packed.bound, PointwiseRelative):
        assert bool((error <= packed.promised * was.abs()).all())
        assert bool(((was == 0) == (now == 0)).all())
        assert bool((was.sign() == now.sign()).all())
        return
    assert error.max().item() <= packed.promised
    if isinstance(packed.bound, Absolute):
        assert packed.promised <= packed.bound.error
    if isinstance(packed.bound, RangeRelative):
        assert packed.promised <= packed.bound.ratio * (was.max() - was.min()).item()
    if isinstance(packed.bound, RmsRelative):
        largest = was.abs().max().clamp(min=1e-300)  # whose squares neither vanish nor overflow
        rms = largest.item() * (was / largest).square().mean().sqrt().item()
        assert packed.promised <= packed.bound.ratio * rms * (1 + 1e-12)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("codec", QUANTISED)
@LIMITS
@given(
    recipe=recipes(),
    bound=bounds(*LINEAR),
    dither=st.booleans(),
    keep_nonzero=st.booleans(),
    seed=SEEDS,
)
def test_decoded_values_never_leave_the_bound(
    codec: str,
    dtype: torch.dtype,
    recipe: Recipe,
    bound: Bound,
    dither: bool,
    keep_nonzero: bool,
    seed: int,
) -> None:
    x = recipe.tensor(dtype)
    packed = compress(
        x, bound, codec=codec, dither=dither, keep_nonzero=keep_nonzero, seed=seed
    )
    y = packed.decompress()
    assert_kept(x, y, packed)
    if keep_nonzero:
        assert torch.equal(x == 0, y == 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("codec", POINTWISE)
@LIMITS
@given(recipe=recipes(), bound=bounds(PointwiseRelative))
def test_no_value_strays_further_than_its_share(
    codec: str, dtype: torch.dtype, recipe: Recipe, bound: Bound
) -> None:
    x = recipe.tensor(dtype)
    packed = compress(x, bound, codec=codec, keep_nonzero=True)
    assert_kept(x, packed.decompress(), packed)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@LIMITS
@given(recipe=recipes(), bound=bounds(*LINEAR, FixedRate), seed=SEEDS)
def test_group_keeps_what_it_does_not_refuse(
    dtype: torch.dtype, recipe: Recipe, bound: Bound, seed: int
) -> None:
    x = recipe.tensor(dtype)
    try:
        packed = compress(x, bound, codec="group", seed=seed)
    except BoundError:
        assert not isinstance(bound, FixedRate)  # a rate is always kept
        return
    assert_kept(x, packed.decompress(), packed)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@LIMITS
@given(recipe=recipes(), bound=bounds(*LINEAR))
@pytest.mark.slow
def test_zfp_keeps_the_bound(dtype: torch.dtype, recipe: Recipe, bound: Bound) -> None:
    x = recipe.tensor(dtype)
    packed = compress(x, bound, codec="zfp")
    assert_kept(x, packed.decompress(), packed)


def test_every_codec_with_a_bound_is_tried_here() -> None:
    lossy = {name for name in registry.names() if registry.by_name(name).lossy}
    assert lossy == set(BOUNDED)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("codec", QUANTISED)
@pytest.mark.parametrize("dither", [False, True])
def test_a_coarse_bound_leaves_zeros_and_only_zeros_at_zero(
    codec: str, dtype: torch.dtype, dither: bool
) -> None:
    limits = torch.finfo(dtype)
    x = torch.linspace(-1, 1, 4001, dtype=torch.float64).to(dtype)
    x[::5] = 0.0
    x[1::50] = -0.0
    x[2::50] = limits.tiny
    x[3::50] = -limits.smallest_normal / 4
    for error in (1e-3, 0.3, 0.9999, 1.0, 7.0, 1e3):
        packed = compress(x, Absolute(error), codec=codec, dither=dither, keep_nonzero=True)
        y = packed.decompress()
        assert torch.equal(x == 0, y == 0)
        assert_kept(x, y, packed)


COUNT = 1_000_000
FEW = torch.tensor([0.1, -0.25, 0.37, 2.0])


def population(name: str, dtype: torch.dtype) -> Tensor:
    """Values among which plain rounding is unbiased (normal) and biased (the others)."""
    g = torch.Generator().manual_seed(11)
    if name == "normal":
        return torch.randn(COUNT, generator=g).to(dtype)
    if name == "few values":
        return FEW[torch.randint(len(FEW), (COUNT,), generator=g)].to(dtype)
    return torch.full((COUNT,), 0.377).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize("name", ["normal", "few values", "constant"])
@pytest.mark.parametrize("codec", QUANTISED)
def test_dithered_errors_are_unbiased_uniform_and_independent_of_the_value(
    codec: str, name: str, dtype: torch.dtype
) -> None:
    x, bound = population(name, dtype).view(1000, 1000), 0.5
    y = compress(x, Absolute(bound), codec=codec, dither=True, seed=3).decompress()
    error, was = (y.double() - x.double()).view(-1), x.double().view(-1)
    deviation = bound / math.sqrt(3)
    assert error.abs().max().item() <= bound
    assert abs(error.mean().item()) < 5 * deviation / math.sqrt(COUNT)
    assert abs(error.var().item() / deviation**2 - 1) < 0.02
    if name != "constant":
        correlation = torch.corrcoef(torch.stack((error, was)))[0, 1].item()
        assert abs(correlation) < 5 / math.sqrt(COUNT)
    # Nor has the error of one value to do with those of others, in other groups of eight.
    for distance in (8, 16, 1000):
        product = (error[distance:] * error[:-distance]).mean().item() / deviation**2
        assert abs(product) < 5 / math.sqrt(COUNT)


@pytest.mark.parametrize("name", ["few values", "constant"])
def test_plain_rounding_would_be_biased_there(name: str) -> None:
    """So that the test above is known to see a bias where there is one."""
    x = population(name, torch.float32)
    y = compress(x, Absolute(0.5), codec="fixed").decompress()
    assert abs((y - x).double().mean().item()) > 0.02


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("codec", QUANTISED)
def test_a_seed_repeats_and_another_one_differs(codec: str, dtype: torch.dtype) -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(1)).to(dtype)

    def packed(seed: int) -> Packed:
        return compress(x, Absolute(0.2), codec=codec, dither=True, seed=seed)

    one, again = packed(7), packed(7)
    assert torch.equal(one.payload, again.payload)
    assert torch.equal(bits(one.decompress()), bits(again.decompress()))
    differing = (one.decompress() != packed(8).decompress()).double().mean().item()
    assert differing > 0.9
    assert not torch.equal(packed(0).decompress(), packed(2**63).decompress())
