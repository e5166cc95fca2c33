"""The dither of docs/format.md, section 4: the same numbers on every backend.

A counter-based generator: the dither of index i follows from the seed and i alone, so
a decoder can start anywhere. Torch has no 32-bit unsigned product, so the hash runs in
int64 with masks, and the 64-bit key of a page in Python's integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

PAGE = 65536
GROUP = 8

_MASK32 = 0xFFFF_FFFF
_MASK64 = 0xFFFF_FFFF_FFFF_FFFF


def page_key(seed: int, page: int) -> tuple[int, int]:
    """The two 32-bit halves (low, high) of SplitMix64 of seed and page.

    >>> page_key(0, 0) == (0xE220A8397B1DCDAF & 0xFFFFFFFF, 0xE220A8397B1DCDAF >> 32)
    True
    """
    z = (seed + (page + 1) * 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    key = z ^ (z >> 31)
    return key & _MASK32, key >> 32


def rotations(seed: int, page: int, groups: int, device: torch.device) -> Tensor:
    """The rotation, 0..7, of each of the page's first `groups` groups of eight."""
    group = torch.arange(groups, dtype=torch.int64, device=device)
    first = _hash((group >> 1) * GROUP, *page_key(seed, page))
    return (first >> (29 - 3 * (group & 1))) & 7


def classes(seed: int, page: int, count: int, device: torch.device) -> Tensor:
    """The class, 0..7, of each of the page's first `count` positions."""
    j = torch.arange(count, dtype=torch.int64, device=device)
    rotation = rotations(seed, page, -(-count // GROUP), device)
    return (j + rotation[j >> 3]) & 7


def integers(seed: int, count: int, device: torch.device, *, start: int = 0) -> Tensor:
    """m(i), 0..65535, for `count` indices from `start` on."""
    pages = range(start // PAGE, -(-(start + count) // PAGE))
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=device)
    whole = torch.cat(
        [
            _page_integers(seed, page, min(PAGE, start + count - page * PAGE), device)
            for page in pages
        ]
    )
    skipped = start - pages[0] * PAGE
    return whole[skipped : skipped + count]


def offsets(
    seed: int, count: int, dtype: torch.dtype, device: torch.device, *, start: int = 0
) -> Tensor:
    """u(i) = (m(i) + 1/2) / 65536 - 1/2 for `count` indices from `start` on, exactly."""
    twice = 2 * integers(seed, count, device, start=start) + 1 - PAGE
    return twice.to(dtype) * 2.0**-17


def _page_integers(seed: int, page: int, count: int, device: torch.device) -> Tensor:
    j = torch.arange(count, dtype=torch.int64, device=device)
    # Two neighbouring groups share their hashes and take different bits of them.
    shared = _hash((j >> 4) * GROUP + (j & 7), *page_key(seed, page))
    fraction = (shared >> (13 * ((j >> 3) & 1))) & 8191
    return classes(seed, page, count, device) * 8192 + fraction


def _hash(j: Tensor, k0: int, k1: int) -> Tensor:
    h = j ^ k0
    h = _multiply32(h ^ (h >> 16), 0x85EBCA6B)
    h = h ^ k1
    h = _multiply32(h ^ (h >> 13), 0xC2B2AE35)
    return h ^ (h >> 16)


def _multiply32(a: Tensor, constant: int) -> Tensor:
    """The low 32 bits of a product, by halves so that no int64 overflows."""
    high = ((a >> 16) * constant) & 0xFFFF
    return ((a & 0xFFFF) * constant + (high << 16)) & _MASK32
