"""Networks that benchmarks and studies train, in plain torch.

Their modules, shapes and initialisation are the ones that users have; where a network's
number of parameters is well known, it is the same here.

>>> from encke.study import zoo
>>> network = zoo.build("resnet_cifar", depth=20, classes=10)
>>> sum(p.numel() for p in network.parameters())
269722
"""

from encke.study.zoo.batch import Batch
from encke.study.zoo.model import Family, Model
from encke.study.zoo.registry import build, model, names, register
from encke.study.zoo.samples import cross_entropy

__all__ = ["Batch", "Family", "Model", "build", "cross_entropy", "model", "names", "register"]
