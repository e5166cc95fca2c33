"""Signs as bits, and a norm behind ReLU from them: the fast path against the obvious one."""

from __future__ import annotations

import pytest
import torch

from encke.errors import CorruptStreamError
from encke.ops.native import isa_available, use_isa
from encke.ops.select import select

CPU = torch.device("cpu")


@pytest.fixture(params=isa_available())
def isa(request: pytest.FixtureRequest) -> str:
    use_isa(request.param)
    yield request.param
    use_isa(isa_available()[0])


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31, 1000, 65536, 65537, 200_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_signs_have_the_same_bits_and_come_back(
    isa: str, count: int, dtype: torch.dtype
) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)).to(dtype)
    if count > 8:
        x[:6] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40])
    native, reference = select(CPU, "native"), select(CPU, "reference")
    bits = native.positive_encode(x)
    assert torch.equal(bits, reference.positive_encode(x))
    expected = torch.le(x, 0).logical_not().to(dtype)
    assert torch.equal(native.positive_decode(bits, count, dtype), expected)
    assert torch.equal(reference.positive_decode(bits, count, dtype), expected)


@pytest.mark.parametrize(
    ("shape", "inner"),
    [((2, 3, 5, 7), 35), ((4, 64, 33, 31), 33 * 31), ((2, 9, 11, 16), 1), ((8, 130, 12), 1)],
)
def test_norm_behind_relu_is_what_torch_computes(
    isa: str, shape: tuple[int, ...], inner: int
) -> None:
    torch.manual_seed(0)
    channels = shape[1] if inner > 1 else shape[-1]
    x = torch.randn(shape)
    gain, shift = torch.randn(channels), torch.randn(channels)
    native, reference = select(CPU, "native"), select(CPU, "reference")
    bits = native.positive_encode(torch.randn(shape))
    found = native.affine_where(x, bits, gain, shift, inner)
    assert torch.equal(found, reference.affine_where(x, bits, gain, shift, inner))
    assert found.count_nonzero() > 0


@pytest.mark.parametrize(
    ("shape", "inner"),
    [
        ((2, 3, 5, 7), 35),
        ((4, 64, 33, 31), 33 * 31),
        ((2, 9, 11, 16), 1),
        ((8, 130, 12), 1),
        ((3, 2048, 7, 7), 49),
        ((1, 1, 1), 1),
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.04, 0.5, 1.0])
def test_values_let_through_close_up_and_come_back(
    isa: str, shape: tuple[int, ...], inner: int, share: float
) -> None:
    torch.manual_seed(0)
    channels = shape[1] if inner > 1 else shape[-1]
    x = torch.randn(shape)
    gain, shift, other = torch.randn(3, channels)
    native, reference = select(CPU, "native"), select(CPU, "reference")
    chosen = torch.rand(shape) < share
    bits = native.mask_encode(chosen)
    values, sums = native.gated_close(x, bits, gain, shift, inner)
    expected, totals = reference.gated_close(x, bits, gain, shift, inner)
    assert torch.equal(values, expected)
    assert values.numel() == int(chosen.sum())
    assert torch.allclose(sums, totals, rtol=1e-5, atol=1e-3)
    back = native.gated_open(values, bits, (gain, shift, other), inner, shape)
    assert torch.equal(
        back, reference.gated_open(values, bits, (gain, shift, other), inner, shape)
    )
    added = torch.randn(shape)
    too = added.clone()
    native.gated_add(added, values, bits, (gain, shift), inner)
    reference.gated_add(too, values, bits, (gain, shift), inner)
    assert torch.allclose(added, too, atol=1e-6)
    again, _ = reference.gated_close(
        back, bits, torch.ones(channels), torch.zeros(channels), inner
    )
    view = (1, -1, *(1,) * (len(shape) - 2)) if inner > 1 else (1,) * (len(shape) - 1) + (-1,)
    assert torch.equal(back[~chosen], other.view(view).expand(shape)[~chosen])
    assert again.numel() == int(chosen.sum())


def test_values_that_do_not_fit_their_bits_are_refused(isa: str) -> None:
    native, reference = select(CPU, "native"), select(CPU, "reference")
    bits = native.mask_encode(torch.tensor([True, False, True, True]))
    one = torch.ones(1)
    for kernels in (native, reference):
        with pytest.raises(CorruptStreamError):
            kernels.gated_open(torch.ones(2), bits, (one, one, one), 4, (1, 1, 4))
