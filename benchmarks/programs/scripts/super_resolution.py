"""Super-resolution of images by a convolutional network with sub-pixel shuffling."""

import torch.nn.functional as F
from data import batch, pictures
from log import Log, arguments
from torch import nn, optim


class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 64, 5, 1, 2)
        self.conv2 = nn.Conv2d(64, 64, 3, 1, 1)
        self.conv3 = nn.Conv2d(64, 32, 3, 1, 1)
        self.conv4 = nn.Conv2d(32, factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(factor)
        for conv in (self.conv1, self.conv2, self.conv3):
            nn.init.orthogonal_(conv.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv4.weight)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.relu(self.conv3(x))
        return self.pixel_shuffle(self.conv4(x))


def main():
    args = arguments(steps=32)
    images, _ = pictures(96, 96)
    fine = F.avg_pool2d(images, 3, 1, 1).mean(1, keepdim=True)
    coarse = F.interpolate(fine, scale_factor=1 / 3, mode="area")
    model = Net(factor=3)
    criterion = nn.MSELoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    log = Log()
    for step in range(args.steps):
        x, y = batch(step, 16, coarse, fine)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
