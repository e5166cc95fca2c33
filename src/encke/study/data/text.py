"""Text as characters, for language models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from encke.errors import UnsupportedError
from encke.study.data.errors import BrokenDataError
from encke.study.data.locate import folders, missing
from encke.study.data.source import Source, check_split
from encke.study.zoo.batch import Batch

_ADVICE = (
    "Any UTF-8 text does: load('text', file='book.txt'). Tiny Shakespeare is "
    "data/tinyshakespeare/input.txt in github.com/karpathy/char-rnn."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Text(Source):
    """Windows of `block_size` characters, and the same one character later as target.

    Windows do not overlap. With augment=True each begins at a random place of its stretch.
    `classes` is the vocabulary, so a token is a character's number in it.

    >>> tokens = torch.arange(20) % 3
    >>> text = Text(name="abc", train=tokens, test=tokens, classes=("a","b","c"), block_size=4)
    >>> (window,), target = next(text.batches("train", 1))
    >>> text.decode(window[0]), text.decode(target[0])
    ('abca', 'bcab')
    """

    name: str
    train: Tensor
    test: Tensor
    classes: tuple[str, ...]
    block_size: int

    def __post_init__(self) -> None:
        shortest = min(len(self.train), len(self.test))
        if not 1 <= self.block_size < shortest:
            raise UnsupportedError(
                f"block_size is {self.block_size}, the smaller split has {shortest} "
                f"characters; choose 1 to {shortest - 1} or a longer text"
            )

    @property
    def vocab(self) -> int:
        """How many characters there are to choose from: the option of `gpt`."""
        return len(self.classes)

    def _tokens(self, split: str) -> Tensor:
        check_split(split)
        return self.train if split == "train" else self.test

    def count(self, split: str) -> int:
        return (len(self._tokens(split)) - 1) // self.block_size

    def tensors(self, split: str) -> dict[str, Tensor]:
        return {"tokens": self._tokens(split)}

    def augments(self) -> bool:
        return True

    def make_batch(self, split: str, index: Tensor, augment: Generator | None) -> Batch:
        tokens = self._tokens(split)
        start = index * self.block_size
        if augment is not None:
            start = start + torch.randint(self.block_size, start.shape, generator=augment)
            start = start.clamp_max(len(tokens) - self.block_size - 1)
        windows = tokens[start[:, None] + torch.arange(self.block_size + 1)]
        return Batch((windows[:, :-1].contiguous(),), windows[:, 1:].contiguous())

    def encode(self, characters: str) -> Tensor:
        """The tokens of a string."""
        numbers = {character: number for number, character in enumerate(self.classes)}
        unknown = sorted(set(characters) - numbers.keys())
        if unknown:
            raise UnsupportedError(f"characters {unknown} do not occur in the text")
        return torch.tensor([numbers[c] for c in characters], dtype=torch.int64)

    def decode(self, tokens: Tensor) -> str:
        """The string of tokens."""
        return "".join(self.classes[number] for number in tokens.tolist())


def load_text(
    *,
    root: str | Path | None = None,
    file: str | Path = "tinyshakespeare.txt",
    block_size: int = 256,
    test_share: float = 0.1,
) -> Text:
    """The characters of a UTF-8 file; its last tenth is the test split.

    `file` is looked for in the folder, then at just this path.
    """
    if not 0 < test_share < 1:
        raise UnsupportedError(f"test_share is {test_share}, it must lie between 0 and 1")
    candidates = [*(folder / file for folder in folders(root)), Path(file).expanduser()]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise missing("text", candidates, _ADVICE)
    try:
        # Line ends are characters of the text: they stay as they are.
        content = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokenDataError(f"{path} is not UTF-8 text: {error}") from error
    # Code points as numbers: a Python loop over characters takes far longer.
    points = torch.frombuffer(bytearray(content.encode("utf-32-le")), dtype=torch.int32)
    vocabulary, tokens = torch.unique(points, return_inverse=True)
    held = round(test_share * len(tokens))
    return Text(
        name="text",
        train=tokens[: len(tokens) - held],
        test=tokens[len(tokens) - held :],
        classes=tuple(chr(point) for point in vocabulary.tolist()),
        block_size=block_size,
    )
