"""The chooser: what a tensor is decides, then a sample; and it says why."""

from __future__ import annotations

import math
import sys

import pytest
import torch

import encke
from encke.codec.auto import WHOLE, sample
from encke.errors import BoundError, UnsupportedError


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def smooth(*shape: int) -> torch.Tensor:
    grids = torch.meshgrid(*(torch.linspace(0, 7, n) for n in shape), indexing="ij")
    return torch.stack([torch.sin(g + i) for i, g in enumerate(grids)]).sum(0)


def test_truth_values_take_mask() -> None:
    assert encke.compress(noise(100) > 0, encke.Absolute(0.1)).codec == "mask"


def test_integers_take_whichever_is_smaller() -> None:
    narrow = torch.randint(0, 1000, (5000,), generator=torch.Generator().manual_seed(1))
    repeated = (torch.arange(50_000) // 10_000) * 2**40
    assert encke.compress(narrow, encke.Lossless()).codec == "index"
    assert encke.compress(repeated, encke.Lossless()).codec == "lossless"
    assert encke.compress(repeated, encke.Lossless(), prefer="speed").codec == "index"


@pytest.mark.parametrize("count", [5000, WHOLE * 3])
def test_integers_come_back_exactly(count: int) -> None:
    x = torch.randint(-99, 99, (count,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(encke.compress(x, encke.Lossless()).decompress(), x)


@pytest.mark.parametrize(
    "bound", [encke.Lossless(), encke.Absolute(0.0), encke.PointwiseRelative(0.0)]
)
def test_a_bound_without_room_takes_lossless(bound: encke.Bound) -> None:
    x = noise(1000)
    packed = encke.compress(x, bound)
    assert packed.codec == "lossless"
    assert torch.equal(packed.decompress(), x)


def test_rates_take_group_and_others_zfp(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(64, 64)
    assert encke.compress(x, encke.FixedRate(2)).codec == "group"
    assert encke.compress(x, encke.FixedRate(3)).codec == "zfp"
    with pytest.raises(BoundError, match="'group' takes 1, 2, 4 and 8"):
        encke.compress(x.half(), encke.FixedRate(3))
    monkeypatch.setitem(sys.modules, "zfpy", None)
    with pytest.raises(BoundError, match="pip install"):
        encke.compress(x, encke.FixedRate(3))


def test_speed_takes_fixed() -> None:
    assert encke.compress(noise(1000), encke.Absolute(0.1), prefer="speed").codec == "fixed"


def test_a_preference_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'size', allowed are ratio, speed"):
        encke.compress(noise(10), encke.Absolute(0.1), prefer="size")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "x",
    [noise(3000), smooth(40, 50), noise(64, 4096), smooth(512, 512), noise(2, 3, 4).relu()],
    ids=["noise", "smooth", "large-noise", "large-smooth", "few"],
)
@pytest.mark.parametrize("ratio", [0.1, 1e-3])
def test_no_candidate_is_much_smaller_than_the_chosen_one(
    x: torch.Tensor, ratio: float
) -> None:
    bound = encke.RangeRelative(ratio)
    chosen = encke.compress(x, bound)
    sizes = {
        codec: encke.compress(x, bound, codec=codec).payload.numel()
        for codec in ("fixed", "entropy", "predict", "lossless")
    }
    assert chosen.payload.numel() == sizes[chosen.codec]
    assert chosen.payload.numel() <= 1.1 * min(sizes.values())
    assert chosen.max_error(x) <= chosen.promised


def test_why_names_the_ratios_found() -> None:
    packed = encke.compress(noise(64, 4096), encke.RangeRelative(0.05))
    assert "on a sample" in packed.why
    others = {"fixed", "entropy", "predict", "lossless"} - {packed.codec}
    assert all(f"{name} " in packed.why for name in others)
    assert "on a sample" not in encke.compress(noise(100), encke.Absolute(0.1)).why


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 1, 2), (4096,), (5000,), (9, 8, 7, 6)])
def test_every_shape_and_dtype_is_kept_within_the_bound(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = noise(*shape, dtype=dtype)
    for bound in (encke.Absolute(0.05), encke.PointwiseRelative(0.05), encke.RmsRelative(0.1)):
        packed = encke.compress(x, bound)
        y = encke.Packed.from_bytes(packed.to_bytes()).decompress()
        error = (y.double() - x.double()).abs()
        limit = 0.05 * x.double().abs() if bound.kind == "pointwise" else packed.promised
        assert bool((error <= limit).all())


def test_options_are_passed_on_to_codecs_that_offer_them() -> None:
    x = noise(4000).relu()
    kept = encke.compress(x, encke.Absolute(0.4), keep_nonzero=True)
    assert torch.equal(kept.decompress() != 0, x != 0)
    first, second = (
        encke.compress(x, encke.Absolute(0.4), dither=True, seed=seed).decompress()
        for seed in (1, 2)
    )
    assert not torch.equal(first, second)
    with pytest.raises(UnsupportedError, match="dither"):
        encke.compress(x, encke.PointwiseRelative(0.1), dither=True)


def test_infinities_and_not_a_number_come_back_through_the_chosen_codec() -> None:
    x = smooth(64, 64)
    x[0, 0], x[1, 1] = math.nan, -math.inf
    y = encke.compress(x, encke.Absolute(0.01)).decompress()
    assert y[0, 0].isnan()
    assert y[1, 1] == -math.inf


@pytest.mark.parametrize(
    "shape",
    [(2**18,), (3, 2**18), (512, 513), (8, 64, 32, 32), (64, 256, 256), (2**18, 1), (1, 2**19)],
)
def test_a_sample_is_a_few_runs_with_whole_trailing_dimensions(shape: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(shape)).view(shape)
    taken = sample(x)
    assert WHOLE // 2 <= taken.numel() <= x.numel() // 2 + WHOLE // 2
    kept = taken.shape[1:]
    assert tuple(kept) == shape[len(shape) - len(kept) :]
    steps = taken.flatten().diff()
    assert (steps != 1).sum() <= 3
    assert bool((steps > 0).all())
