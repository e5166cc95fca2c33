"""Fill values on the command line, what is proposed as one, and NetCDF files."""

from __future__ import annotations

import json
from pathlib import Path

import netCDF4
import numpy as np
import pytest

from encke.cli import main
from encke.codec import archive
from encke.errors import CorruptStreamError

FILL = np.float32(1e36)


@pytest.fixture
def holed(tmp_path: Path, field: np.ndarray) -> Path:
    field = field + 280
    field[3:12, 5:20] = FILL
    field[20, 2:30] = -9999
    np.save(tmp_path / "holed.npy", field)
    return tmp_path / "holed.npy"


@pytest.fixture
def netcdf(tmp_path: Path, field: np.ndarray) -> Path:
    path = tmp_path / "ocean.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.title, file.version = "a made ocean", np.int16(3)
        file.createDimension("time", None)
        file.createDimension("lat", 24)
        file.createDimension("lon", 40)
        file.createDimension("letters", 4)
        sst = file.createVariable("sst", "f4", ("time", "lat", "lon"), fill_value=FILL)
        sst.units, sst.missing_value = "K", np.array([-9999, 1e20], dtype="f4")
        values = np.stack([field + 280, field + 281])
        values[:, 3:12, 5:20], values[:, 20, 2:9], values[0, 0, 0] = FILL, -9999, 1e20
        sst[:] = values
        lat = file.createVariable("lat", "f8", ("lat",), endian="big")
        lat[:] = np.linspace(-90, 90, 24)
        count = file.createVariable("count", "u2", ("lon",))
        count[:] = np.arange(40) + 65000
        code = file.createVariable("code", "S1", ("letters",))
        code[:] = np.array([b"a", b"b", b"c", b"d"])
        words = file.createVariable("words", str, ("letters",))
        words[:] = np.array(["sea", "Land", "Ø", ""], dtype=object)
        inner = file.createGroup("deep")
        inner.depth = 12.5
        inner.createVariable("flag", "i1", ("lat",))[:] = np.arange(24)
    return path


def raw(path: Path) -> dict[str, np.ndarray]:
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        found = {name: v[...] for name, v in file.variables.items()}
        return found | {"deep/flag": file["deep/flag"][...]}


def test_named_fill_values_come_back_and_leave_the_range(holed: Path) -> None:
    flags = ["--range", "1e-3", "--fill", "1e36", "--fill", "-9999", "--verify"]
    assert main(["compress", str(holed), *flags]) == 0
    back = holed.with_name("back.npy")
    assert main(["decompress", str(holed.with_suffix(".encke")), "-o", str(back)]) == 0
    x, y = np.load(holed), np.load(back)
    hole = (x == FILL) | (x == -9999)
    assert np.array_equal(x[hole], y[hole])
    valid = x[~hole].astype(np.float64)
    assert np.abs(y[~hole] - valid).max() <= 1e-3 * (valid.max() - valid.min()) * (1 + 1e-6)


@pytest.mark.parametrize("command", ["info", "bench"])
def test_fill_values_are_proposed_not_assumed(
    holed: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--repeat", "1", "--codecs", "fixed"] if command == "bench" else []
    assert main([command, str(holed), "--json", *more]) == 0
    said = capsys.readouterr()
    (tensor,) = json.loads(said.out)["tensors"]
    assert tensor["proposed_fill"] == [1e36, -9999]
    assert tensor["fill"] == []
    assert "--fill 1e+36" in said.err
    if command == "bench":
        named = ["--fill", "1e36", "--fill", "-9999"]
        assert main([command, str(holed), "--json", *more, *named]) == 0
        (tensor,) = json.loads(capsys.readouterr().out)["tensors"]
        assert tensor["proposed_fill"] == []
        assert tensor["codecs"][0]["error_over_bound"] <= 1


def test_a_table_shows_what_a_file_holds(
    holed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(holed)]) == 0
    assert "proposed" in capsys.readouterr().out


def test_a_netcdf_file_comes_back_with_all_it_says(netcdf: Path) -> None:
    packed, back = netcdf.with_suffix(".encke"), netcdf.with_name("back.nc")
    assert main(["compress", str(netcdf), "--range", "1e-3", "--verify"]) == 0
    assert main(["decompress", str(packed), "-o", str(back)]) == 0
    before, after = raw(netcdf), raw(back)
    assert before.keys() == after.keys()
    for name in before.keys() - {"sst", "lat"}:
        assert np.array_equal(before[name], after[name])
        assert before[name].dtype == after[name].dtype
    x, y = before["sst"], after["sst"]
    hole = (x == FILL) | (x == -9999) | (x == np.float32(1e20))
    assert np.array_equal(x[hole], y[hole])
    extent = float(x[~hole].max()) - float(x[~hole].min())
    assert np.abs(x[~hole].astype(np.float64) - y[~hole]).max() <= 1e-3 * extent * (1 + 1e-6)
    with netCDF4.Dataset(netcdf) as a, netCDF4.Dataset(back) as b:
        assert (b.title, b.version, b.version.dtype) == (a.title, a.version, a.version.dtype)
        assert b.dimensions["time"].isunlimited()
        assert b["sst"].dimensions == a["sst"].dimensions
        assert b["sst"].ncattrs() == a["sst"].ncattrs()
        assert np.array_equal(b["sst"].missing_value, a["sst"].missing_value)
        assert b["deep"].depth == 12.5


def test_netcdf_is_the_default_for_what_came_from_one(
    netcdf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = netcdf.with_suffix(".encke")
    main(["compress", str(netcdf), "--abs", "0.01"])
    capsys.readouterr()
    assert main(["info", str(packed), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["attributes"]["groups"][""]["attributes"]["title"] == "a made ocean"
    assert {t["name"]: t["holes"] for t in said["tensors"]}["sst"]
    netcdf.unlink()
    assert main(["decompress", str(packed)]) == 0
    assert netcdf.exists()
    assert main(["decompress", str(packed), "-o", str(netcdf.with_suffix(".npz"))]) == 0


def test_other_tensors_become_netcdf_too(npz: Path) -> None:
    main(["compress", str(npz), "--lossless"])
    target = npz.with_suffix(".nc")
    assert main(["decompress", str(npz.with_suffix(".encke")), "-o", str(target)]) == 0
    with netCDF4.Dataset(target) as file, np.load(npz) as arrays:
        for name in arrays.files:
            assert np.array_equal(file[name][...], arrays[name])


def test_what_is_no_netcdf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.nc").write_bytes(b"CDF\x09 is not a version")
    assert main(["compress", str(tmp_path / "wrong.nc"), "--abs", "1"]) != 0


def test_attributes_that_are_cut_or_no_json_are_refused() -> None:
    blob = b"".join(archive.parts({"a": b"stream"}, {"units": "K"}))
    assert archive.attributes_of(blob) == {"units": "K"}
    assert bytes(archive.read(blob)["a"]) == b"stream"
    for wrong in (blob.replace(b'{"units', b'["units'), blob[:30], blob[:-3]):
        with pytest.raises(CorruptStreamError):
            archive.attributes_of(wrong), archive.read(wrong)
    assert archive.attributes_of(b"".join(archive.parts({"a": b"stream"}))) is None
