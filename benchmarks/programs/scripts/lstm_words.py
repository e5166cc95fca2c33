"""A word-level LSTM language model with clipped gradients; also on packed sequences."""

import torch
import torch.nn.functional as F
from data import batch, text
from log import Log, arguments
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

WORDS = 1000


class RNNModel(nn.Module):
    def __init__(self, width=200, layers=2):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(WORDS, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(width, WORDS)

    def forward(self, words, lengths=None, hidden=None):
        x = self.drop(self.encoder(words))
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, hidden = self.rnn(x, hidden)
        if lengths is not None:
            x, _ = pad_packed_sequence(x, batch_first=True, total_length=words.shape[1])
        return self.decoder(self.drop(x)), hidden


def main():
    args = arguments(steps=36, names=("unpacked", "packed"))
    sequences = text(512, 36, WORDS)
    model = RNNModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    hidden = None
    log = Log()
    for step in range(args.steps):
        (words,) = batch(step, 32, sequences)
        source, target = words[:, :-1], words[:, 1:].clone()
        lengths = None
        if args.name == "packed":
            lengths = torch.randint(8, 36, (len(words),))
            target[torch.arange(35) >= lengths[:, None]] = -100
        elif hidden is not None:
            hidden = tuple(h.detach() for h in hidden)
        optimizer.zero_grad()
        output, state = model(source, lengths, hidden)
        hidden = state if lengths is None else None
        loss = F.cross_entropy(output.flatten(0, 1), target.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
