"""Batches of every kind of source: complete, reproducible, within their split."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from encke.errors import UnsupportedError
from encke.study import data, zoo
from encke.study.data.examples import divide


def image_source(**options: Any) -> data.Examples:
    """Each image has one colour, its own number, and that is its label too."""
    numbers = torch.arange(24, dtype=torch.uint8)
    images = numbers[:, None, None, None].expand(24, 3, 8, 8).contiguous()
    train = data.Split(images[:20], numbers[:20].long())
    test = data.Split(images[20:], numbers[20:].long())
    return data.Examples(name="numbers", train=train, test=test, **options)


def text_source() -> data.Text:
    tokens = torch.arange(100) % 7
    letters = tuple("abcdefg")
    return data.Text(name="t", train=tokens, test=tokens[:31], classes=letters, block_size=6)


def graph_source() -> data.Graph:
    return data.Graph(
        name="ring",
        edges=torch.tensor([[i, (i + 1) % 10] for i in range(10)]),
        features=torch.eye(10),
        target=torch.arange(10) % 3,
        train=torch.arange(6),
        test=torch.arange(6, 9),
        classes=("a", "b", "c"),
    )


SOURCES = {
    "images": lambda: image_source(augmentation=data.crop_and_flip),
    "text": text_source,
    "graph": graph_source,
    "synthetic": lambda: data.load("synthetic", model="mlp", train=20, test=7),
}


def flat(source: data.Source, seed: int | None, **options: Any) -> list[Tensor]:
    batches = source.batches("train", 4, seed, **options)
    return [x.to_dense() for batch in batches for x in (*batch.inputs, batch.target)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", SOURCES)
def test_an_equal_seed_gives_equal_batches_and_another_seed_others(kind: str) -> None:
    source = SOURCES[kind]()
    augment = source.augments()
    torch.manual_seed(1)
    first = flat(source, 3, augment=augment)
    torch.manual_seed(2)  # torch's own generator has no part in it
    assert same(first, flat(source, 3, augment=augment))
    assert not same(first, flat(source, 4, augment=augment))
    assert same(flat(source, None), flat(source, None))


@pytest.mark.parametrize("seed", [None, 0])
def test_a_pass_has_every_example_once(seed: int | None) -> None:
    labels = [batch.target for batch in image_source().batches("train", 8, seed)]
    assert [len(x) for x in labels] == [8, 8, 4]
    assert (torch.cat(labels).tolist() == list(range(20))) == (seed is None)
    assert sorted(torch.cat(labels).tolist()) == list(range(20))


def test_inputs_stay_with_their_targets() -> None:
    for (images,), target in image_source().batches("train", 8, 5):
        assert torch.equal(images[:, 0, 0, 0].long(), target)


def test_drop_last_leaves_out_the_batch_that_is_not_full() -> None:
    sizes = [len(b.target) for b in image_source().batches("train", 8, 0, drop_last=True)]
    assert sizes == [8, 8]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("validation", 4), {}, "'validation', allowed are train, test"),
        (("train", 0), {}, "batch_size is 0"),
        (("train", 4), {"augment": True}, "no augmentation"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    arguments: tuple[str, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        image_source().batches(*arguments, **options)


def test_augmentation_needs_a_seed() -> None:
    with pytest.raises(UnsupportedError, match="needs seed="):
        text_source().batches("train", 4, augment=True)


def test_crops_are_shifts_of_the_image_or_of_its_mirror_image() -> None:
    image = torch.arange(1, 65, dtype=torch.uint8).reshape(1, 1, 8, 8)
    both = [image, image.flip(-1)]
    allowed = set()
    for version in both:
        padded = torch.nn.functional.pad(version, (2, 2, 2, 2))
        for top in range(5):
            for left in range(5):
                cut = padded[0, 0, top : top + 8, left : left + 8]
                allowed.add(tuple(cut.flatten().tolist()))
    moved = data.crop_and_flip(
        image.expand(400, 1, 8, 8), Generator().manual_seed(0), padding=2
    )
    assert moved.dtype == torch.uint8
    seen = {tuple(one.flatten().tolist()) for one in moved}
    assert seen <= allowed
    assert len(seen) == len(allowed)  # 400 draws of 50 shifts: all come up


def test_crops_move_all_channels_alike() -> None:
    images = torch.rand(5, 1, 8, 8).expand(5, 3, 8, 8)
    moved = data.crop_and_flip(images, Generator().manual_seed(0))
    assert torch.equal(moved[:, 0], moved[:, 1])
    assert torch.equal(moved[:, 0], moved[:, 2])


def test_standardised_training_data_has_mean_zero_and_deviation_one() -> None:
    generator = Generator().manual_seed(0)
    images = torch.randint(256, (500, 3, 4, 4), generator=generator, dtype=torch.uint8)
    images[:, 1] //= 4
    prepared = data.Standardise.of(images)(images)
    torch.testing.assert_close(prepared.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    deviation = prepared.std((0, 2, 3), correction=0)
    torch.testing.assert_close(deviation, torch.ones(3), atol=1e-4, rtol=0)


def test_head_keeps_the_first_examples_and_the_preparation() -> None:
    source = image_source(prepare=lambda x: x.float() / 2)
    short = source.head(train=5, test=2)
    assert (short.count("train"), short.count("test")) == (5, 2)
    ((images,), target), *more = short.batches("train", 5)
    assert more == []
    assert torch.equal(images[:, 0, 0, 0], target / 2)
    assert source.head(train=5).count("test") == 4


def test_divided_examples_are_in_one_split_each() -> None:
    numbers = torch.arange(50)
    train, test = divide(numbers * 2, numbers, test_share=0.2)
    assert (len(train.target), len(test.target)) == (40, 10)
    assert sorted([*train.target.tolist(), *test.target.tolist()]) == list(range(50))
    assert torch.equal(train.inputs, 2 * train.target)
    with pytest.raises(UnsupportedError, match="test_share is 1"):
        divide(numbers, numbers, test_share=1)


def test_as_many_targets_as_inputs_are_needed() -> None:
    good, bad = (torch.zeros(4), torch.zeros(4)), (torch.zeros(4), torch.zeros(3))
    with pytest.raises(UnsupportedError, match="test has 4 inputs and 3 targets"):
        data.Examples(name="x", train=data.Split(*good), test=data.Split(*bad))


@pytest.mark.parametrize("augment", [False, True])
def test_text_targets_are_the_characters_that_follow(augment: bool) -> None:
    source = text_source()
    assert source.count("train") == 16
    for (window,), target in source.batches("train", 5, 0, augment=augment):
        assert window.shape == target.shape
        assert torch.equal(target, (window + 1) % 7)
    assert torch.equal(source.encode(source.decode(source.train)), source.train)
    with pytest.raises(UnsupportedError, match="'z'"):
        source.encode("az")


def test_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"block_size is 31.*31 characters"):
        data.Text(
            name="t",
            train=torch.zeros(99),
            test=torch.zeros(31),
            classes=("a",),
            block_size=31,
        )


def test_graph_batches_show_the_whole_graph_and_the_labels_of_their_nodes() -> None:
    source = graph_source()
    seen = []
    for (features, adjacency), target in source.batches("train", 4, 0):
        assert features.shape == (10, 10)
        assert adjacency.shape == (10, 10)
        nodes = (target >= 0).nonzero().flatten()
        assert torch.equal(target[nodes], source.target[nodes])
        seen += nodes.tolist()
    assert sorted(seen) == list(range(6))
    ((_, whole),) = source.batches("test", 1000)
    assert (whole >= 0).nonzero().flatten().tolist() == [6, 7, 8]


def test_synthetic_batches_fit_their_model() -> None:
    model = zoo.model("resnet_cifar", depth=8, width=4, classes=3)
    source = data.load("synthetic", model=model, train=5, test=4)
    network = model.build(seed=0)
    losses = [model.loss_of(network, batch) for batch in source.batches("train", 3, 0)]
    assert len(losses) == 2
    assert torch.stack(losses).isfinite().all()
    train, test = (source.tensors(split)["target"] for split in ("train", "test"))
    assert (len(train), len(test)) == (5, 4)
    with pytest.raises(UnsupportedError, match="depth"):
        data.load("synthetic", model=model, depth=8)
    with pytest.raises(UnsupportedError, match="train is 0"):
        data.load("synthetic", model="mlp", train=0)


def test_a_source_of_ones_own_is_loaded_by_name(monkeypatch: Any) -> None:
    monkeypatch.setattr(data.registry, "_LOADERS", dict(data.registry._LOADERS))
    asked = []

    def load_numbers(*, root: str | None = None, gray: bool = False) -> data.Examples:
        asked.append((root, gray))
        return image_source()

    data.register("numbers", load_numbers)
    assert data.load("numbers", root="here", gray=True).count("train") == 20
    assert asked == [("here", True)]
    assert "numbers" in data.names()
    with pytest.raises(UnsupportedError, match="'numbers' already"):
        data.register("numbers", load_numbers)
    with pytest.raises(UnsupportedError, match=r"grey.*gray"):
        data.load("numbers", grey=True)


def test_an_unknown_source_lists_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match=r"'imagenet'.*digits.*cifar10.*synthetic"):
        data.load("imagenet")


def test_importing_study_imports_no_optional_package() -> None:
    program = (
        "import sys, encke.study.data, encke.study.zoo\n"
        "print(*{'sklearn', 'PIL', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
