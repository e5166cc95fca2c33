"""Tensors in the files people have: .npy, .npz, .safetensors, .nc and raw binary."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from encke.errors import UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: The names of dtypes on the command line, and torch's.
DTYPE_NAMES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
}
_PICKLES = frozenset({".pt", ".pth", ".pkl", ".pickle"})
_NAMED = frozenset({".npz", ".safetensors", ".nc"})


@dataclass(frozen=True, kw_only=True)
class TensorFile:
    """The tensors of one file, read one at a time.

    named       whether the file gives its tensors names (and may hold several)
    fill        what the file says that stands for "no value" in a tensor
    attributes  what the file says beside its tensors, as JSON can hold it
    """

    names: tuple[str, ...]
    load: Callable[[str], Tensor]
    named: bool
    fill: Callable[[str], tuple[float, ...]] = lambda _: ()
    attributes: Mapping[str, Any] | None = None


def is_known(path: Path) -> bool:
    """Whether the name says that tensors can be read from a file."""
    return path.suffix.lower() in _NAMED | {".npy"}


def open_tensors(path: Path, *, dtype: str | None, shape: str | None) -> TensorFile:
    """The tensors of `path`; `dtype` and `shape` say what a raw file holds."""
    if dtype is not None or shape is not None:
        return _open_raw(path, dtype, shape)
    kind = path.suffix.lower()
    if kind == ".npy":
        return TensorFile(
            names=(path.stem,), load=lambda _: _from_array(_load_numpy(path), path), named=False
        )
    if kind == ".npz":
        arrays = _load_numpy(path)
        return TensorFile(
            names=tuple(arrays.files),
            load=lambda name: _from_array(_member(arrays, name, path), path),
            named=True,
        )
    if kind == ".safetensors":
        return _open_safetensors(path)
    if kind == ".nc":
        from encke.cli.netcdf_files import NetcdfFile

        found = NetcdfFile(path)
        return TensorFile(
            names=found.names,
            load=found.load,
            named=True,
            fill=found.fill,
            attributes=found.description,
        )
    if kind in _PICKLES:
        raise UnsupportedError(
            f"{path} is a pickle, which runs code when it is read; save its tensors as "
            ".safetensors or .npz"
        )
    raise UnsupportedError(
        f"{path} ends in {kind or 'nothing'!r}, known are .npy, .npz, .safetensors and .nc; "
        "for raw binary give --dtype and --shape"
    )


def write_tensors(
    file: BinaryIO,
    path: Path,
    tensors: Mapping[str, Tensor],
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write all tensors in the kind that the ending of `path` names."""
    kind = path.suffix.lower()
    if kind == ".nc":
        from encke.cli import netcdf_files

        netcdf_files.write(file, tensors, attributes)
        return
    if kind == ".safetensors":
        file.write(_safetensors("torch").save({n: t.contiguous() for n, t in tensors.items()}))
    elif kind == ".npz":
        _write_npz(file, tensors)
    else:
        (tensor,) = tensors.values()
        if kind == ".npy":
            _write_npy(file, tensor)
        else:
            import torch

            flat = tensor.contiguous().view(-1)
            file.write(flat.view(torch.uint8).numpy().data if flat.numel() else b"")


def check_writable(path: Path, dtypes: Mapping[str, torch.dtype]) -> None:
    """Raise, before anything is decoded, if `path` cannot hold such tensors."""
    import torch

    kind = path.suffix.lower()
    if kind in _PICKLES:
        raise UnsupportedError(f"{path} would be a pickle; write .safetensors or .npz instead")
    if kind not in _NAMED and len(dtypes) != 1:
        raise UnsupportedError(
            f"{path} holds one tensor, the input has {len(dtypes)}; "
            "give -o a name that ends in .npz or .safetensors, or in .nc"
        )
    if kind in (".npy", ".npz", ".nc"):
        for name, dtype in dtypes.items():
            if dtype == torch.bfloat16:
                raise UnsupportedError(
                    f"tensor {name!r} is bfloat16, which {kind} cannot hold; "
                    f"give -o {path.with_suffix('.safetensors')}"
                )
    if kind == ".safetensors":
        _safetensors("torch")


def _open_raw(path: Path, dtype: str | None, shape: str | None) -> TensorFile:
    if dtype is None or shape is None:
        missing = "--dtype" if dtype is None else "--shape"
        raise UnsupportedError(
            f"{path} is read as raw binary, for which {missing} is missing; "
            "give both, as in --dtype f32 --shape 110,64,128"
        )
    if dtype not in DTYPE_NAMES:
        raise UnsupportedError(f"--dtype is {dtype!r}, allowed are {', '.join(DTYPE_NAMES)}")
    try:
        extents = tuple(
            int(part) for part in shape.replace("x", ",").split(",") if part.strip()
        )
    except ValueError:
        extents = (-1,)
    if any(extent < 0 for extent in extents):
        raise UnsupportedError(f"--shape is {shape!r}, allowed are sizes such as 110,64,128")

    def load(_: str) -> Tensor:
        import torch

        kind: torch.dtype = getattr(torch, DTYPE_NAMES[dtype])
        expected = math.prod(extents) * kind.itemsize
        found = path.stat().st_size
        if found != expected:
            raise UnsupportedError(
                f"{path} has {found:,} bytes, {dtype} of shape {shape} takes {expected:,}; "
                "correct --dtype or --shape"
            )
        if expected == 0:
            return torch.empty(extents, dtype=kind)
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=kind).view(extents)

    return TensorFile(names=(path.stem,), load=load, named=False)


def _open_safetensors(path: Path) -> TensorFile:
    library = _safetensors()
    try:
        file = library.safe_open(path, framework="pt")
    except library.SafetensorError as error:
        raise UnsupportedError(f"{path} is not a readable safetensors file: {error}") from None

    def load(name: str) -> Tensor:
        tensor: Tensor = file.get_tensor(name)
        return tensor

    return TensorFile(names=tuple(file.keys()), load=load, named=True)


def _safetensors(part: str = "") -> Any:
    import importlib

    try:
        return importlib.import_module("safetensors" + ("." + part if part else ""))
    except ImportError:
        raise UnsupportedError(
            "the package 'safetensors' is not installed; "
            "pip install 'encke[files]' adds it, or use .npz"
        ) from None


def _load_numpy(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UnsupportedError(f"{path} is not a readable numpy file: {error}") from None


def _member(arrays: Any, name: str, path: Path) -> Any:
    try:
        return arrays[name]
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UnsupportedError(f"{path}: array {name!r} cannot be read: {error}") from None


def _from_array(array: Any, path: Path) -> Tensor:
    import torch

    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except TypeError:
        raise UnsupportedError(
            f"{path} holds {array.dtype}, allowed are {', '.join(DTYPE_NAMES.values())}"
        ) from None


def _write_npy(file: Any, tensor: Tensor) -> None:
    import numpy as np

    np.lib.format.write_array(file, tensor.numpy(), allow_pickle=False)


def _write_npz(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    # Not numpy.savez, whose own arguments' names ("file") no array could then have.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_npy(member, tensor)
