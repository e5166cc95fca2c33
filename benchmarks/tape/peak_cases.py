"""The networks of peak.py: unchanged models of `transformers`, and the usual image models.

A case is a function of the batch size that gives a model, its optimizer and a function that
computes the loss of the next batch. Data are made up, but can be learnt: tokens follow one
another by a rule with noise, images show the pattern of their class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Case(NamedTuple):
    """model, optimizer, and the loss of the next batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]


def tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    """Sequences in which most tokens follow from the one before."""
    known = min(vocabulary, 512)
    rows = [torch.randint(0, known, (batch,))]
    for _ in range(length - 1):
        noise = torch.randint(0, known, (batch,))
        follow = (rows[-1] * 7 + 13) % known
        rows.append(torch.where(torch.rand(batch) < 0.8, follow, noise))
    return torch.stack(rows, 1)


def pictures(batch: int, size: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Images of a class's stripes, with noise."""
    labels = torch.randint(0, classes, (batch,))
    place = torch.linspace(0, 6.28, size)
    waves = torch.sin(place[None, :] * (1 + labels[:, None]))
    images = waves[:, None, :, None] * waves[:, None, None, :].flip(-1)
    return images.expand(batch, 3, size, size) + 0.5 * torch.randn(batch, 3, size, size), labels


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)


def _language(model: nn.Module, draw: Callable[[], dict[str, Tensor]]) -> Case:
    return Case(model, _adamw(model), lambda: model(**draw()).loss)


def gpt2(batch: int) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6))

    def draw() -> dict[str, Tensor]:
        ids = tokens(batch, 128, 50257)
        return {"input_ids": ids, "labels": ids}

    return _language(model, draw)


def bert(batch: int) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(
        BertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
        )
    )

    def draw() -> dict[str, Tensor]:
        ids = tokens(batch, 128, 30522)
        hidden = torch.rand(ids.shape) < 0.15
        return {
            "input_ids": ids.masked_fill(hidden, 103),
            "labels": ids.masked_fill(~hidden, -100),
        }

    return _language(model, draw)


def llama(batch: int) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6
        )
    )

    def draw() -> dict[str, Tensor]:
        ids = tokens(batch, 128, 32000)
        return {"input_ids": ids, "labels": ids}

    return _language(model, draw)


def t5(batch: int) -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(
            d_model=384, d_ff=1024, d_kv=64, num_layers=4, num_heads=6, decoder_start_token_id=0
        )
    )

    def draw() -> dict[str, Tensor]:
        ids = tokens(batch, 96, 32128)
        return {"input_ids": ids, "labels": ids.flip(1)}

    return _language(model, draw)


def mixtral(batch: int) -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    model = MixtralForCausalLM(
        MixtralConfig(
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            vocab_size=32000,
        )
    )

    def draw() -> dict[str, Tensor]:
        ids = tokens(batch, 128, 32000)
        return {"input_ids": ids, "labels": ids}

    return _language(model, draw)


def _pictured(model: nn.Module, batch: int, size: int, *, adam: bool) -> Case:
    def draw() -> Tensor:
        images, labels = pictures(batch, size)
        out = model(images)
        return F.cross_entropy(getattr(out, "logits", out), labels)

    return Case(model, _adamw(model) if adam else _sgd(model), draw)


def vit(batch: int) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
        image_size=128,
        patch_size=8,
        num_labels=10,
    )
    return _pictured(ViTForImageClassification(config), batch, 128, adam=True)


def convnext(batch: int) -> Case:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        depths=[2, 2, 4, 2], hidden_sizes=[48, 96, 192, 384], image_size=128, num_labels=10
    )
    return _pictured(ConvNextForImageClassification(config), batch, 128, adam=True)


def swin(batch: int) -> Case:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=128,
        patch_size=4,
        embed_dim=48,
        depths=[2, 2, 4],
        num_heads=[2, 4, 8],
        window_size=4,
        num_labels=10,
    )
    return _pictured(SwinForImageClassification(config), batch, 128, adam=True)


def resnet50(batch: int) -> Case:
    from encke.study.zoo.resnet import resnet50 as network

    return _pictured(network(classes=10), batch, 128, adam=False)


def resnet18(batch: int) -> Case:
    from encke.study.zoo.resnet import resnet18 as network

    return _pictured(network(classes=10), batch, 128, adam=False)


def vgg16(batch: int) -> Case:
    from encke.study.zoo.vgg import vgg16 as network

    return _pictured(network(classes=10), batch, 96, adam=False)


def unet(batch: int) -> Case:
    from encke.study.zoo.unet import unet as network

    model = network(channels=3, outputs=3, width=16, depth=3)

    def draw() -> Tensor:
        images, _ = pictures(batch, 128)
        return F.mse_loss(model(images), F.avg_pool2d(images, 3, 1, 1))

    return Case(model, _adamw(model), draw)


class Words(nn.Module):
    """A word-level LSTM."""

    def __init__(self, words: int = 4000, width: int = 256) -> None:
        super().__init__()
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.rnn(self.encoder(ids))[0])
        return out


def lstm(batch: int) -> Case:
    model = Words()

    def draw() -> Tensor:
        ids = tokens(batch, 65, 4000)
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return Case(model, _adamw(model), draw)


class Graph(nn.Module):
    """Three layers of graph convolution, as in Kipf and Welling (2017)."""

    def __init__(self, adjacency: Tensor, inward: int, width: int, classes: int) -> None:
        super().__init__()
        self.adjacency = adjacency
        self.layers = nn.ModuleList(
            [nn.Linear(inward, width), nn.Linear(width, width), nn.Linear(width, classes)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.dropout(F.relu(torch.sparse.mm(self.adjacency, layer(x))), 0.5)
        out: Tensor = torch.sparse.mm(self.adjacency, self.layers[-1](x))
        return out


def gcn(batch: int) -> Case:
    """`batch` thousand nodes."""
    nodes, classes = 1000 * batch, 7
    labels = torch.randint(0, classes, (nodes,))
    ends = torch.randint(0, nodes, (2, 8 * nodes))
    alike = ends[:, labels[ends[0]] == labels[ends[1]]]
    edges = torch.cat([alike, alike.flip(0), torch.arange(nodes).repeat(2, 1)], 1)
    degree = torch.bincount(edges[0], minlength=nodes).float().rsqrt()
    values = degree[edges[0]] * degree[edges[1]]
    adjacency = torch.sparse_coo_tensor(edges, values, (nodes, nodes)).coalesce()
    features = torch.randn(nodes, 256) + 0.3 * torch.randn(classes, 256)[labels]
    model = Graph(adjacency, 256, 256, classes)
    return Case(model, _adamw(model), lambda: F.cross_entropy(model(features), labels))


#: By name: the case, and its two batch sizes.
CASES: dict[str, tuple[Callable[[int], Case], tuple[int, int]]] = {
    "gpt2": (gpt2, (4, 8)),
    "bert": (bert, (4, 8)),
    "llama": (llama, (4, 8)),
    "t5": (t5, (4, 8)),
    "mixtral": (mixtral, (4, 8)),
    "vit": (vit, (8, 32)),
    "convnext": (convnext, (16, 48)),
    "swin": (swin, (16, 48)),
    "resnet50": (resnet50, (8, 32)),
    "resnet18": (resnet18, (16, 64)),
    "vgg16": (vgg16, (8, 24)),
    "unet": (unet, (8, 32)),
    "lstm": (lstm, (32, 128)),
    "gcn": (gcn, (10, 40)),
}
LANGUAGE = ("gpt2", "bert", "llama", "t5", "mixtral")
