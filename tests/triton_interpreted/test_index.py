"""`index` by Triton: the bytes of the reference, and its integers from them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from encke.ops.select import load

TRITON, REFERENCE = load("triton"), load("reference")
DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def same(x: Tensor) -> None:
    payload = TRITON.index_encode(x)
    assert torch.equal(payload, REFERENCE.index_encode(x))
    for read in (payload, payload.clone()):  # known, and to be checked
        decoded = TRITON.index_decode(read, x.numel(), x.dtype)
        assert decoded.dtype == x.dtype
        assert torch.equal(decoded, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_width_of_code_agrees(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    for width in sorted({0, 1, 3, 7, 8 * dtype.itemsize // 2 + 1, 8 * dtype.itemsize - 1}):
        generator = torch.Generator().manual_seed(3)
        x = torch.randint(0, min(2**width, 2**63 - 1), (40,), generator=generator)
        x[5] = 2**width - 1
        same((x + (limits.min if dtype != torch.uint8 else 0)).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_whole_range_of_a_dtype_agrees(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1, 7])
    same(x.to(dtype).repeat(5))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    count=st.sampled_from([0, 1, 7, 8, 9, 31, 33, 1023, 1025, 8191, 8192, 8193, 16390]),
    dtype=st.sampled_from(DTYPES),
    highest=st.sampled_from([1, 8, 100]),
)
def test_any_number_of_values_around_the_edges_of_chunks(
    count: int, dtype: torch.dtype, highest: int
) -> None:
    generator = torch.Generator().manual_seed(count)
    x = torch.randint(0, highest, (count,), generator=generator).to(dtype)
    x[8192:] += 20  # another base, another width
    x[-1:] = 3
    same(x)
