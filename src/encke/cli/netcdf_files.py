"""NetCDF files: their variables as tensors, everything else as text that JSON can hold.

Values are taken as they are in the file, neither scaled nor masked. What torch has no dtype
for travels under another one of the same size; texts of any length stay with the text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from encke.errors import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

KIND = "netCDF"
#: numpy's dtypes that travel as another.
_TRAVEL = {"S1": "u1", "u2": "i2", "u4": "i4", "u8": "i8"}


class NetcdfFile:
    """The variables of one file, those of groups named with their path."""

    def __init__(self, path: Path) -> None:
        library = _library()
        try:
            self._file = library.Dataset(path, "r")
        except OSError as error:
            raise UnsupportedError(f"{path} is not a readable NetCDF file: {error}") from None
        self._file.set_auto_maskandscale(False)
        self._path = path
        self._variables: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        self.description = {"kind": KIND, "model": self._file.data_model, "groups": groups}
        self._walk("", self._file, groups)

    def _walk(self, prefix: str, group: Any, groups: dict[str, Any]) -> None:
        variables: dict[str, Any] = {}
        groups[prefix] = {
            "dimensions": {
                name: None if d.isunlimited() else len(d)
                for name, d in group.dimensions.items()
            },
            "attributes": _attributes(group),
            "variables": variables,
        }
        for name, variable in group.variables.items():
            facts = {
                "dimensions": list(variable.dimensions),
                "attributes": _attributes(variable),
            }
            if variable.dtype is str:
                facts |= {"dtype": "str", "text": variable[...].tolist()}
            elif isinstance(variable.datatype, _library().VLType | _library().CompoundType):
                raise UnsupportedError(
                    f"{self._path}: variable {name!r} has a type that no tensor has"
                )
            else:
                facts["dtype"] = variable.dtype.newbyteorder("=").str[1:]
                self._variables[prefix + name] = variable
            variables[name] = facts
        for name, inner in group.groups.items():
            self._walk(f"{prefix}{name}/", inner, groups)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._variables)

    def load(self, name: str) -> Tensor:
        """The values of a variable as they are in the file."""
        import numpy as np
        import torch

        array = np.asarray(self._variables[name][...])
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        other = _TRAVEL.get(array.dtype.str[1:])
        array = np.ascontiguousarray(array).reshape(array.shape)
        return torch.from_numpy(array.view(other) if other else array)

    def fill(self, name: str) -> tuple[float, ...]:
        """What `_FillValue` and `missing_value` say."""
        import numpy as np

        variable = self._variables[name]
        found: list[float] = []
        for key in ("_FillValue", "missing_value"):
            if key in variable.ncattrs() and variable.dtype.kind == "f":
                value = variable.getncattr(key)
                if not isinstance(value, str):
                    found += [float(v) for v in np.atleast_1d(value)]
        return tuple(dict.fromkeys(found))


def is_described(attributes: Mapping[str, Any] | None) -> bool:
    """Whether an archive came from a NetCDF file."""
    return attributes is not None and attributes.get("kind") == KIND


def write(
    file: BinaryIO, tensors: Mapping[str, Tensor], attributes: Mapping[str, Any] | None
) -> None:
    """The tensors as a NetCDF file, with the dimensions and attributes that they had."""
    described: dict[str, Any] = dict(attributes) if is_described(attributes) else {}  # type: ignore[arg-type]
    if not described:
        described = _plain_description(tensors)
    target = _library().Dataset(
        "memory.nc", "w", format=described.get("model", "NETCDF4"), memory=1 << 16
    )
    target.set_auto_maskandscale(False)
    try:
        for prefix, facts in described["groups"].items():
            _write_group(target, prefix, facts, tensors)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        target.close()
        raise UnsupportedError(
            f"the archive's attributes do not describe a NetCDF file: {error!r}"
        ) from None
    file.write(target.close())


def _write_group(
    root: Any, prefix: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    group = root.createGroup(prefix.rstrip("/")) if prefix else root
    for name, size in facts["dimensions"].items():
        group.createDimension(name, size)
    group.setncatts({k: _value(v) for k, v in facts["attributes"].items()})
    for name, own in facts["variables"].items():
        values = {k: _value(v) for k, v in own["attributes"].items()}
        text = own["dtype"] == "str"
        variable = group.createVariable(
            name,
            str if text else own["dtype"],
            own["dimensions"],
            fill_value=values.pop("_FillValue", None),
        )
        variable.set_auto_maskandscale(False)
        variable.setncatts(values)
        if text:
            import numpy as np

            variable[...] = np.array(own["text"], dtype=object)
            continue
        array = tensors[prefix + name].contiguous().numpy()
        if own["dtype"] in _TRAVEL:
            array = array.view(own["dtype"])
        variable[...] = array


def _plain_description(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors that came from elsewhere: a dimension for each extent."""
    extents = sorted({n for x in tensors.values() for n in x.shape})
    variables = {
        name: {
            "dimensions": [f"n{n}" for n in x.shape],
            "attributes": {},
            "dtype": x.numpy().dtype.str[1:],
        }
        for name, x in tensors.items()
    }
    dimensions = {f"n{n}": n for n in extents}
    root = {"dimensions": dimensions, "attributes": {}, "variables": variables}
    return {"groups": {"": root}}


def _attributes(owner: Any) -> dict[str, Any]:
    return {name: _plain(owner.getncattr(name)) for name in owner.ncattrs()}


def _plain(value: Any) -> Any:
    """An attribute as JSON has it: texts as they are, numbers as bytes with their dtype."""
    import numpy as np

    if isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(v, str) for v in value)
    ):
        return value
    array = np.asarray(value)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {
        "dtype": array.dtype.str[1:],
        "shown": np.asarray(value).tolist().__repr__(),
        "bytes": base64.b64encode(array.tobytes()).decode(),
        "scalar": array.ndim == 0,
    }


def _value(plain: Any) -> Any:
    import numpy as np

    if not isinstance(plain, dict):
        return plain
    array = np.frombuffer(base64.b64decode(plain["bytes"]), dtype="<" + plain["dtype"])
    return array[0] if plain["scalar"] else array


def _library() -> Any:
    try:
        import netCDF4
    except ImportError:
        raise UnsupportedError(
            "the package 'netCDF4' is not installed; pip install 'encke[nc]' adds it"
        ) from None
    return netCDF4
