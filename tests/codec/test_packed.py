"""A packed tensor on its own: what it says, what it copies, and how large it may be."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import pytest
import torch

from encke.bound import Absolute, FixedRate, Lossless, PointwiseRelative
from encke.codec import Packed, compress, decompress
from encke.errors import UnsupportedError

LARGE = 2**31  # values, beyond what a signed 32-bit index reaches


def packed_noise(codec: str = "fixed") -> tuple[torch.Tensor, Packed]:
    x = torch.randn(40, 25, generator=torch.Generator().manual_seed(0))
    return x, compress(x, Absolute(0.1), codec=codec)


def test_a_stream_may_be_bytes_a_bytearray_or_a_view() -> None:
    _, packed = packed_noise()
    blob = packed.to_bytes()
    for given in (blob, bytearray(blob), memoryview(blob), memoryview(blob + b"more")[:-4]):
        again = Packed.from_bytes(given)
        assert torch.equal(again.payload, packed.payload)
        assert again.to_bytes() == blob


def test_a_packed_tensor_does_not_change_with_the_buffer_it_was_read_from() -> None:
    _, packed = packed_noise()
    buffer = bytearray(packed.to_bytes())
    again = Packed.from_bytes(buffer)
    buffer[:] = bytes(len(buffer))
    assert torch.equal(again.decompress(), packed.decompress())


def test_a_packed_tensor_does_not_change_with_the_tensor_it_was_made_of() -> None:
    for codec in ("fixed", "entropy", "predict", "lossless"):
        x, packed = packed_noise(codec)
        before = packed.to_bytes()
        x.fill_(7)
        assert packed.to_bytes() == before
        packed.decompress().fill_(7)
        assert packed.to_bytes() == before


def test_a_packed_tensor_is_a_constant() -> None:
    _, packed = packed_noise()
    with pytest.raises(dataclasses.FrozenInstanceError):
        packed.shape = (1000,)  # type: ignore[misc]
    assert torch.equal(copy.deepcopy(packed).decompress(), packed.decompress())


@pytest.mark.parametrize("checksum", [True, False])
def test_a_stream_without_a_checksum_is_read_too(checksum: bool) -> None:
    _, packed = packed_noise()
    blob = packed.to_bytes(checksum=checksum)
    assert (blob[7] == 1) is checksum
    assert torch.equal(Packed.from_bytes(blob).decompress(), packed.decompress())


def test_the_largest_error_is_that_of_the_finite_values() -> None:
    x, packed = packed_noise()
    measured = (decompress(packed).double() - x.double()).abs().max().item()
    assert packed.max_error(x) == measured
    x[0, 0], x[3, 4] = math.nan, math.inf
    packed = compress(x, Absolute(0.1), codec="fixed")
    assert 0 < packed.max_error(x) <= 0.1
    other = x.clone()
    other[5, 5] += 100
    assert packed.max_error(other) > 99


def test_the_largest_error_of_other_tensors_is_refused_or_zero() -> None:
    _, packed = packed_noise()
    with pytest.raises(UnsupportedError, match=r"\(40,\), this is \(40, 25\)"):
        packed.max_error(torch.zeros(40))
    index = torch.arange(100)
    assert compress(index, Lossless(), codec="index").max_error(index) == 0
    assert compress(index, Lossless(), codec="index").max_error(index + 3) == 3
    empty = torch.zeros(0)
    assert compress(empty, Absolute(0.1), codec="fixed").max_error(empty) == 0


def test_the_long_form_says_bound_error_bits_and_reason() -> None:
    x = torch.linspace(0, 1, 5000)
    text = str(compress(x, Absolute(0.01)))
    for part in ("5000", "float32", "bits a value", "Absolute(error=0.01)", "≤ 0.01", "codec"):
        assert part in text
    assert "×," in text.splitlines()[-1]  # the ratios of the codecs that were tried
    assert "≤ |x|·0.01" in str(compress(x, PointwiseRelative(0.01), codec="fixed"))
    assert "scalar" in repr(compress(torch.tensor(1.0), FixedRate(1), codec="group"))


def require_memory(gigabytes: int) -> None:
    """Skip, with the reason, where the machine cannot hold the tensor."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    if available < gigabytes << 20:
        pytest.skip(f"needs {gigabytes} GB of memory, {available >> 20} GB are available")


@pytest.mark.slow
def test_more_truth_values_than_a_32_bit_index_reaches_come_back() -> None:
    require_memory(8)
    x = torch.zeros(LARGE + 77, dtype=torch.bool)
    spots = torch.tensor([0, 5, LARGE // 2, LARGE - 1, LARGE, LARGE + 3, LARGE + 76])
    x[spots] = True
    packed = compress(x, Lossless(), codec="mask")
    assert packed.payload.numel() == (LARGE + 77 + 7) // 8
    x.fill_(True)
    assert decompress(packed, out=x) is x
    assert torch.equal(x.nonzero().view(-1), spots)


@pytest.mark.slow
def test_more_floats_than_a_32_bit_index_reaches_come_back() -> None:
    require_memory(14)
    x = torch.zeros(LARGE + 64, dtype=torch.float16)
    spots = torch.tensor([1, LARGE - 33, LARGE - 1, LARGE, LARGE + 31, LARGE + 63])
    values = torch.tensor([1.5, -2.25, 3.0, -0.125, 100.0, math.inf], dtype=torch.float16)
    x[spots] = values
    packed = compress(x, Absolute(0.01), codec="fixed")
    x.fill_(1)
    decompress(packed, out=x)
    finite = values.isfinite()
    assert (x[spots] - values)[finite].double().abs().max().item() <= 0.01
    assert torch.equal(x[spots][~finite], values[~finite])
    x[spots] = 0
    found = sum(int(torch.count_nonzero(part)) for part in x.split(1 << 28))
    assert found == 0
