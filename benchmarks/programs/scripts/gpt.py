"""A small GPT by hand, trained in ways that change the loop and not the model.

    plain          one forward, one backward, one step
    accumulation   four micro-batches for a step
    autocast       bfloat16 where torch.autocast chooses it
    grad_scaler    the recipe with a GradScaler, which is disabled on a CPU
    compiled       torch.compile
    checkpointed   the blocks under torch.utils.checkpoint, not reentrant
    reentrant      the same, reentrant
    in_backward    an optimizer for each parameter, stepped by hooks in backward
    manual_sgd     parameters changed by hand, without torch.optim
    ema            a running average of the weights
"""  # fmt: skip

import copy

import torch
import torch.nn.functional as F
from data import text
from log import Log, arguments
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS = 300
WAYS = (
    "plain", "accumulation", "autocast", "grad_scaler", "compiled", "checkpointed",
    "reentrant", "in_backward", "manual_sgd", "ema",
)  # fmt: skip


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, way, width=128, heads=4, layers=3, length=128):
        super().__init__()
        self.way = way
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, words, targets):
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            if self.way in ("checkpointed", "reentrant"):
                x = checkpoint(block, x, use_reentrant=self.way == "reentrant")
            else:
                x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batches(size):
    sequences = text(256, 129, WORDS)
    while True:
        for words in sequences.split(size):
            yield words[:, :-1], words[:, 1:]


def step_in_backward(model):
    """Each parameter has its own optimizer, which runs as soon as its gradient is there."""
    optimizers = {p: torch.optim.AdamW([p], lr=2e-3) for p in model.parameters()}

    def hook(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def main():
    args = arguments(steps=32, names=WAYS)
    autocast = args.name in ("autocast", "grad_scaler")
    model = GPT(args.name, layers=1 if args.name == "compiled" else 3)
    data = batches(2 if autocast or args.name == "accumulation" else 8)
    micro = 4 if args.name == "accumulation" else 1
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    optimizer = None
    if args.name == "in_backward":
        step_in_backward(model)
    elif args.name != "manual_sgd":
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    average = copy.deepcopy(model) if args.name == "ema" else None
    trained = torch.compile(model) if args.name == "compiled" else model
    log = Log()
    for _ in range(args.steps):
        total = 0.0
        for _ in range(micro):
            words, targets = next(data)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = trained(words, targets) / micro
            scaler.scale(loss).backward()
            total += loss.item()
        if optimizer is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        elif args.name == "manual_sgd":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
        if average is not None:
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
        log.step(total)
    log.end()


if __name__ == "__main__":
    main()
