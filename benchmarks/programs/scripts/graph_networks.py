"""Node classification with the layers of torch_geometric: GCN, GAT, GraphSAGE, GIN."""

import torch
import torch.nn.functional as F
from data import communities
from log import Log, arguments
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv


def layer(name, inside, outside):
    if name == "gcn":
        return GCNConv(inside, outside)
    if name == "gat":
        return GATConv(inside, outside // 4, heads=4)
    if name == "sage":
        return SAGEConv(inside, outside)
    hidden = nn.Sequential(nn.Linear(inside, outside), nn.BatchNorm1d(outside), nn.ReLU())
    return GINConv(hidden.append(nn.Linear(outside, outside)), train_eps=True)


class GNN(nn.Module):
    def __init__(self, name, features, width, classes):
        super().__init__()
        self.conv1 = layer(name, features, width)
        self.conv2 = layer(name, width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, x, edges):
        x = F.dropout(F.relu(self.conv1(x, edges)), 0.5, self.training)
        return self.out(F.relu(self.conv2(x, edges)))


def main():
    args = arguments(steps=40, names=("gcn", "gat", "sage", "gin"))
    x, edges, labels = communities(nodes=8000, features=64, classes=16, degree=6)
    train = torch.rand(len(labels)) < 0.6
    model = GNN(args.name, 64, 128, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    log = Log()
    for _ in range(args.steps):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges)[train], labels[train])
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
