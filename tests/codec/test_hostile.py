"""Nothing that a stream contains can do more than raise `CorruptStreamError`."""

from __future__ import annotations

import importlib.util
import random
import struct
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import encke
from encke.codec import registry, stream
from encke.errors import CorruptStreamError
from encke.ops.select import native_problem

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"encke_{path.stem}_fuzzer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzzer = load(ROOT / "fuzz" / "streams.py")


@pytest.fixture(scope="module")
def originals() -> list[bytes]:
    state = torch.random.get_rng_state()
    blobs = [packed.to_bytes() for packed in fuzzer.packed_originals()]
    torch.random.set_rng_state(state)
    x = torch.linspace(-1, 1, 60).view(6, 10)
    within = (encke.Absolute(0.01), encke.FixedRate(8))
    blobs += [encke.compress(x, bound, codec="zfp").to_bytes() for bound in within]
    assert {registry.by_id(blob[5]).name for blob in blobs} == set(registry.names())
    return blobs


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ENCKE_BACKEND", request.param)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def attacked(blobs: list[bytes], count: int, seed: int) -> Counter[str]:
    """How `count` mutants ended: as they are, and with length and checksum put right."""
    chance = random.Random(seed)
    tally: Counter[str] = Counter()
    whole = set(blobs)
    for _ in range(count):
        mutant = fuzzer.mutate(chance.choice(blobs), blobs, chance)
        if bytes(mutant) not in whole:  # what was spliced may be all of another stream
            assert fuzzer.attempt(bytes(mutant)) == "corrupt"
        tally[fuzzer.attempt(fuzzer.put_right(mutant))] += 1
    return tally


# Fewer on the reference, which is slow; without the native module it is the only one.
RUNS = [("reference", 300)] + ([("native", 10000)] if native_problem() is None else [])


@pytest.mark.parametrize(("backend", "count"), RUNS, indirect=["backend"])
@pytest.mark.usefixtures("backend")
def test_mutants_give_a_tensor_or_a_corrupt_stream_error(
    originals: list[bytes], count: int
) -> None:
    small = [blob for blob in originals if count > 1000 or len(blob) < 1500]
    small += [packed.to_bytes() for packed in fuzzer.falsely_empty()]
    tally = attacked(small, count, seed=count)
    assert set(tally) <= {"corrupt", "decoded", "huge"}
    # Most that reach a decoder break a rule, some only change values: both must be met.
    assert tally["corrupt"] > count // 10
    assert tally["decoded"] > count // 50


@pytest.mark.parametrize("backend", [name for name, _ in RUNS], indirect=True)
@pytest.mark.usefixtures("backend")
def test_every_original_decodes(originals: list[bytes]) -> None:
    for blob in originals[::5]:
        assert fuzzer.attempt(blob) == "decoded"


SAMPLES = {
    "fixed": encke.compress(torch.ones(6, 10), encke.Absolute(0.1), codec="fixed"),
    "entropy": encke.compress(torch.ones(6, 10), encke.Absolute(0.1), codec="entropy"),
    "predict": encke.compress(torch.ones(6, 10), encke.Absolute(0.1), codec="predict"),
    "group": encke.compress(torch.ones(6, 10), encke.FixedRate(1), codec="group"),
    "mask": encke.compress(torch.ones(6, 10) > 0, encke.Lossless(), codec="mask"),
    "index": encke.compress(torch.ones(6, 10).int(), encke.Lossless(), codec="index"),
    "lossless": encke.compress(torch.ones(6, 10), encke.Lossless(), codec="lossless"),
    "zfp": encke.compress(torch.ones(6, 10), encke.Absolute(0.1), codec="zfp"),
}


def resealed(data: bytearray) -> bytes:
    """The bytes with a checksum that fits them."""
    struct.pack_into("<I", data, len(data) - 4, zlib.crc32(data[:-4]))
    return bytes(data)


def with_shape(codec: str, *shape: int) -> bytes:
    """A sample's stream that claims another shape of two dimensions."""
    data = bytearray(SAMPLES[codec].to_bytes())
    struct.pack_into("<2Q", data, 40, *shape)
    return resealed(data)


def rejected(blob: bytes, *, backend: str | None = None) -> str:
    with pytest.raises(CorruptStreamError) as caught:
        encke.Packed.from_bytes(blob).decompress(backend=backend)
    return str(caught.value)


@pytest.mark.parametrize("backend", [name for name, _ in RUNS])
@pytest.mark.parametrize("shape", [(2**20, 2**20), (2**30, 64), (1, 2**61), (2**28, 1)])
@pytest.mark.parametrize("codec", SAMPLES)
def test_a_few_bytes_that_claim_a_huge_tensor_are_refused_before_it_is_allocated(
    codec: str, shape: tuple[int, int], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = with_shape(codec, *shape)
    largest = 0

    def counted(make: object) -> object:
        def call(*size: object, **options: object) -> torch.Tensor:
            nonlocal largest
            y: torch.Tensor = make(*size, **options)  # type: ignore[operator]
            largest = max(largest, y.nbytes)
            return y

        return call

    for name in ("empty", "zeros", "full", "arange"):
        monkeypatch.setattr(torch, name, counted(getattr(torch, name)))
    tracemalloc.start()
    began = time.perf_counter()
    try:
        rejected(blob, backend=backend)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 1
    assert max(peak, largest) < 1 << 22


@pytest.mark.parametrize("codec", SAMPLES)
def test_shapes_beyond_what_can_exist_are_refused_as_such(codec: str) -> None:
    for shape in ((2**31, 2**31), (2**62, 1), (2**64 - 1, 2**64 - 1), (0, 2**63)):
        assert "beyond what can exist" in rejected(with_shape(codec, *shape))


@pytest.mark.parametrize("codec", SAMPLES)
def test_a_shape_of_another_size_is_refused_or_gives_that_shape(codec: str) -> None:
    for shape in ((6, 11), (5, 10), (0, 0), (10, 6), (1, 1)):
        try:
            y = encke.Packed.from_bytes(with_shape(codec, *shape)).decompress()
        except CorruptStreamError:
            continue
        assert tuple(y.shape) == shape


@pytest.mark.parametrize("codec", SAMPLES)
def test_another_number_of_dimensions_is_refused(codec: str) -> None:
    blob = SAMPLES[codec].to_bytes()
    for dimensions in (0, 1, 3, 31, 32, 33, 255):
        data = bytearray(blob)
        data[8] = dimensions
        rejected(resealed(data))


@pytest.mark.parametrize("order", [(0, 0), (1, 1), (0, 2), (255, 0), (2, 1)])
def test_an_order_that_is_no_permutation_is_refused(order: tuple[int, int]) -> None:
    data = bytearray(SAMPLES["fixed"].to_bytes())
    data[56:58] = bytes(order)
    assert "no permutation" in rejected(resealed(data))


def test_bytes_that_pad_the_header_are_zero() -> None:
    for at in range(58, 64):
        data = bytearray(SAMPLES["fixed"].to_bytes())
        data[at] = 1
        rejected(resealed(data))


@pytest.mark.parametrize("number", [0, len(registry.names()) + 1, 99, 255])
def test_an_unknown_codec_is_refused_with_the_known_ones(number: int) -> None:
    data = bytearray(SAMPLES["fixed"].to_bytes())
    data[5] = number
    assert f"codec id {number}, known are [1, 2, 3" in rejected(resealed(data))


@pytest.mark.parametrize("codec", SAMPLES)
def test_a_dtype_that_the_codec_cannot_hold_is_refused(codec: str) -> None:
    for number in range(256):
        if stream.DTYPES.get(number) in registry.by_name(codec).dtypes:
            continue
        data = bytearray(SAMPLES[codec].to_bytes())
        data[6] = number
        message = rejected(resealed(data))
        assert "which it cannot" in message or f"unknown dtype id {number}" in message


def test_every_bit_of_a_stream_is_guarded_by_its_checksum() -> None:
    blob = SAMPLES["fixed"].to_bytes()
    for at in range(len(blob)):
        for bit in range(8):
            data = bytearray(blob)
            data[at] ^= 1 << bit
            rejected(bytes(data))


def test_every_cut_and_every_addition_is_refused() -> None:
    for checksum in (True, False):
        blob = SAMPLES["entropy"].to_bytes(checksum=checksum)
        for length in range(len(blob)):
            rejected(blob[:length])
        rejected(blob + b"\0")
        rejected(b"\0" + blob)


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, b"E\0CK"), (4, b"\0"), (4, b"\2"), (7, b"\3"), (7, b"\x81"), (10, b"\1"), (12, b"\1")],
)
def test_magic_version_and_reserved_bits_are_checked(at: int, value: bytes) -> None:
    data = bytearray(SAMPLES["fixed"].to_bytes())
    data[at : at + len(value)] = value
    rejected(resealed(data))


@pytest.mark.parametrize("codec", SAMPLES)
def test_bounds_that_cannot_be_meant_are_refused(codec: str) -> None:
    blob = SAMPLES[codec].to_bytes()
    for code, number in ((0, 0.1), (7, 0.1), (1, -1.0), (1, float("nan")), (2, 2.0), (5, 0.0)):
        data = bytearray(blob)
        data[9] = code
        struct.pack_into("<d", data, 16, number)
        assert "impossible bound" in rejected(resealed(data))


@pytest.mark.parametrize("length", [0, 1, 39, 2**63, 2**64 - 1])
def test_a_payload_length_that_does_not_fit_is_refused(length: int) -> None:
    data = bytearray(SAMPLES["fixed"].to_bytes())
    struct.pack_into("<Q", data, 32, length)
    rejected(resealed(data))


@pytest.mark.parametrize("blob", [b"", b"ENCK", b"\0" * 100, bytes(range(256)) * 4])
def test_what_is_no_stream_is_refused(blob: bytes) -> None:
    for given in (blob, bytearray(blob), memoryview(blob)):
        with pytest.raises(CorruptStreamError, match="stream"):
            encke.Packed.from_bytes(given)
