"""Other ways to make weights smaller; each gives decoded weights and the bits they take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import zstandard
from torch import Tensor, nn

from encke.bound import Absolute
from encke.codec import compress

Coded = tuple[dict[str, Tensor], float]


def floats(model: nn.Module) -> dict[str, Tensor]:
    """Every floating-point tensor of the state, tied ones once."""
    seen: set[int] = set()
    found = {}
    for name, x in model.state_dict().items():
        if x.is_floating_point() and x.numel() and x.data_ptr() not in seen:
            seen.add(x.data_ptr())
            found[name] = x.detach().clone()
    return found


@contextmanager
def instead(model: nn.Module, decoded: dict[str, Tensor]) -> Iterator[None]:
    """The model with other values, for a while."""
    state = model.state_dict()
    kept = {name: state[name].clone() for name in decoded}
    with torch.no_grad():
        for name, x in decoded.items():
            state[name].copy_(x)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, x in kept.items():
                state[name].copy_(x)


def bf16(state: dict[str, Tensor]) -> Coded:
    return {n: x.bfloat16().float() for n, x in state.items()}, _bits(state, lambda x: 16)


def int8(state: dict[str, Tensor]) -> Coded:
    """A scale of 32 bits for each row of a matrix; vectors as they are."""
    decoded, bits = {}, 0.0
    for name, x in state.items():
        if x.ndim < 2:
            decoded[name], bits = x, bits + 32 * x.numel()
            continue
        rows = x.reshape(x.shape[0], -1)
        scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        decoded[name] = (torch.round(rows / scale) * scale).view_as(x)
        bits += 8 * x.numel() + 32 * x.shape[0]
    return decoded, bits


def groups_of_4_bits(state: dict[str, Tensor]) -> Coded:
    """Four bits in groups of 32 with a scale of 16 bits, rounded to the nearest."""
    decoded, bits = {}, 0.0
    for name, x in state.items():
        if x.ndim < 2:
            decoded[name], bits = x, bits + 32 * x.numel()
            continue
        flat = x.reshape(-1)
        room = -len(flat) % 32
        groups = torch.cat([flat, flat.new_zeros(room)]).view(-1, 32)
        scale = (groups.abs().amax(1, keepdim=True).clamp(min=1e-8) / 7).half().float()
        codes = torch.round(groups / scale).clamp(-8, 7)
        decoded[name] = (codes * scale).view(-1)[: len(flat)].view_as(x)
        bits += 4 * x.numel() + 16 * len(groups)
    return decoded, bits


def gptq_4_bits(state: dict[str, Tensor], inputs: dict[str, Tensor]) -> Coded:
    """Four bits and a scale of 16 bits for each row, with GPTQ's feedback where it can be."""
    from encke.store.feedback import correction, rounded

    decoded, bits = {}, 0.0
    for name, x in state.items():
        chosen = correction(inputs[name]) if name in inputs else None
        if x.ndim < 2:
            decoded[name], bits = x, bits + 32 * x.numel()
            continue
        rows = x.reshape(x.shape[0], -1)
        scale = (rows.abs().amax(1, keepdim=True).clamp(min=1e-8) / 7).half().float()
        if chosen is not None and chosen.factor.shape[0] == rows.shape[1]:
            codes = rounded(rows / scale, 1.0, 1e9, chosen).clamp(-8, 7)
        else:
            codes = torch.round(rows / scale).clamp(-8, 7)
        decoded[name] = (codes * scale).view_as(x)
        bits += 4 * x.numel() + 16 * x.shape[0]
    return decoded, bits


def zstd(state: dict[str, Tensor]) -> Coded:
    packer = zstandard.ZstdCompressor(level=19)
    return state, sum(8.0 * len(packer.compress(x.numpy().tobytes())) for x in state.values())


def zipnn(state: dict[str, Tensor]) -> Coded:
    import zipnn as library

    packer = library.ZipNN(input_format="byte", bytearray_dtype="float32")
    whole = b"".join(x.numpy().tobytes() for x in state.values())
    return state, 8.0 * len(packer.compress(whole))


def uniform(state: dict[str, Tensor], error: float) -> Coded:
    """One absolute bound for all weights, coded by `entropy`."""
    packed = {n: compress(x, Absolute(error), codec="entropy") for n, x in state.items()}
    return (
        {n: p.decompress() for n, p in packed.items()},
        sum(8.0 * p.nbytes for p in packed.values()),
    )


def sz3(state: dict[str, Tensor], error: float) -> Coded:
    """One absolute bound for all weights, by SZ3."""
    from pysz import sz, szConfig, szErrorBoundMode

    decoded, bits = {}, 0.0
    for name, x in state.items():
        array = np.ascontiguousarray(x.numpy())
        if array.size < 64 or array.ndim == 0:
            decoded[name], bits = x, bits + 32 * x.numel()
            continue
        config = szConfig(array.shape)
        config.errorBoundMode = szErrorBoundMode.ABS
        config.absErrorBound = error
        stream, _ = sz.compress(array, config)
        back, _ = sz.decompress(stream, np.float32, array.shape)
        decoded[name] = torch.from_numpy(np.array(back)).view_as(x)
        bits += 8.0 * len(stream)
    return decoded, bits


def at_loss(
    coder: Callable[[dict[str, Tensor], float], Coded],
    state: dict[str, Tensor],
    rise: Callable[[dict[str, Tensor]], float],
    allowed: float,
) -> tuple[Coded, float]:
    """The coarsest uniform bound whose rise is at most `allowed`, by bisection."""
    low, high = 1e-6, 0.3
    best: tuple[Coded, float] | None = None
    for _ in range(11):
        error = math.sqrt(low * high)
        coded = coder(state, error)
        found = rise(coded[0])
        if found <= allowed:
            best, low = (coded, found), error
        else:
            high = error
    assert best is not None
    return best


def _bits(state: dict[str, Tensor], each: Callable[[Tensor], float]) -> float:
    return sum(each(x) * x.numel() for x in state.values())
