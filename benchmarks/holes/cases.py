"""Fields with made coasts: what is compressed, and where it has holes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILL = 1e36
SHARES = (0.05, 0.3, 0.7)


@dataclass(frozen=True)
class Field:
    """Values without holes; the last two axes are latitude and longitude."""

    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Coast:
    """How holes lie: smooth or ragged, fixed or moving from plane to plane."""

    kind: str
    share: float
    moving: bool
    filler: str

    def holes(self, shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
        planes = 1 if not self.moving else int(np.prod(shape[:-2]))
        noise = np.random.default_rng(seed).standard_normal((planes, *shape[-2:]))
        along = 2.0 if self.moving and planes > 1 else 0.0
        land = smoothed(noise, (along, 6.0, 6.0))
        if self.kind == "ragged":
            land = land / land.std() + 0.5 * unit(smoothed(noise, (along, 1.0, 1.0)))
        hole = land < np.quantile(land, self.share)
        whole = np.broadcast_to(hole, (int(np.prod(shape[:-2])), *shape[-2:]))
        return whole.reshape(shape).copy()

    def put(self, field: np.ndarray, holes: np.ndarray) -> np.ndarray:
        x = field.copy()
        fill = FILL if x.dtype != np.float16 else 6e4
        x[holes] = fill if self.filler == "fill" else np.nan
        return x


def unit(x: np.ndarray) -> np.ndarray:
    return x / x.std()


def smoothed(noise: np.ndarray, sigma: tuple[float, ...]) -> np.ndarray:
    """A Gaussian filter that wraps around, by Fourier transform."""
    spectrum = np.fft.fftn(noise)
    for axis, width in enumerate(sigma):
        frequency = np.fft.fftfreq(noise.shape[axis])
        shape = [-1 if d == axis else 1 for d in range(noise.ndim)]
        spectrum = spectrum * np.exp(-2 * (np.pi * width * frequency) ** 2).reshape(shape)
    return np.fft.ifftn(spectrum).real


def fields(folder: Path) -> Iterator[Field]:
    """Two, three and four dimensions of climate.npz."""
    with np.load(folder / "climate.npz") as arrays:
        for name in ("TREFHT_57", "TS_b003", "uvt_U", "uvt_V", "uvt_T"):
            yield Field(name, arrays[name])
        yield Field("TS_b003, one time", arrays["TS_b003"][3])
        yield Field("uvt_U, one level", arrays["uvt_U"][0, 5])
        years = arrays["TREFHT_66"][:96].reshape(8, 12, 64, 128)
        yield Field("TREFHT_66, 8 by 12", np.ascontiguousarray(years))


def coasts(dimensions: int) -> Iterator[Coast]:
    """Every kind and share, fixed and, where there are planes, moving; fill and NaN in turn."""
    turn = 0
    for kind in ("smooth", "ragged"):
        for share in SHARES:
            for moving in (False, True) if dimensions > 2 else (False,):
                yield Coast(kind, share, moving, ("fill", "nan")[turn % 2])
                turn += 1
