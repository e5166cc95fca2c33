"""Small tensors that every machine makes bit for bit the same, for numbers that gate.

Only the raw output of PCG64 (which NumPy promises never to change), integer arithmetic
and single, correctly rounded float operations are used: no sums whose order a vector
unit might choose, no transcendental functions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def _raw(count: int, seed: int) -> np.ndarray:
    """`count` random 64-bit words."""
    return np.random.PCG64(seed).random_raw(count)


def _normal(count: int, seed: int) -> np.ndarray:
    """Nearly gaussian: the sum of twelve 16-bit integers, centred, in units of 2^-16."""
    lanes = _raw(3 * count, seed).view(np.uint16).astype(np.int64).reshape(count, 12)
    return lanes.sum(axis=1) - 6 * 65_535


def _float(integers: np.ndarray, shift: int) -> Tensor:
    return torch.from_numpy((integers * 2.0**-shift).astype(np.float32))


def gaussian() -> Tensor:
    return _float(_normal(65_536, 1), 16)


def relu() -> Tensor:
    return _float(np.maximum(_normal(65_536, 2), 0), 16).view(4, 16, 32, 32)


def relu_sparse() -> Tensor:
    """One value in sixteen is not zero, as in deep layers."""
    return _float(np.maximum(_normal(32_768, 3) - 98_304, 0), 16).view(8, 64, 8, 8)


def channels_shifted() -> Tensor:
    """Each channel has a mean and a scale of its own, as in front of a batch norm."""
    values = _normal(65_536, 4).reshape(4, 16, 1024)
    channel = np.arange(16).reshape(1, 16, 1)
    return _float(values * (1 + channel % 5) + (channel - 8) * 65_536, 16).view(4, 16, 32, 32)


def smooth_plane() -> Tensor:
    """A cubic of two coordinates with a little noise in the last bits."""
    y, x = np.meshgrid(np.arange(192), np.arange(256), indexing="ij")
    surface = x * (x - 128) * (y - 60) + 37 * y * y * 16 - 11 * x * y
    noise = _normal(192 * 256, 5).reshape(192, 256) >> 12
    return _float(surface + noise, 16)


def smooth_volume() -> Tensor:
    """A polynomial of three coordinates on a large offset, like a temperature field."""
    z, y, x = np.meshgrid(np.arange(16), np.arange(48), np.arange(64), indexing="ij")
    field = (y - 24) * (y - 24) * 40 + (x - 32) * (z + 3) * 90 + z * z * 200 + 2_400_000
    noise = _normal(16 * 48 * 64, 6).reshape(16, 48, 64) >> 9
    return _float(field + noise, 13)


def rough_steps() -> Tensor:
    """Plateaus with sharp edges: piecewise constant in blocks of 24 x 40."""
    levels = _normal(100, 7).reshape(10, 10)
    rows, columns = np.arange(192) // 24 % 10, np.arange(256) // 40 % 10
    return _float(levels[np.ix_(rows, columns)], 16)


def softmax_like() -> Tensor:
    """Rows of positive shares that add up to one, most of them small."""
    distance = np.abs(_normal(65_536, 8)).reshape(512, 128) >> 8
    weight = (1 << 40) // (1 + distance * distance)
    share = weight.astype(np.float64) / weight.sum(axis=1, keepdims=True).astype(np.float64)
    return torch.from_numpy(share.astype(np.float32)).view(4, 4, 32, 128)


def gradient_like() -> Tensor:
    """Heavy tails: the cube of a gaussian, tiny in absolute terms."""
    normal = _normal(65_536, 9).astype(np.float64) * 2.0**-16
    return torch.from_numpy((normal * normal * normal * 2.0**-20).astype(np.float32))


def zeros() -> Tensor:
    return torch.zeros(64, 300)


def constant() -> Tensor:
    return torch.full((20_000,), 3.25)


def odd_length() -> Tensor:
    """A length that no block, group or chunk divides."""
    return _float(_normal(1_009, 10), 16)


FIXTURES: dict[str, Callable[[], Tensor]] = {
    make.__name__: make
    for make in (
        gaussian,
        relu,
        relu_sparse,
        channels_shifted,
        smooth_plane,
        smooth_volume,
        rough_steps,
        softmax_like,
        gradient_like,
        zeros,
        constant,
        odd_length,
    )
}
