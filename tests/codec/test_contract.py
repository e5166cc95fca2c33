"""What every codec promises, asked of every codec in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import encke
from encke.bound import (
    Absolute,
    Bound,
    FixedRate,
    Lossless,
    PointwiseRelative,
    RangeRelative,
    RmsRelative,
)
from encke.codec import Packed, compress, decompress, names, registry
from encke.errors import BackendError, BoundError, UnsupportedError
from encke.ops.select import native_problem

BACKENDS = ["reference"] + (["native"] if native_problem() is None else [])

LINEAR: tuple[Bound, ...] = (Absolute(5e-2), RangeRelative(1e-2), RmsRelative(5e-2))
#: What each codec is asked to keep. A codec without a line here fails below.
BOUNDS: dict[str, tuple[Bound, ...]] = {
    "fixed": (*LINEAR, PointwiseRelative(1e-2)),
    "entropy": (*LINEAR, PointwiseRelative(1e-2)),
    "predict": LINEAR,
    "group": (*LINEAR, FixedRate(1), FixedRate(4)),
    "mask": (Lossless(), Absolute(0.5)),
    "index": (Lossless(), Absolute(2.0)),
    "lossless": (Lossless(), Absolute(0.1), RangeRelative(0.0)),
    "zfp": (*LINEAR, FixedRate(12)),
}
CASES = [
    pytest.param(codec, dtype, id=f"{codec}-{str(dtype).removeprefix('torch.')}")
    for codec in names()
    for dtype in sorted(registry.by_name(codec).dtypes, key=str)
]


def values(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Noise with zeros in it; in floats also NaNs with a payload, and infinities."""
    generator = torch.Generator().manual_seed(math.prod(shape) + len(shape))
    x = torch.randn(shape, generator=generator, dtype=torch.float64).clamp(-3, 3)
    x = torch.where(torch.rand(shape, generator=generator) < 0.2, 0.0, x)
    if dtype == torch.bool:
        return x > 0
    if not dtype.is_floating_point:
        return (x * 40).abs().to(dtype)
    x = x.to(dtype)
    if x.numel() > 300:  # the last values stay finite: `group` keeps whole groups verbatim
        flat = x.view(-1)
        flat[5], flat[6], flat[7] = math.inf, -math.inf, math.nan
        flat[8] = -flat[7]
        integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        flat.view(integers)[9] = flat.view(integers)[7] | 5  # a NaN of another pattern
    return x


LAYOUTS: dict[str, Callable[[torch.dtype], Tensor]] = {
    "no values": lambda d: values((0,), d),
    "no columns": lambda d: values((3, 0, 2), d),
    "scalar": lambda d: values((), d),
    "one value": lambda d: values((1,), d),
    "ones around": lambda d: values((1, 7, 1, 1), d),
    "odd size": lambda d: values((1237,), d),
    "matrix": lambda d: values((33, 47), d),
    "six dimensions": lambda d: values((2, 3, 1, 5, 4, 3), d),
    "channels last": lambda d: values((2, 5, 9, 7), d).to(memory_format=torch.channels_last),
    "channels last 3d": lambda d: values((2, 3, 4, 5, 6), d).to(
        memory_format=torch.channels_last_3d
    ),
    "transposed": lambda d: values((31, 41), d).t(),
    "permuted": lambda d: values((5, 8, 11), d).permute(2, 0, 1),
    "sliced": lambda d: values((60, 33), d)[::3, 1:-1],
    "every second": lambda d: values((999,), d)[1::2],
    "expanded": lambda d: values((1, 37), d).expand(11, 37),
    "with an offset": lambda d: values((1000,), d)[13:].view(47, 21),
    "flipped": lambda d: values((400,), d).flip(0),
}


def bits(x: Tensor) -> Tensor:
    return torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)).view(torch.uint8)


def dense(x: Tensor) -> bool:
    """Whether the values fill their memory without gaps or overlaps."""
    return x.numel() == 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))


def assert_promise(x: Tensor, y: Tensor, packed: Packed) -> None:
    """The decoded tensor is what the bound and `promised` say, in float64."""
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    bound, promised = packed.bound, packed.promised
    if not x.is_floating_point() or isinstance(bound, Lossless) or bound.number == 0:
        assert torch.equal(bits(x), bits(y))
        return
    finite = torch.isfinite(x)
    assert torch.equal(bits(x[~finite]), bits(y[~finite]))
    was, now = x[finite].double(), y[finite].double()
    if was.numel() == 0:
        return
    error = (now - was).abs()
    if isinstance(bound, PointwiseRelative):
        assert promised == bound.ratio
        assert bool((error <= promised * was.abs()).all())
        return
    assert error.max().item() <= promised
    if packed.codec == "lossless":
        assert promised == 0
    elif isinstance(bound, Absolute):
        assert promised <= bound.error
    elif isinstance(bound, RangeRelative):
        assert promised <= bound.ratio * (was.max() - was.min()).item()
    elif isinstance(bound, RmsRelative):
        # The root mean square itself rounds, differently for another order of summation.
        assert promised <= bound.ratio * was.square().mean().sqrt().item() * (1 + 1e-12)


def test_every_codec_is_asked() -> None:
    assert set(BOUNDS) == set(names())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_a_tensor_comes_back_through_bytes_within_its_bound(
    codec: str, dtype: torch.dtype, layout: str, backend: str
) -> None:
    x = LAYOUTS[layout](dtype)
    before = x.clone()
    # The reference is slow, and its kernels have tests of their own for every bound.
    for bound in BOUNDS[codec][: None if backend == "native" else 1]:
        packed = compress(x, bound, codec=codec, backend=backend)
        again = Packed.from_bytes(packed.to_bytes())
        y = decompress(again, backend=backend)
        assert_promise(x, y, again)
        assert (again.codec, again.bound, again.promised) == (codec, bound, packed.promised)
        assert y.stride() == x.stride() if dense(x) else y.is_contiguous()
        assert torch.equal(bits(y), bits(packed.decompress(backend=backend)))
    assert torch.equal(bits(x), bits(before))


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_sizes_are_those_of_the_stream(codec: str, dtype: torch.dtype) -> None:
    for shape in ((0,), (), (77,), (20, 31)):
        x = values(shape, dtype)
        packed = compress(x, BOUNDS[codec][0], codec=codec)
        assert packed.nbytes == len(packed.to_bytes(checksum=False))
        assert packed.nbytes + 4 == len(packed.to_bytes())
        assert packed.plain_nbytes == x.numel() * x.element_size()
        assert packed.ratio == packed.plain_nbytes / packed.nbytes
        assert packed.device == x.device


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_a_representation_names_shape_dtype_codec_bound_and_ratio(
    codec: str, dtype: torch.dtype
) -> None:
    bound = BOUNDS[codec][0]
    packed = compress(values((20, 31), dtype), bound, codec=codec)
    kind = str(dtype).removeprefix("torch.")
    for text in (repr(packed), str(packed)):
        for part in ("20×31", kind, codec, repr(bound), f"{packed.ratio:.2f}×"):
            assert part in text
    assert f"≤ {packed.promised:.6g}" in str(packed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_out_is_filled_whatever_its_strides(
    codec: str, dtype: torch.dtype, backend: str
) -> None:
    x = values((6, 25, 7), dtype)
    packed = compress(x, BOUNDS[codec][0], codec=codec, backend=backend)
    expected = packed.decompress(backend=backend)
    around = torch.ones(6, 50, 9, dtype=dtype)
    targets = {
        "contiguous": torch.ones(6, 25, 7, dtype=dtype),
        "permuted": torch.ones(7, 6, 25, dtype=dtype).permute(1, 2, 0),
        "a slice": around[:, ::2, 1:-1],
    }
    for out in targets.values():
        assert decompress(packed, out=out, backend=backend) is out
        assert torch.equal(bits(out), bits(expected))
    # What lies between the slice's values is not touched.
    assert bool((around[:, 1::2] == 1).all())
    assert bool((around[:, :, 0] == 1).all())


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_out_of_another_shape_or_dtype_is_refused(codec: str, dtype: torch.dtype) -> None:
    packed = compress(values((6, 4), dtype), BOUNDS[codec][0], codec=codec)
    other = torch.int16 if dtype != torch.int16 else torch.float32
    for out in (torch.empty(4, 6, dtype=dtype), torch.empty(6, 4, dtype=other)):
        with pytest.raises(UnsupportedError, match=r"out is .* it must be \(6, 4\)"):
            decompress(packed, out=out)


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_inputs_that_require_a_gradient_come_back_detached(
    codec: str, dtype: torch.dtype
) -> None:
    if not dtype.is_floating_point:  # nothing else has a gradient
        with pytest.raises(RuntimeError, match="floating point"):
            values((30,), dtype).requires_grad_()
        return
    leaf = values((10, 35), dtype).requires_grad_()
    for x in (leaf, leaf * 2, torch.nn.Parameter(leaf.detach())):
        packed = compress(x, BOUNDS[codec][0], codec=codec)
        y = packed.decompress()
        assert not y.requires_grad
        assert not packed.payload.requires_grad
        assert_promise(x.detach(), y, packed)
        assert packed.max_error(x) <= packed.promised


@pytest.mark.parametrize("codec", names())
def test_views_that_negate_lazily_come_back_with_their_sign(codec: str) -> None:
    if torch.float32 not in registry.by_name(codec).dtypes:
        with pytest.raises(UnsupportedError):
            compress(torch.ones(3), BOUNDS[codec][0], codec=codec)
        return
    x = torch.complex(torch.zeros(1), torch.full((1,), 2.5)).conj().imag
    assert x.is_neg()
    assert x.is_contiguous()
    packed = compress(x, BOUNDS[codec][0], codec=codec)
    assert_promise(x.resolve_neg(), packed.decompress(), packed)


@pytest.mark.parametrize(("codec", "dtype"), CASES)
def test_the_same_call_gives_the_same_bytes(codec: str, dtype: torch.dtype) -> None:
    x, other = values((3000,), dtype), values((70, 61), dtype)
    for bound in BOUNDS[codec]:
        one = compress(x, bound, codec=codec).to_bytes()
        # What other calls leave behind in memory that is used again must not matter.
        compress(other, bound, codec=codec)
        assert one == compress(x, bound, codec=codec).to_bytes()


def test_as_many_dimensions_as_a_stream_holds_come_back() -> None:
    x = torch.arange(6.0).view([1] * 30 + [2, 3])
    packed = Packed.from_bytes(compress(x, Absolute(0.1), codec="fixed").to_bytes())
    assert packed.decompress().shape == x.shape


def test_more_dimensions_than_a_stream_holds_are_refused_before_they_are_lost() -> None:
    x = torch.zeros([1] * 33)
    with pytest.raises(UnsupportedError, match=r"33.*32"):
        compress(x, Absolute(0.1), codec="fixed").to_bytes()


@pytest.mark.parametrize("bound", [1e-3, 1, None, "1e-3", Lossless, np.float32(0.1)])
def test_a_bound_that_does_not_say_what_it_is_relative_to_is_refused(bound: object) -> None:
    with pytest.raises(BoundError, match=r"bound is .*write Absolute\(1e-3\)"):
        compress(torch.zeros(3), bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [c for c in names() if registry.by_name(c).lossy])
@pytest.mark.parametrize(
    "bound",
    [Absolute(0.0), RangeRelative(0.0), RmsRelative(0), PointwiseRelative(0), Lossless()],
)
def test_a_lossy_codec_refuses_a_bound_without_room(codec: str, bound: Bound) -> None:
    with pytest.raises(BoundError) as caught:
        compress(torch.zeros(3), bound, codec=codec)
    for part in (repr(codec), repr(bound), "above zero", "codec='lossless'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("codec", ["fixed", "entropy", "predict", "mask", "index", "lossless"])
def test_codecs_that_keep_an_error_refuse_a_rate(codec: str) -> None:
    dtype = {"mask": torch.bool, "index": torch.int32}.get(codec, torch.float32)
    with pytest.raises(BoundError) as caught:
        compress(values((9,), dtype), FixedRate(4), codec=codec)
    for part in (repr(codec), "4 bits", "codec='group'", "error bound"):
        assert part in str(caught.value)


NOT_TAKEN = (torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)


@pytest.mark.parametrize("codec", names())
def test_dtypes_that_a_codec_does_not_take_are_refused(codec: str) -> None:
    taken = registry.by_name(codec).dtypes
    others = {torch.float32, torch.float16, torch.bool, torch.int64, *NOT_TAKEN} - taken
    assert len(others) >= len(NOT_TAKEN)
    for dtype in others:
        with pytest.raises(UnsupportedError) as caught:
            compress(torch.zeros(3, dtype=dtype), BOUNDS[codec][0], codec=codec)
        allowed = [str(d).removeprefix("torch.") for d in taken]
        for part in (repr(codec), str(dtype), "codec='auto'", *allowed):
            assert part in str(caught.value)


@pytest.mark.parametrize("dtype", NOT_TAKEN)
def test_dtypes_that_no_codec_takes_are_refused_by_auto(dtype: torch.dtype) -> None:
    for bound in (Absolute(0.1), Lossless()):
        with pytest.raises(UnsupportedError, match=str(dtype)):
            compress(torch.zeros(3, dtype=dtype), bound)


@pytest.mark.parametrize("thing", [np.zeros(3), [1.0, 2.0], 3.5, None], ids=repr)
def test_what_is_no_tensor_is_refused(thing: object) -> None:
    with pytest.raises(UnsupportedError, match=rf"{type(thing).__name__}.*torch\.as_tensor"):
        compress(thing, Absolute(0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["auto", "fixed", "lossless"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_refused(codec: str) -> None:
    x = torch.eye(4)
    for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
        with pytest.raises(UnsupportedError, match=f"{sparse.layout}.*strided"):
            compress(sparse, Absolute(0.1), codec=codec)


def test_tensors_without_values_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="meta"):
        compress(torch.zeros(3, device="meta"), Absolute(0.1), codec="fixed")


def test_unknown_codecs_are_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedError) as caught:
        compress(torch.zeros(3), Absolute(0.1), codec="zip")
    for part in ("'zip'", "auto", *names()):
        assert part in str(caught.value)


def test_unknown_backends_are_refused_with_those_there_are() -> None:
    packed = compress(torch.zeros(3), Absolute(0.1))
    for call in (
        lambda: compress(torch.zeros(3), Absolute(0.1), backend="abacus"),
        lambda: packed.decompress(backend="abacus"),
    ):
        with pytest.raises(BackendError, match=r"'abacus', allowed are native, reference"):
            call()


def test_the_environment_chooses_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCKE_BACKEND", "abacus")
    with pytest.raises(BackendError, match="'abacus'"):
        compress(torch.zeros(3), Absolute(0.1))
    assert compress(torch.zeros(3), Absolute(0.1), backend="reference").promised <= 0.1


@pytest.mark.parametrize("codec", ["fixed", "entropy"])
def test_dither_has_no_meaning_for_shares_of_each_value(codec: str) -> None:
    with pytest.raises(UnsupportedError, match=r"dither=True.*dither=False"):
        compress(torch.ones(3), PointwiseRelative(0.1), codec=codec, dither=True)


def test_every_error_is_caught_as_one_of_enckes() -> None:
    for error in (BoundError, UnsupportedError, BackendError, encke.CorruptStreamError):
        assert issubclass(error, encke.EnckeError)
