"""Sources read the files of the real formats, and say what is missing or broken."""

from __future__ import annotations

import gzip
import io
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from encke.errors import EnckeError, UnsupportedError
from encke.study import data, zoo
from encke.study.data import climate, fashion_mnist
from encke.study.zoo.adjacency import normalised_adjacency

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENCKE_DATA", raising=False)
    monkeypatch.setattr(fashion_mnist, "_SYSTEM", ())


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_fashion_mnist(folder: Path, ending: str = ".gz") -> dict[str, np.ndarray]:
    arrays = {}
    for prefix, count in (("train", 12), ("t10k", 5)):
        arrays[f"{prefix}-images-idx3"] = RNG.integers(256, size=(count, 28, 28))
        arrays[f"{prefix}-labels-idx1"] = RNG.integers(10, size=count)
    for name, array in arrays.items():
        write_idx(folder / f"{name}-ubyte{ending}", array)
    return arrays


def write_cifar_binary(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    images = RNG.integers(256, size=(20, 3, 32, 32), dtype=np.uint8)
    labels = RNG.integers(10, size=20, dtype=np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(20, -1)], axis=1)
    for part in range(4):
        stop = 4 * part + 4
        records[stop - 4 : stop].tofile(folder / f"data_batch_{part + 1}.bin")
    records[16:].tofile(folder / "test_batch.bin")
    return images, labels


def picture(colour: tuple[int, int, int], kind: str, size: int = 32) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(file, kind)
    return file.getvalue()


COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250), (120, 120, 120)]


def write_cifar_jpeg(folder: Path, **changed: np.ndarray) -> None:
    arrays: dict[str, Any] = {"classes": np.array(["red", "green", "blue", "gray"])}
    for split in ("train", "test"):
        files = [picture(colour, "JPEG") for colour in COLOURS]
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{split}_labels"] = np.arange(4, dtype=np.uint8)
    np.savez(folder / "cifar10_jpeg.npz", **{**arrays, **changed})


def write_graphs(folder: Path) -> None:
    edges = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]], dtype=np.int32)
    features = np.array([[0, 2], [1, 0], [1, 1], [4, 3]], dtype=np.int32)
    np.savez(
        folder / "graph_cora.npz",
        edges=edges,
        features=features,
        labels=np.array([0, 1, 2, 1, 0], dtype=np.uint8),
        test_index=np.array([3, 4]),
        train_count=np.array(2),
    )
    traffic = np.array([100.0, 7.0, 5000.0, 30.0, 900.0])
    np.savez(folder / "graph_squirrel.npz", edges=edges, features=features, target=traffic)


def write_climate(folder: Path) -> dict[str, np.ndarray]:
    fields = {
        name: RNG.normal(280, 10, size=(11, 8, 16)).astype(np.float32)
        for name in ("T_1", "T_2", "T_3", "TS_b")
    }
    np.savez(folder / "climate.npz", **fields, uvt_U=np.zeros((1, 2, 8, 16), np.float32))
    return fields


def write_jets(folder: Path) -> None:
    energies = RNG.exponential(5, size=(20, 16, 16)).astype(np.float32)
    energies[RNG.random(energies.shape) < 0.9] = 0
    np.savez(folder / "jets.npz", top=energies[:10] + 0, qcd=energies[10:])


def test_digits_are_all_there_and_can_be_learnt_from() -> None:
    source = data.load("digits")
    assert source.count("train") + source.count("test") == 1797
    (images,), target = next(source.batches("train", 64, 0))
    assert images.shape == (64, 1, 8, 8)
    assert abs(float(images.mean())) < 0.1
    assert zoo.build("mlp")(images).shape == (64, len(source.classes))
    assert 0 <= int(target.min()) <= int(target.max()) <= 9


@pytest.mark.parametrize("ending", [".gz", ""])
@pytest.mark.parametrize("subfolder", [".", "fashion-mnist", "FashionMNIST/raw"])
def test_fashion_mnist_is_read_from_idx_files(
    tmp_path: Path, ending: str, subfolder: str
) -> None:
    folder = tmp_path / subfolder
    folder.mkdir(parents=True, exist_ok=True)
    arrays = write_fashion_mnist(folder, ending)
    source = data.load("fashion_mnist", root=tmp_path)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        stored = source.tensors(split)
        assert stored["inputs"].dtype == torch.uint8
        assert np.array_equal(stored["inputs"][:, 0].numpy(), arrays[f"{prefix}-images-idx3"])
        assert np.array_equal(stored["target"].numpy(), arrays[f"{prefix}-labels-idx1"])
    (images,), _ = next(source.batches("train", 4, 0, augment=True))
    assert images.shape == (4, 1, 28, 28)


def test_fashion_mnist_is_found_where_the_system_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion_mnist(tmp_path)
    monkeypatch.setattr(fashion_mnist, "_SYSTEM", (tmp_path,))
    assert data.load("fashion_mnist").count("train") == 12


def test_cifar_is_read_from_its_binary_batches(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images, labels = write_cifar_binary(folder)
    source = data.load("cifar10", root=tmp_path)
    assert np.array_equal(source.tensors("train")["inputs"].numpy(), images[:16])
    assert np.array_equal(source.tensors("test")["inputs"].numpy(), images[16:])
    assert np.array_equal(source.tensors("train")["target"].numpy(), labels[:16])
    assert source.classes[3] == "cat"
    (batch,), _ = next(source.batches("train", 4, 0, augment=True))
    assert batch.shape == (4, 3, 32, 32)
    assert batch.dtype == torch.float32


def check_colours(source: data.Source) -> None:
    for split in ("train", "test"):
        stored = source.tensors(split)
        assert stored["inputs"].shape[1:] == (3, 32, 32)
        for image, label in zip(stored["inputs"], stored["target"].tolist(), strict=True):
            name = source.classes[label]
            wanted = COLOURS[["red", "green", "blue", "gray"].index(name)]
            error = image.float() - torch.tensor(wanted).float()[:, None, None]
            assert error.abs().max() <= 4  # JPEG is lossy


def test_cifar_is_read_from_jpegs_in_one_file(tmp_path: Path) -> None:
    write_cifar_jpeg(tmp_path)
    source = data.load("cifar10", root=tmp_path)
    check_colours(source)
    assert source.tensors("train")["target"].tolist() == [0, 1, 2, 3]


def test_decoded_images_are_kept_until_the_file_changes(tmp_path: Path) -> None:
    write_cifar_jpeg(tmp_path)
    first, again = (data.load("cifar10", root=tmp_path).tensors("train") for _ in range(2))
    assert first["inputs"] is again["inputs"]
    write_cifar_jpeg(tmp_path, train_labels=np.array([3, 2, 1, 0], np.uint8))
    assert data.load("cifar10", root=tmp_path).tensors("train")["target"].tolist() == [
        3,
        2,
        1,
        0,
    ]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_cifar_is_read_from_folders_of_images(tmp_path: Path, kind: str) -> None:
    for split in ("train", "test"):
        for name, colour in zip(("red", "green", "blue", "gray"), COLOURS, strict=True):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(2):
                (folder / f"{number}.{kind.lower()}").write_bytes(picture(colour, kind))
    source = data.load("cifar10", root=tmp_path)
    assert source.classes == ("blue", "gray", "green", "red")
    assert source.count("train") == 8
    check_colours(source)
    (tmp_path / "test" / "violet").mkdir()
    with pytest.raises(data.BrokenDataError, match="violet"):
        data.load("cifar10", root=tmp_path)


def test_text_keeps_every_character_and_holds_out_the_end(tmp_path: Path) -> None:
    content = "Where there is a will,\r\nthere is a wäy. €\n" * 20
    (tmp_path / "tinyshakespeare.txt").write_bytes(content.encode())
    source = data.load("text", root=tmp_path, block_size=8, test_share=0.25)
    assert isinstance(source, data.Text)
    assert source.classes == tuple(sorted(set(content)))
    assert source.vocab == len(set(content))
    assert source.decode(source.train) + source.decode(source.test) == content
    assert len(source.test) == len(content) // 4
    file = tmp_path / "tinyshakespeare.txt"
    assert torch.equal(
        data.load("text", file=file, test_share=0.25, block_size=8).train, source.train
    )


def test_climate_pairs_a_year_with_a_later_one(tmp_path: Path) -> None:
    fields = write_climate(tmp_path)
    source = data.load("climate", root=tmp_path, variable="T", lead=2)
    train, test = source.tensors("train"), source.tensors("test")
    assert np.array_equal(test["inputs"][:, 0].numpy(), fields["T_3"][:-2])
    assert np.array_equal(test["target"][:, 0].numpy(), fields["T_3"][2:])
    assert np.array_equal(train["inputs"][9:, 0].numpy(), fields["T_2"][:-2])
    (inputs,), target = next(source.batches("train", 18))
    assert inputs.shape == target.shape == (18, 1, 8, 16)
    assert abs(float(inputs.std()) - 1) < 0.05
    alone = data.load("climate", root=tmp_path, variable="TS")
    assert (alone.count("train"), alone.count("test")) == (8, 1)
    with pytest.raises(UnsupportedError, match=r"'Q', there are T, TS"):
        data.load("climate", root=tmp_path, variable="Q")
    with pytest.raises(data.BrokenDataError, match="lead=11"):
        data.load("climate", root=tmp_path, variable="T", lead=11)
    with pytest.raises(UnsupportedError, match="lead is 0"):
        data.load("climate", root=tmp_path, lead=0)
    raw = climate.arrays(root=tmp_path)
    assert np.array_equal(raw["T_1"].numpy(), fields["T_1"])


def test_jets_keep_their_zeros(tmp_path: Path) -> None:
    write_jets(tmp_path)
    source = data.load("jets", root=tmp_path)
    assert (source.count("train"), source.count("test")) == (16, 4)
    stored = source.tensors("train")
    (images,), target = next(source.batches("train", 16))
    assert images.shape == (16, 1, 16, 16)
    assert torch.equal(images == 0, stored["inputs"] == 0)
    assert torch.equal(target, stored["target"])
    assert source.classes == ("qcd", "top")


def test_graphs_are_read_with_their_splits(tmp_path: Path) -> None:
    write_graphs(tmp_path)
    cora = data.load("cora", root=tmp_path)
    assert isinstance(cora, data.Graph)
    assert cora.tensors("train")["nodes"].tolist() == [0, 1]
    assert cora.tensors("test")["nodes"].tolist() == [3, 4]
    wanted = torch.zeros(5, 4)
    wanted[0, 2] = wanted[4, 3] = 1.0
    wanted[1, :2] = 0.5
    assert torch.equal(cora.features, wanted)
    ((_, adjacency), _) = next(cora.batches("train", 100))
    expected = normalised_adjacency(cora.edges, 5, kind="symmetric")
    assert torch.equal(adjacency.to_dense(), expected.to_dense())

    squirrel = data.load("squirrel", root=tmp_path, kind="mean")
    assert squirrel.tensors("train")["target"].tolist() == [2, 0, 4, 1, 3]
    nodes = [squirrel.tensors(split)["nodes"] for split in ("train", "test")]
    assert sorted(torch.cat(nodes).tolist()) == list(range(5))
    batch = next(squirrel.batches("train", 100))
    model = zoo.model("graphsage", features=4, classes=5)
    assert model.loss_of(model.build(seed=0), batch).isfinite()
    with pytest.raises(UnsupportedError, match="'median'"):
        data.load("cora", root=tmp_path, kind="median")


NEEDING_FILES = ["fashion_mnist", "cifar10", "text", "climate", "jets", "cora", "squirrel"]


@pytest.mark.parametrize("name", NEEDING_FILES)
def test_missing_data_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(data.MissingDataError, match=r"root=.*ENCKE_DATA") as nowhere:
        data.load(name)
    assert isinstance(nowhere.value, EnckeError)
    assert isinstance(nowhere.value, FileNotFoundError)
    monkeypatch.setenv("ENCKE_DATA", str(tmp_path / "from-variable"))
    with pytest.raises(data.MissingDataError, match="from-variable"):
        data.load(name)
    with pytest.raises(data.MissingDataError, match="from-argument") as given:
        data.load(name, root=tmp_path / "from-argument")
    assert "from-variable" not in str(given.value)


def test_the_argument_goes_before_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("argument", "variable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tinyshakespeare.txt").write_text(f"{name} " * 9)
    monkeypatch.setenv("ENCKE_DATA", str(tmp_path / "variable"))
    by_variable = data.load("text", block_size=4)
    by_argument = data.load("text", block_size=4, root=tmp_path / "argument")
    assert by_variable.decode(by_variable.train).startswith("variable")
    assert by_argument.decode(by_argument.train).startswith("argument")


@pytest.mark.parametrize(
    ("name", "module", "distribution"),
    [("digits", "sklearn", "scikit-learn"), ("cifar10", "PIL.Image", "Pillow")],
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, distribution: str
) -> None:
    write_cifar_jpeg(tmp_path)
    for loaded in [module, *(m for m in sys.modules if m.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, loaded, None)
    with pytest.raises(UnsupportedError, match=rf"{distribution}.*encke\[bench\]"):
        data.load(name, root=tmp_path)


def cut_idx(folder: Path) -> None:
    write_fashion_mnist(folder)
    write_idx(folder / "train-images-idx3-ubyte", np.zeros((12, 28, 28)))
    whole = (folder / "train-images-idx3-ubyte").read_bytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole[:-1]))


def cut_gzip(folder: Path) -> None:
    write_fashion_mnist(folder)
    file = folder / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])


def not_idx(folder: Path) -> None:
    write_fashion_mnist(folder)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"labels"))


def idx_header_cut(folder: Path) -> None:
    write_fashion_mnist(folder)
    content = gzip.compress(bytes((0, 0, 8, 3, 0, 0)))
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)


def labels_of_another_set(folder: Path) -> None:
    write_fashion_mnist(folder)
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.zeros(11))


def cut_records(folder: Path) -> None:
    write_cifar_binary(folder)
    file = folder / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1])


def label_ten(folder: Path) -> None:
    write_cifar_binary(folder)
    file = folder / "test_batch.bin"
    file.write_bytes(bytes([10]) + file.read_bytes()[1:])


def descending_offsets(folder: Path) -> None:
    write_cifar_jpeg(folder, test_offsets=np.array([0, 9, 5, 7, 8]))


def label_beyond_classes(folder: Path) -> None:
    write_cifar_jpeg(folder, train_labels=np.array([0, 1, 2, 4]))


def not_a_jpeg(folder: Path) -> None:
    write_cifar_jpeg(
        folder, test_jpeg=np.zeros(40, np.uint8), test_offsets=np.arange(0, 50, 10)
    )


def unequal_sizes(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split / "red").mkdir(parents=True)
        for size in (32, 33):
            file = folder / split / "red" / f"{size}.png"
            file.write_bytes(picture(COLOURS[0], "PNG", size))


def empty_class_folders(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split / "red").mkdir(parents=True)


def not_utf8(folder: Path) -> None:
    (folder / "tinyshakespeare.txt").write_bytes(b"\xff\xfe\xfa" * 99)


def not_npz(folder: Path) -> None:
    (folder / "jets.npz").write_bytes(b"PK\x03\x04 and no more")


def one_array_missing(folder: Path) -> None:
    np.savez(folder / "jets.npz", top=np.zeros((3, 4, 4)))


def jets_of_two_sizes(folder: Path) -> None:
    np.savez(folder / "jets.npz", top=np.zeros((3, 4, 4)), qcd=np.zeros((3, 5, 5)))


def negative_energies(folder: Path) -> None:
    np.savez(folder / "jets.npz", top=np.zeros((3, 4, 4)), qcd=-np.ones((3, 4, 4)))


def change_cora(folder: Path, **changed: np.ndarray) -> None:
    write_graphs(folder)
    with np.load(folder / "graph_cora.npz") as file:
        arrays = {**dict(file), **changed}
    np.savez(folder / "graph_cora.npz", **arrays)


def edge_to_nowhere(folder: Path) -> None:
    change_cora(folder, edges=np.array([[0, 5]]))


def edges_of_three(folder: Path) -> None:
    change_cora(folder, edges=np.zeros((4, 3), np.int64))


def features_of_floats(folder: Path) -> None:
    change_cora(folder, features=np.zeros((4, 2)))


def held_out_node_nowhere(folder: Path) -> None:
    change_cora(folder, test_index=np.array([5]))


def pickled(folder: Path) -> None:
    change_cora(folder, labels=np.array([{}], dtype=object))


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("fashion_mnist", cut_idx, "header says 9408"),
        ("fashion_mnist", cut_gzip, "cannot be unzipped"),
        ("fashion_mnist", not_idx, "does not begin like an idx file"),
        ("fashion_mnist", idx_header_cut, "ends within its header"),
        ("fashion_mnist", labels_of_another_set, r"\(11,\)"),
        ("cifar10", cut_records, "multiple of 3073"),
        ("cifar10", label_ten, "label 10"),
        ("cifar10", descending_offsets, "test_offsets must ascend"),
        ("cifar10", label_beyond_classes, "beyond its 4 classes"),
        ("cifar10", not_a_jpeg, "image 0 of test"),
        ("cifar10", unequal_sizes, r"\(33, 33, 3\)"),
        ("cifar10", empty_class_folders, "no images"),
        ("text", not_utf8, "not UTF-8"),
        ("jets", not_npz, "cannot be read as .npz"),
        ("jets", one_array_missing, "has no qcd, only the arrays top"),
        ("jets", jets_of_two_sizes, r"\(3, 5, 5\)"),
        ("jets", negative_energies, "negative"),
        ("cora", edge_to_nowhere, "edges has numbers outside"),
        ("cora", edges_of_three, r"\(4, 3\)"),
        ("cora", features_of_floats, "features is float64"),
        ("cora", held_out_node_nowhere, "beyond the 5"),
        ("cora", pickled, "cannot be read as .npz"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(tmp_path)
    with pytest.raises(data.BrokenDataError, match=message):
        data.load(name, root=tmp_path)


@pytest.mark.parametrize(
    ("name", "write", "absent"),
    [
        ("fashion_mnist", write_fashion_mnist, "t10k-labels-idx1-ubyte.gz"),
        ("cifar10", write_cifar_binary, "test_batch.bin"),
    ],
)
def test_half_a_data_set_is_missing_data(
    tmp_path: Path, name: str, write: Callable[[Path], object], absent: str
) -> None:
    write(tmp_path)
    (tmp_path / absent).unlink()
    with pytest.raises(data.MissingDataError, match="Looked for"):
        data.load(name, root=tmp_path)
