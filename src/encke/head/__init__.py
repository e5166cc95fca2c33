"""The head of a language model: cross-entropy without the memory of logits."""

from encke.head.linear_cross_entropy import linear_cross_entropy

__all__ = ["linear_cross_entropy"]
