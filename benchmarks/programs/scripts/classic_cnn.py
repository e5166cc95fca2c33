"""AlexNet- and VGG-like networks, narrow: convolutions, pooling, a large classifier."""

import torch
from data import batch, pictures
from log import Log, arguments
from torch import nn


def alexnet():
    return nn.Sequential(
        nn.Conv2d(3, 48, 7, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(48, 128, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        nn.Conv2d(128, 192, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(192, 128, 3, padding=1), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Dropout(), nn.Linear(2048, 512), nn.ReLU(inplace=True),
        nn.Dropout(), nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Linear(512, 10),
    )  # fmt: skip


def vgg():
    layers, inside = [], 3
    for width in (16, 16, "pool", 32, 32, "pool", 64, 64, "pool", 128, 128, "pool"):
        if width == "pool":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width)]
            layers.append(nn.ReLU(inplace=True))
            inside = width
    head = [nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(True), nn.Dropout()]
    return nn.Sequential(*layers, *head, nn.Linear(256, 10))


def main():
    args = arguments(steps=32, names=("alexnet", "vgg"))
    size, count = {"alexnet": (96, 12), "vgg": (64, 24)}[args.name]
    images, labels = pictures(512, size)
    model = {"alexnet": alexnet, "vgg": vgg}[args.name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    log = Log()
    for step in range(args.steps):
        x, y = batch(step, count, images, labels)
        output = model(x)
        loss = criterion(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
