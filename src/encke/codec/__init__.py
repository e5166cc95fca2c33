"""Tensors to self-describing streams and back, within a bound."""

from encke.codec.packed import Packed
from encke.codec.registry import names
from encke.codec.roundtrip import compress, decompress

__all__ = ["Packed", "compress", "decompress", "names"]
