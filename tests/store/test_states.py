"""Whatever a state holds comes back, exactly or within what was asked for."""

from __future__ import annotations

import collections
import random
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import encke
from encke import store
from encke.errors import BoundError, UnsupportedError
from encke.store import StateReader, StoreError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def made(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    torch.manual_seed(1)
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_complex or dtype in (torch.float64, torch.float32):
        return torch.randn(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 100, shape).to(dtype)


def bits(x: torch.Tensor) -> bytes:
    return x.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (5, 7), (300, 301)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = made(dtype, shape)
    store.save(tmp_path / "a.encke", {"x": x})
    y = store.load(tmp_path / "a.encke")["model"]["x"]
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert bits(y) == bits(x)


def test_values_that_are_not_tensors_come_back_equal(tmp_path: Path) -> None:
    extra: dict[Any, Any] = {
        "numbers": [1, -2.5, 10**30, True, None, float("inf"), complex(1, -2)],
        "text": "ä\0\ud800",
        3: (1, (2, [3])),
        "python": random.getstate(),
        "numpy": np.random.RandomState(1).get_state(),
        "torch": torch.get_rng_state(),
        "ordered": collections.OrderedDict(b=1, a=2),
        "set": {1, 2},
        "bytes": b"\0\xff",
        "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]),
        "path": PurePath("a/b"),
        "empty": {},
        "$tensor": {"$x": 1},
        "scalar": np.float32(1.5),
        "none": np.zeros((0, 3)),
    }
    store.save(tmp_path / "a.encke", extra=extra)
    found = store.load(tmp_path / "a.encke")["extra"]
    assert found.keys() == extra.keys()
    for key in extra.keys() - {"numpy", "torch", "none"}:
        assert found[key] == extra[key], key
        assert type(found[key]) is type(extra[key])
    assert torch.equal(found["torch"], extra["torch"])
    assert found["none"].shape == (0, 3)
    np.random.RandomState(0).set_state(found["numpy"])
    nan = store.save(tmp_path / "b.encke", extra={"x": float("nan")})
    assert str(store.load(nan.path)["extra"]["x"]) == "nan"


@pytest.mark.parametrize("value", [object(), lambda: 1, nn.Linear(1, 1), torch.nn])
def test_what_needs_a_pickle_is_refused_by_its_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UnsupportedError, match="extra/deep/1"):
        store.save(tmp_path / "a.encke", extra={"deep": [0, value]})
    assert not any(tmp_path.iterdir())


def test_tensors_without_values_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="meta"):
        store.save(tmp_path / "a.encke", nn.Linear(2, 2, device="meta"))
    with pytest.raises(UnsupportedError, match="layout"):
        store.save(tmp_path / "a.encke", {"x": torch.eye(3).to_sparse()})
    assert not any(tmp_path.iterdir())


def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    w = torch.randn(200, 200)
    done = store.save(tmp_path / "a.encke", {"a": w, "b": w, "view": w.t()})
    assert done.nbytes < 2.2 * w.numel() * 4
    found = store.load(tmp_path / "a.encke")["model"]
    assert found["a"].data_ptr() == found["b"].data_ptr()
    assert torch.equal(found["view"], w.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 1000, 70_000, 1_200_000])
def test_values_within_a_bound_never_leave_it(
    tmp_path: Path, dtype: torch.dtype, count: int
) -> None:
    torch.manual_seed(count)
    x = (torch.randn(count) * 3).to(dtype)
    if count > 2:
        x[1], x[2] = float("nan"), float("inf")
    for ratio in (0.3, 1e-2):
        bound = encke.Absolute(ratio)
        store.save(tmp_path / "a.encke", {"x": x}, bounds=bound)
        y = store.load(tmp_path / "a.encke")["model"]["x"]
        live = torch.isfinite(x)
        assert bool(((y.double() - x.double())[live].abs() <= ratio).all())
        assert bits(y[~live]) == bits(x[~live])


@pytest.mark.parametrize(
    "bound",
    [encke.RangeRelative(1e-2), encke.RmsRelative(0.1), encke.PointwiseRelative(1e-2)],
    ids=lambda b: b.kind,
)
def test_relative_bounds_hold_over_the_whole_tensor_not_over_its_parts(
    tmp_path: Path, bound: encke.Bound
) -> None:
    x = torch.cat([torch.randn(1 << 20), 1e3 * torch.randn(1 << 10)])
    store.save(tmp_path / "a.encke", {"x": x}, bounds=bound)
    y = store.load(tmp_path / "a.encke")["model"]["x"]
    promise = encke.bound.resolve(bound, x)
    allowed = promise.error if promise.pointwise is None else promise.pointwise * x.abs()
    assert bool(((y - x).double().abs() <= torch.as_tensor(allowed).double()).all())


def test_bounds_by_pattern_leave_other_tensors_exact(tmp_path: Path) -> None:
    state = {"encoder.weight": torch.randn(100, 100), "head.weight": torch.randn(100, 10)}
    store.save(tmp_path / "a.encke", state, bounds={"encoder.*": encke.RmsRelative(0.2)})
    found = store.load(tmp_path / "a.encke")["model"]
    assert torch.equal(found["head.weight"], state["head.weight"])
    assert not torch.equal(found["encoder.weight"], state["encoder.weight"])
    with pytest.raises(BoundError, match=r"decoder"):
        store.save(tmp_path / "a.encke", state, bounds={"decoder.*": encke.RmsRelative(0.2)})


def test_only_reads_what_is_asked_for(tmp_path: Path) -> None:
    state = {"encoder.weight": torch.randn(400, 400), "head.weight": torch.randn(400, 400)}
    path = tmp_path / "a.encke"
    store.save(path, state)
    with StateReader(path) as stored:
        place = stored.parts_of("model/head.weight")[0]
    raw = bytearray(path.read_bytes())
    raw[place.offset + 100] ^= 1
    path.write_bytes(raw)
    found = store.load(path, only="encoder.*")
    assert list(found["model"]) == ["encoder.weight"]
    with pytest.raises(StoreError, match="fits"):
        store.load(path, only="decoder.*")


def test_dtype_and_device_are_those_asked_for(tmp_path: Path) -> None:
    store.save(tmp_path / "a.encke", {"w": torch.randn(4), "n": torch.arange(3)})
    found = store.load(tmp_path / "a.encke", dtype=torch.bfloat16, device="cpu")["model"]
    assert found["w"].dtype == torch.bfloat16
    assert found["n"].dtype == torch.int64


def test_tensors_of_any_strides_come_back(tmp_path: Path) -> None:
    whole = torch.randn(6, 5, 4, 3)
    state = {
        "last": whole.to(memory_format=torch.channels_last),
        "slice": whole[::2, 1:, :, ::2],
        "large": torch.randn(1500, 1500).t()[:, ::2],
        "expanded": torch.randn(1, 3).expand(4, 3),
    }
    store.save(tmp_path / "a.encke", state)
    found = store.load(tmp_path / "a.encke")["model"]
    for name, x in state.items():
        assert torch.equal(found[name], x), name


def test_a_save_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    for value in (1.0, 2.0):
        store.save(path, {"x": torch.tensor(value)})
    assert [p.name for p in tmp_path.iterdir()] == ["a.encke"]
    assert store.load(path)["model"]["x"] == 2.0


def test_wrong_requests_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.encke"
    with pytest.raises(BoundError, match="one of"):
        store.save(path, nn.Linear(2, 2), loss=1e-3, bounds=encke.Absolute(1.0))
    with pytest.raises(StoreError, match="itself"):
        store.save(path, {"w": torch.ones(2)}, loss=1e-3)
    with pytest.raises(BoundError, match="loss"):
        store.save(path, nn.Linear(2, 2), loss=2.0, data=[1])
    with pytest.raises(StoreError, match="nothing"):
        store.save(path)
    with pytest.raises(BoundError, match="go together"):
        store.save(path, nn.Linear(2, 2), accuracy=0.1)
    assert not path.exists()
