"""A siamese network: are two images of the same digit?"""

import torch
from data import digits
from log import Log, arguments
from torch import nn, optim


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 49, 128),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, left, right):
        return self.head((self.body(left) - self.body(right)).abs()).squeeze(1)


def main():
    args = arguments(steps=50)
    images, labels = digits(28)
    model = SiameseNetwork()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    log = Log()
    for _ in range(args.steps):
        left = torch.randint(len(labels), (48,))
        right = torch.randint(len(labels), (48,))
        for index in range(0, 48, 2):  # every second pair is of one class
            same = (labels == labels[left[index]]).nonzero().squeeze(1)
            right[index] = same[torch.randint(len(same), ())]
        target = (labels[left] == labels[right]).float()
        optimizer.zero_grad()
        loss = criterion(model(images[left], images[right]), target)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
