"""A residual network on small colour images, SGD with momentum and a cosine schedule."""

import torch
import torch.nn.functional as F
from data import batch, pictures
from log import Log, arguments
from torch import nn


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, width=16, depth=(2, 2, 2), classes=10):
        super().__init__()
        layers = [
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(True),
        ]
        inside = width
        for stage, blocks in enumerate(depth):
            for index in range(blocks):
                stride = 2 if stage and not index else 1
                layers.append(Block(inside, width << stage, stride))
                inside = width << stage
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(inside, classes)

    def forward(self, x):
        return self.linear(self.features(x).mean((2, 3)))


def main():
    args = arguments(steps=32)
    images, labels = pictures(512, 32)
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(args.steps, 1))
    criterion = nn.CrossEntropyLoss()
    log = Log()
    model.train()
    for step in range(args.steps):
        x, y = batch(step, 32, images, labels)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
