"""A graph attention network whose softmax over edges is written out."""

import torch
import torch.nn.functional as F
from data import communities
from log import Log, arguments
from torch import nn


class GraphAttention(nn.Module):
    def __init__(self, inside, outside, heads):
        super().__init__()
        self.heads, self.width = heads, outside // heads
        self.project = nn.Linear(inside, outside, bias=False)
        self.a_target = nn.Parameter(torch.randn(heads, self.width) / self.width**0.5)
        self.a_source = nn.Parameter(torch.randn(heads, self.width) / self.width**0.5)

    def forward(self, x, edges):
        source, target = edges
        h = self.project(x).view(-1, self.heads, self.width)
        score = (h * self.a_source).sum(-1)[source] + (h * self.a_target).sum(-1)[target]
        score = F.leaky_relu(score, 0.2)
        weight = (score - score.max()).exp()  # softmax over the edges of each target
        total = torch.zeros(len(x), self.heads).index_add_(0, target, weight)
        share = weight / (total[target] + 1e-16)
        share = F.dropout(share, 0.2, self.training)
        message = h[source] * share.unsqueeze(-1)
        out = torch.zeros_like(h).index_add_(0, target, message)
        return out.flatten(1)


class GAT(nn.Module):
    def __init__(self, features, width, classes):
        super().__init__()
        self.layer1 = GraphAttention(features, width, heads=8)
        self.layer2 = GraphAttention(width, classes, heads=1)

    def forward(self, x, edges):
        x = F.elu(self.layer1(F.dropout(x, 0.2, self.training), edges))
        return F.log_softmax(self.layer2(F.dropout(x, 0.2, self.training), edges), dim=1)


def main():
    args = arguments(steps=40)
    x, edges, labels = communities(nodes=8000, features=64, classes=16, degree=6)
    train = torch.rand(len(labels)) < 0.6
    model = GAT(64, 128, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    log = Log()
    for _ in range(args.steps):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x, edges)[train], labels[train])
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
