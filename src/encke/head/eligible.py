"""When the head of a model may be lazy."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

#: A vocabulary has at least so many entries, and more than so many for each feature. The layers
#: of a transformer's feed-forward part have 4 for each; language models 7.8 (LLaMA-2) to 65.
FEWEST_CLASSES = 4096
CLASSES_PER_FEATURE = 4
#: Logits of fewer bytes are made at once: they are no more than one block.
SMALLEST = 8 << 20

#: Weights whose outputs were computed before any loss: feed-forward layers, or logits that the
#: program looks at first.
_others: WeakIdKeyDictionary = WeakIdKeyDictionary()


def not_a_head(weight: Tensor) -> None:
    """From now on compute the outputs of this weight at once."""
    _others[weight] = True


def may_be_shared(indices: Any, weight: Any) -> bool:
    """Whether an embedding's weight may be that of a head too."""
    if torch._C._is_tracing() or not _is_plain(weight) or type(indices) is not Tensor:
        return False
    if weight.dim() != 2 or not weight.is_leaf or not weight.requires_grad:
        return False
    if weight.numel() * weight.element_size() < SMALLEST or not _has_vocabulary(weight):
        return False
    return is_plain_autograd() and indices.dtype in (torch.int32, torch.int64)


def _has_vocabulary(weight: Tensor) -> bool:
    classes, features = weight.shape
    return classes >= FEWEST_CLASSES and classes > CLASSES_PER_FEATURE * features


def is_head(hidden: Any, weight: Any, bias: Any) -> bool:
    """Whether F.linear of these may give lazy logits."""
    if torch._C._is_tracing() or not isinstance(weight, Tensor) or weight.dim() != 2:
        return False
    if not _has_vocabulary(weight):
        return False
    classes, features = weight.shape
    if not isinstance(hidden, Tensor) or hidden.dim() == 0:
        return False
    if hidden.shape[-1] != features or not is_plain_autograd():
        return False
    given = [t for t in (hidden, weight, bias) if t is not None]
    if not all(_is_plain(t) and t.device == hidden.device for t in given):
        return False
    if bias is not None and bias.shape != (classes,):
        return False
    if not any(t.requires_grad for t in given):
        return False
    rows = hidden.shape[:-1].numel()
    if rows * classes * hidden.element_size() < SMALLEST:
        return False
    return weight not in _others and not _may_be_sharded(weight)


def _is_plain(t: Any) -> bool:
    # A subclass may compute products of its own: quantised, sharded, fake.
    return (
        type(t) in (Tensor, nn.Parameter)
        and t.layout == torch.strided
        and t.is_floating_point()
        and not t.is_meta
        and not t.is_inference()
    )


def is_plain_autograd() -> bool:
    """Whether what runs now is eager and recorded, and nobody else packs what it saves.

    A checkpoint counts what is saved, and runs again without the mode that makes logits lazy.
    """
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    )


def _may_be_sharded(weight: Tensor) -> bool:
    """Whether FSDP may free this weight before the logits are computed."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    if weight.untyped_storage().nbytes() != weight.numel() * weight.element_size():
        return True  # a part of FSDP's flat parameter
    states = sys.modules.get("torch.distributed._composable_state")
    known = getattr(states, "_module_state_mapping", {})
    return any("FSDP" in type(state()).__name__ for state in known.values())
