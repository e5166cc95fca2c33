"""The tape inside graphs of torch.compile: see docs/compile.md."""

from encke.tape.compiled.attaching import announce, announce_if_loaded, attach_graphs
from encke.tape.compiled.internals import compiled_module
from encke.tape.compiled.partition import partition

__all__ = [
    "announce",
    "announce_if_loaded",
    "attach_graphs",
    "compiled_module",
    "partition",
]
