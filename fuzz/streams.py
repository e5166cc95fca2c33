"""Truncated, flipped and crafted streams against the decoders.

Two questions are asked of every mutant. As it is, its checksum must give it away:
anything but `CorruptStreamError` is a failure. With length and checksum put right, as an
attacker would, it must decode to a tensor of the claimed shape or raise
`CorruptStreamError`; a crash ends the process, and so the run.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

import torch

import encke
from encke.codec import stream
from encke.errors import CorruptStreamError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Values that lengths, widths and counts are often wrong with.
EDGES = (0, 1, 7, 8, 31, 32, 127, 128, 254, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
#: A mutant that claims more than this is not decoded: the claim alone is no crime.
MOST_BYTES = 1 << 28
#: Without values, but with other extents that a decoder might divide by or multiply.
EMPTY = ((0,), (3, 0), (0, 4, 5), (2, 3, 0, 4))
VERSIONS = (stream.VERSION, stream.WITH_HOLES)
#: Any bound that the codec keeps, and a dtype that it takes.
ANY_BOUND = {
    "fixed": (encke.Absolute(1e-2), torch.float32),
    "entropy": (encke.Absolute(1e-2), torch.float32),
    "predict": (encke.Absolute(1e-2), torch.float32),
    "group": (encke.FixedRate(4), torch.float32),
    "mask": (encke.Lossless(), torch.bool),
    "index": (encke.Lossless(), torch.int32),
    "lossless": (encke.Lossless(), torch.float32),
}


def packed_originals() -> Iterator[encke.Packed]:
    """Every codec, kind and dtype, small enough to be mutated densely."""
    torch.manual_seed(0)
    kinds: list[dict[str, Any]] = [{}, {"dither": True, "seed": 3}, {"keep_nonzero": True}]
    for dtype, count in itertools.product(FLOATS, (1, 40, 700, 9000)):
        x = torch.randn(count).to(dtype)
        x[::3] = 0
        wild = x.clone()
        wild[::50] = float("nan")
        wild[7::70] = 3e4
        smooth = torch.linspace(0, 3, count).sin().to(dtype)
        field = smooth.view(1, -1, count // 20 if count >= 40 else 1)
        for tensor, codec in itertools.product((x, wild, smooth), ("fixed", "entropy")):
            for options, error in itertools.product(kinds, (0.3, 1e-3)):
                yield encke.compress(tensor, encke.Absolute(error), codec=codec, **options)
            yield encke.compress(tensor, encke.PointwiseRelative(1e-2), codec=codec)
        # Large enough for `entropy` to predict rows from the ones before.
        rows = torch.linspace(0, 9, 96).sin().view(-1, 1) * torch.linspace(1, 2, 96)
        rows[5, 7], rows[9] = float("nan"), 0
        for options in kinds if count == 9000 else []:
            yield encke.compress(
                rows.to(dtype), encke.Absolute(2e-2), codec="entropy", **options
            )
        for tensor, options in itertools.product((smooth, wild, field), kinds):
            yield encke.compress(tensor, encke.Absolute(1e-2), codec="predict", **options)
        yield from with_holes(field if count < 9000 else rows.to(dtype), kinds)
        for bits in (1, 2, 4, 8):
            yield encke.compress(wild, encke.FixedRate(bits), codec="group")
        yield encke.compress(wild, encke.Lossless(), codec="lossless")
    for dtype, high in itertools.product(INTEGERS, (1, 2, 100, 120)):
        x = torch.randint(0, high, (500,), dtype=dtype)
        yield encke.compress(x, encke.Lossless(), codec="index")
    yield encke.compress(torch.rand(999) < 0.5, encke.Lossless(), codec="mask")
    for (codec, (bound, dtype)), shape in itertools.product(ANY_BOUND.items(), EMPTY):
        yield encke.compress(torch.zeros(shape, dtype=dtype), bound, codec=codec)


def with_holes(field: torch.Tensor, kinds: list[dict[str, Any]]) -> Iterator[encke.Packed]:
    """Holes of one kind and of several, for each codec that values may have."""
    one = field.clone().contiguous()
    one.view(-1)[field.numel() // 4 : field.numel() // 2] = 1e4
    several = one.clone()
    several.view(-1)[::7] = float("nan")
    several.view(-1)[3::11] = float("inf")
    for x, codec in itertools.product((one, several), ("fixed", "entropy", "predict")):
        for options in kinds:
            yield encke.compress(x, encke.Absolute(1e-2), codec=codec, fill=1e4, **options)
    yield encke.compress(several, encke.Lossless(), codec="lossless", fill=1e4)


def falsely_empty() -> Iterator[encke.Packed]:
    """Payloads with values whose header claims a shape that has none."""
    full = torch.linspace(0, 3, 120).sin().view(2, 3, 5, 4)
    for codec, shape in itertools.product(("fixed", "entropy", "predict", "group"), EMPTY):
        bound, dtype = ANY_BOUND[codec]
        packed = encke.compress(full.to(dtype), bound, codec=codec)
        yield dataclasses.replace(packed, shape=shape, order=tuple(range(len(shape))))


def mutate(blob: bytes, others: list[bytes], chance: random.Random) -> bytearray:
    """One to four small or large wrongs."""
    data = bytearray(blob)
    for _ in range(chance.randint(1, 4)):
        if not data:
            break
        at = chance.randrange(len(data))
        # Headers and tables decide more than the bits of a code do.
        if chance.random() < 0.5:
            at = min(at, chance.randrange(160))
        match chance.randrange(8):
            case 0:
                data = data[:at]
            case 1 | 2:
                data[at] ^= 1 << chance.randrange(8)
            case 3:
                data[at] = chance.choice(EDGES) & 255
            case 4:
                edge = struct.pack("<I", chance.choice(EDGES))
                data[at : at + 4] = edge[: len(data[at : at + 4])]
            case 5:
                data[at:at] = chance.randbytes(chance.randint(1, 9))
            case 6:
                del data[at : at + chance.randint(1, 9)]
            case 7:
                other = chance.choice(others)
                length = chance.randint(1, 200)
                data[at : at + length] = other[at : at + length]
    return data


def put_right(data: bytearray) -> bytes:
    """The mutant with a length and a checksum that fit it."""
    if len(data) < 44:
        return bytes(data)
    data[:5] = stream.MAGIC + bytes([data[4] if data[4] in VERSIONS else stream.VERSION])
    data[7] = 1
    start = stream.header_bytes(data[8])
    body = max(0, len(data) - 4 - start)
    struct.pack_into("<Q", data, 32, body)
    struct.pack_into("<I", data, len(data) - 4, zlib.crc32(data[:-4]))
    return bytes(data)


def attempt(blob: bytes) -> str:
    """'corrupt', 'decoded' or 'huge'."""
    try:
        packed = encke.Packed.from_bytes(blob)
        if packed.plain_nbytes > MOST_BYTES:
            return "huge"
        y = encke.decompress(packed)
    except CorruptStreamError:
        return "corrupt"
    if tuple(y.shape) != packed.shape or y.dtype != packed.dtype:
        raise AssertionError(f"decoded {tuple(y.shape)} {y.dtype} from {packed!r}")
    return "decoded"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(args.seed)
    originals = itertools.chain(packed_originals(), falsely_empty())
    blobs = [packed.to_bytes() for packed in originals]
    known = set(blobs)  # a splice may turn one small stream into another
    print(f"{len(blobs)} originals", file=sys.stderr, flush=True)
    tally: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    while sum(tally.values()) < args.streams:
        blob = chance.choice(blobs)
        mutant = mutate(blob, blobs, chance)
        if bytes(mutant) not in known:
            outcome = attempt(bytes(mutant))
            # A stream that says it has no checksum, at the right length, is a stream.
            checksummed = len(mutant) < 8 or mutant[7] & 1
            if outcome != "corrupt" and checksummed:
                print(f"a broken stream was {outcome}: {bytes(mutant).hex()}", file=sys.stderr)
                return 1
            tally[f"as they were: {outcome}"] += 1
        tally[f"checksum put right: {attempt(put_right(mutant))}"] += 1
    seconds = time.monotonic() - began
    print(json.dumps({"streams": sum(tally.values()), "seconds": round(seconds), **tally}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
