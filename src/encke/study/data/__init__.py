"""What the networks of the zoo are trained on: plain tensors and seeded batches.

A source is loaded by name. Its folder is the argument `root=`, else the environment variable
`ENCKE_DATA`; nothing is downloaded.

>>> from encke.study import data
>>> source = data.load("synthetic", model="mlp", train=100)
>>> [len(batch.target) for batch in source.batches("train", 40, seed=1)]
[40, 40, 20]
"""

from encke.study.data.augment import crop_and_flip
from encke.study.data.errors import BrokenDataError, MissingDataError
from encke.study.data.examples import Examples, Split, Standardise
from encke.study.data.graphs import Graph
from encke.study.data.registry import ANY, load, names, options, register
from encke.study.data.source import Source
from encke.study.data.text import Text

__all__ = [
    "ANY",
    "BrokenDataError",
    "Examples",
    "Graph",
    "MissingDataError",
    "Source",
    "Split",
    "Standardise",
    "Text",
    "crop_and_flip",
    "load",
    "names",
    "options",
    "register",
]
