"""Small sets of data that can be learned, without a download."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def digits(size: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten digits of scikit-learn, enlarged to `size`, shuffled."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels))
    images = F.interpolate(images[order], size=size, mode="bilinear", align_corners=False)
    return images.repeat(1, channels, 1, 1), labels[order]


def pictures(count: int, size: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Colour images: a smooth pattern for each class, under noise."""
    labels = torch.randint(classes, (count,))
    patterns = F.interpolate(torch.randn(classes, 3, 6, 6), size=size, mode="bicubic")
    return patterns[labels] + 0.7 * torch.randn(count, 3, size, size), labels


def text(count: int, length: int, vocabulary: int) -> Tensor:
    """Sequences of a Markov chain in which four words can follow each word."""
    after = torch.randint(vocabulary, (vocabulary, 4))
    words = [torch.randint(vocabulary, (count,))]
    for _ in range(length - 1):
        choice = torch.multinomial(torch.tensor([0.7, 0.2, 0.06, 0.04]), count, True)
        words.append(after[words[-1], choice])
    return torch.stack(words, 1)


def communities(nodes: int, features: int, classes: int, degree: int):
    """A graph whose nodes mostly know nodes of their own class: x, edges, labels."""
    labels = torch.randint(classes, (nodes,))
    centres = torch.randn(classes, features)
    x = 0.5 * centres[labels] + torch.randn(nodes, features)
    by_class = labels.argsort()
    place = torch.empty_like(by_class)
    place[by_class] = torch.arange(nodes)
    source = torch.arange(nodes).repeat_interleave(degree)
    near = (place[source] + torch.randint(-200, 200, source.shape)) % nodes
    far = torch.randint(nodes, source.shape)
    target = torch.where(torch.rand(source.shape) < 0.8, by_class[near], far)
    return x, torch.stack([source, target]), labels


def batch(step: int, size: int, *tensors: Tensor) -> list[Tensor]:
    """The rows of step `step`, going through the data again and again."""
    start = step * size % max(len(tensors[0]) - size + 1, 1)
    return [t[start : start + size] for t in tensors]
