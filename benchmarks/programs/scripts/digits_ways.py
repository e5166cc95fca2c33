"""A convolutional classifier of digits in loops that are put together in other ways.

    loss_method     `model.loss(x, y)`, a method that calls functions and no module
    frozen          the backbone is frozen, only the head is trained
    scripted        torch.jit.script of the model is trained
    workers         a DataLoader with worker processes
    swa             AveragedModel and SWALR of torch.optim.swa_utils
    functional      torch.func.functional_call with a dictionary of parameters
    all_frozen      the model is frozen; its input is optimized
    two_parts       an encoder and a classifier that no module holds together
"""  # fmt: skip

import torch
import torch.nn.functional as F
from data import digits
from log import Log, arguments
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader, TensorDataset

WAYS = (
    "loss_method", "frozen", "scripted", "workers", "swa", "functional", "all_frozen",
    "two_parts",
)  # fmt: skip


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 24, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(24)
        self.conv2 = nn.Conv2d(24, 48, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(48)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return torch.flatten(x, 1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Sequential(nn.Linear(48 * 49, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.head(self.backbone(x))

    @torch.jit.ignore
    def loss(self, x, y):
        """The same network, by functions alone: no module is called."""
        for conv, norm in (
            (self.backbone.conv1, self.backbone.norm1),
            (self.backbone.conv2, self.backbone.norm2),
        ):
            x = F.conv2d(x, conv.weight, conv.bias, padding=1)
            x = F.batch_norm(x, None, None, norm.weight, norm.bias, training=True)
            x = F.max_pool2d(F.relu(x), 2)
        first, _, last = self.head
        hidden = F.relu(F.linear(x.flatten(1), first.weight, first.bias))
        return F.cross_entropy(F.linear(hidden, last.weight, last.bias), y)


def loss_function(name, model):
    """The loss of a batch, as a function of images and labels."""
    if name == "loss_method":
        return model.loss
    if name == "two_parts":
        return lambda x, y: F.cross_entropy(model.head(model.backbone(x)), y)
    if name == "functional":
        parameters = dict(model.named_parameters())
        call = torch.func.functional_call
        return lambda x, y: F.cross_entropy(call(model, parameters, (x,)), y)
    return lambda x, y: F.cross_entropy(model(x), y)


def main():
    args = arguments(steps=40, names=WAYS)
    images, labels = digits(28)
    workers = 2 if args.name == "workers" else 0
    loader = DataLoader(
        TensorDataset(images, labels), batch_size=64, shuffle=True, num_workers=workers,
        drop_last=True, persistent_workers=bool(workers),
    )  # fmt: skip
    model = Classifier()
    trained = model.parameters()
    shift = nn.Parameter(torch.zeros(1, 28, 28))
    if args.name == "frozen":
        model.backbone.requires_grad_(False)
        trained = model.head.parameters()
    elif args.name == "scripted":
        model = torch.jit.script(model)
        trained = model.parameters()
    elif args.name == "all_frozen":
        model.requires_grad_(False)
        trained = [shift]
    optimizer = torch.optim.SGD(trained, lr=0.02, momentum=0.9)
    average, schedule = None, None
    if args.name == "swa":
        average, schedule = (
            AveragedModel(model),
            SWALR(optimizer, swa_lr=0.01, anneal_epochs=10),
        )
    loss_of = loss_function(args.name, model)
    log = Log()
    while len(log.losses) < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(x + shift if args.name == "all_frozen" else x, y)
            loss.backward()
            optimizer.step()
            if average is not None:
                average.update_parameters(model)
                schedule.step()
            log.step(loss.item())
            if len(log.losses) == args.steps:
                break
    log.end()


if __name__ == "__main__":
    main()
