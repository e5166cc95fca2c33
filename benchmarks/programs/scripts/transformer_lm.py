"""A word-level language model made of nn.TransformerEncoder, with sinusoidal positions."""

import math

import torch
import torch.nn.functional as F
from data import batch, text
from log import Log, arguments
from torch import nn

WORDS = 500


class PositionalEncoding(nn.Module):
    def __init__(self, width, length=512):
        super().__init__()
        position = torch.arange(length).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(length, width)
        table[:, 0::2] = torch.sin(position * rate)
        table[:, 1::2] = torch.cos(position * rate)
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(1)])


class TransformerModel(nn.Module):
    def __init__(self, width=128, heads=4, layers=2):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.position = PositionalEncoding(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.decoder = nn.Linear(width, WORDS)
        self.scale = math.sqrt(width)

    def forward(self, words):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        x = self.position(self.embed(words) * self.scale)
        return self.decoder(self.encoder(x, mask))


def main():
    args = arguments(steps=32)
    sequences = text(256, 129, WORDS)
    model = TransformerModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    log = Log()
    for step in range(args.steps):
        (words,) = batch(step, 8, sequences)
        optimizer.zero_grad()
        output = model(words[:, :-1])
        loss = F.cross_entropy(output.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
