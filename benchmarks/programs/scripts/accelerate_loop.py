"""A BERT classifier in a loop with accelerate: prepare, accumulate, backward."""

import torch
from accelerate import Accelerator
from data import text
from log import Log, arguments
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification


def main():
    args = arguments(steps=36)
    ids = text(256, 128, 400)
    ids[:, 0] = torch.arange(256) % 4 + 1  # the first word tells the class
    labels = torch.arange(256) % 4
    model = BertForSequenceClassification(
        BertConfig(
            hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=512, vocab_size=400, num_labels=4,
        )
    )  # fmt: skip
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    loader = DataLoader(TensorDataset(ids, labels), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    log = Log()
    while len(log.losses) < 2 * args.steps:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=x, labels=y).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            log.step(loss.item())
            if len(log.losses) == 2 * args.steps:
                break
    log.end()


if __name__ == "__main__":
    main()
