"""How small, how fast and how true: the measurements behind `encke bench`.

Times are the best of several repetitions, because other work on a machine only ever
adds time. A copy of the same tensor between two existing buffers is timed in turn with
the codec, so that both see the same machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.bound import Bound
from encke.codec import Packed, compress
from encke.errors import UnsupportedError

_PIECE = 1 << 22  # values compared at a time, so that float64 copies stay small


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How far a decoded tensor is from the original, in float64, over finite values.

    max_error        largest |decoded - x|
    max_pointwise    largest |decoded - x| / |x|, where x is not zero
    psnr             20·log10((max - min) / root mean square error); inf if equal
    nonfinite_kept   every NaN, infinity and fill value came back bit for bit, and no NaN or
                     infinity was made
    """

    max_error: float
    max_pointwise: float
    psnr: float
    nonfinite_kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """Best times of one codec on one tensor, and of a plain copy in the same run."""

    encode: float
    decode: float
    memcpy: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One codec on one tensor."""

    codec: str
    dither: bool
    plain_nbytes: int
    nbytes: int
    promised: float
    seconds: Seconds
    comparison: Comparison
    pointwise: bool

    @property
    def ratio(self) -> float:
        return self.plain_nbytes / self.nbytes

    @property
    def error_over_bound(self) -> float:
        """Largest error over the promised one: at most 1; NaN where none is promised."""
        largest = self.comparison.max_pointwise if self.pointwise else self.comparison.max_error
        if self.promised > 0.0 and math.isfinite(self.promised):
            return largest / self.promised
        return math.nan

    @property
    def encode_rate(self) -> float:
        """Bytes of the original tensor encoded in a second."""
        return self.plain_nbytes / self.seconds.encode

    @property
    def decode_rate(self) -> float:
        """Bytes of the original tensor decoded in a second."""
        return self.plain_nbytes / self.seconds.decode


def memcpy_seconds(x: Tensor, repeat: int) -> float:
    """Best time of a copy of `x` between buffers that exist already."""
    source, target = x.clone(), torch.empty_like(x)
    target.copy_(source)
    return min(seconds(lambda: target.copy_(source)) for _ in range(repeat))


def codec_seconds(
    x: Tensor,
    encode: Callable[[], Packed],
    *,
    repeat: int,
    backend: str | None = None,
    patience: float = 20.0,
) -> Seconds:
    """Best times of `encode`, of decoding its result, and of a copy of `x`, in turns.

    No new repetition starts once `patience` seconds have passed.
    """
    source, target = x.clone(), torch.empty_like(x)
    target.copy_(source)
    packed = encode()
    packed.decompress(backend=backend)
    times: list[tuple[float, float, float]] = []
    started = time.perf_counter()
    while not times or (len(times) < repeat and time.perf_counter() - started < patience):
        times.append(
            (
                seconds(encode),
                seconds(lambda: packed.decompress(backend=backend)),
                seconds(lambda: target.copy_(source)),
            )
        )
    encode_best, decode_best, memcpy_best = (min(column) for column in zip(*times, strict=True))
    return Seconds(encode=encode_best, decode=decode_best, memcpy=memcpy_best)


def measure(
    x: Tensor,
    bound: Bound,
    *,
    codec: str,
    dither: bool = False,
    fill: tuple[float, ...] | None = None,
    backend: str | None = None,
    repeat: int = 5,
    patience: float = 20.0,
) -> Measurement:
    """Compress, decompress, time and compare; raises what `compress` raises.

    >>> from encke.bound import Absolute
    >>> m = measure(torch.linspace(-1, 1, 4096), Absolute(1e-3), codec="fixed", repeat=1)
    >>> m.ratio > 2, 0 < m.error_over_bound <= 1, m.seconds.encode > 0
    (True, True, True)
    """

    def encode() -> Packed:
        return compress(x, bound, codec=codec, dither=dither, fill=fill, backend=backend)

    packed = encode()
    return Measurement(
        codec=packed.codec,
        dither=dither,
        plain_nbytes=packed.plain_nbytes,
        nbytes=packed.nbytes,
        promised=packed.promised,
        comparison=compare(x, packed.decompress(backend=backend), fill=fill or ()),
        seconds=codec_seconds(x, encode, repeat=repeat, backend=backend, patience=patience),
        pointwise=bound.kind == "pointwise",
    )


def compare(x: Tensor, y: Tensor, *, fill: tuple[float, ...] = ()) -> Comparison:
    """How far `y` is from `x`; `fill` counts as not finite.

    >>> inf = float("inf")
    >>> c = compare(torch.tensor([1.0, 2.0, inf]), torch.tensor([1.0, 2.5, inf]))
    >>> c.max_error, c.max_pointwise, round(c.psnr, 2), c.nonfinite_kept
    (0.5, 0.25, 9.03, True)
    """
    if x.shape != y.shape or x.dtype != y.dtype:
        raise UnsupportedError(
            f"tensors to compare are {tuple(x.shape)} {x.dtype} and {tuple(y.shape)} "
            f"{y.dtype}; they must be alike"
        )
    largest = pointwise = squares = 0.0
    count, low, high, kept = 0, math.inf, -math.inf, True
    for exact, decoded in _pieces(x, y):
        finite = torch.isfinite(exact)
        for number in fill if exact.dtype.is_floating_point else ():
            finite &= exact != torch.tensor(number, dtype=exact.dtype)
        kept = kept and _same_bits(exact[~finite], decoded[~finite])
        kept = kept and bool(torch.isfinite(decoded[finite]).all())
        true = exact[finite].to(torch.float64)
        if true.numel() == 0:
            continue
        error = (decoded[finite].to(torch.float64) - true).abs()
        error = error.nan_to_num(nan=math.inf, posinf=math.inf)
        largest = max(largest, float(error.max()))
        nonzero = true != 0.0
        if bool(nonzero.any()):
            pointwise = max(pointwise, float((error[nonzero] / true[nonzero].abs()).max()))
        if bool((error[~nonzero] > 0.0).any()):
            pointwise = math.inf
        squares += float(error.square().sum())
        count += true.numel()
        low, high = min(low, float(true.min())), max(high, float(true.max()))
    return Comparison(
        max_error=largest,
        max_pointwise=pointwise,
        psnr=_psnr(high - low, squares / count) if count else math.inf,
        nonfinite_kept=kept,
    )


def psnr(x: Tensor, y: Tensor) -> float:
    """Peak signal-to-noise ratio of `y` in decibels, the peak being max - min of `x`."""
    return compare(x, y).psnr


def seconds(work: Callable[[], object]) -> float:
    """Time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _psnr(extent: float, mean_square: float) -> float:
    if mean_square == 0.0:
        return math.inf
    quotient = extent / math.sqrt(mean_square)
    return 20.0 * math.log10(quotient) if quotient > 0.0 else -math.inf


def _pieces(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    exact, decoded = x.detach().reshape(-1), y.detach().reshape(-1)
    for start in range(0, exact.numel(), _PIECE):
        yield exact[start : start + _PIECE], decoded[start : start + _PIECE]


def _same_bits(x: Tensor, y: Tensor) -> bool:
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    return bool(torch.equal(x.view(integer), y.view(integer)))
