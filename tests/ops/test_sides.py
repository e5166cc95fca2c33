"""Signs as bits, and a norm behind ReLU from them: the fast path against the obvious one."""

from __future__ import annotations

import pytest
import torch

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
