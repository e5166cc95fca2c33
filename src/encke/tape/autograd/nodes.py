"""Reading autograd's graph: which nodes are new, what each saved, what is a parameter.

What is needed of autograd beyond its public interface is asked for here: `_sequence_nr` and
`_raw_saved_*` of a node, `register_hooks` and `data` of a saved tensor, the stack of default
hooks, the node and the backward pass that run, and what stands between a model and eager
autograd.
`tests/tape/test_torch_facts.py` tells when one changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_RAW = "_raw_saved_"
_SUFFIX = re.compile(r"Backward\d*$")
ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Ops that only rename, move or cast the values they are given.
VIEWS = frozenset(
    [
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Alias",
        "Expand",
        "T",
        "Transpose",
        "Permute",
        "Unsqueeze",
        "Squeeze",
        "Slice",
        "Select",
        "Split",
        "SplitWithSizes",
        "Unbind",
        "Narrow",
        "AsStrided",
        "Detach",
        "Clone",
        "ToCopy",
        "Contiguous",
    ]
)

_roles: dict[type, tuple[str, ...]] = {}
_names: dict[type, str] = {}


def op_name(node: Any) -> str:
    """The op that made a node.

    >>> op_name(torch.ones(2, requires_grad=True).relu().grad_fn)
    'Relu'
    """
    kind = type(node)
    name = _names.get(kind)
    if name is None:
        full = node.name()
        name = _SUFFIX.sub("", full)
        if kind.__name__ == full:  # one class for each op
            _names[kind] = name
    return name


def new_nodes(outputs: Sequence[Tensor], after: int) -> tuple[list[Any], int]:
    """Nodes behind `outputs` made after sequence number `after`, oldest first; the newest's."""
    if len(outputs) == 1 and (node := outputs[0].grad_fn) is not None:
        number = node._sequence_nr()
        if number <= after:
            return [], after
        if number == after + 1:  # nodes are numbered one by one: there is no other
            return [node], number
    found: dict[int, Any] = {}
    stack = [t.grad_fn for t in outputs if t.grad_fn is not None]
    while stack:
        node = stack.pop()
        number = node._sequence_nr()
        if number <= after or number in found or node.name() == ACCUMULATE:
            continue
        found[number] = node
        stack.extend(n for n, _ in node.next_functions if n is not None)
    ordered = sorted(found)
    return [found[number] for number in ordered], (ordered[-1] if ordered else after)


def newest() -> int:
    """The sequence number of the newest node of this thread."""
    number: int = torch._C._autograd._get_sequence_nr() - 1
    return number


def saved(node: Any, among: Sequence[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Role and raw saved tensor of everything that `node` keeps.

    among  names of attributes, without the number of a tensor in a list; all unless given
    """
    if among is None:
        kind = type(node)
        among = _roles.get(kind)
        if among is None:
            among = tuple(name[len(_RAW) :] for name in dir(node) if name.startswith(_RAW))
            _roles[kind] = among
    for role in among:
        raw = getattr(node, _RAW + role)
        if isinstance(raw, tuple | list):
            for number, one in enumerate(raw):
                if one is not None:
                    yield f"{role}[{number}]", one
        elif raw is not None:
            yield role, raw


def raw_saved(node: Any, role: str) -> Any:
    """What autograd holds of a tensor that `node` saved under `role`; None if it saved none."""
    return getattr(node, _RAW + role, None)


def notes(node: Any) -> dict[Any, Any]:
    """What is noted of a node, by anybody, for as long as it lives.

    >>> node = torch.ones(2, requires_grad=True).relu().grad_fn
    >>> notes(node)["why"] = "a test"
    >>> notes(node)
    {'why': 'a test'}
    """
    found: dict[Any, Any] = node.metadata
    return found


def set_grad(enabled: bool) -> None:
    """As `torch.set_grad_enabled`, without an object that undoes it."""
    torch._C._set_grad_enabled(enabled)


def has_hooks(raw: Any) -> bool:
    """Whether someone (checkpointing, save_on_cpu) already packs this saved tensor."""
    return raw.unpack_hook is not None


def active_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """The default hooks that what is saved now goes through; None if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def foreign_hooks_active() -> bool:
    """Whether default hooks for saved tensors are set: what is saved now is theirs."""
    return active_hooks() is not None


def parameter_behind(t: Tensor) -> Tensor | None:
    """The parameter that `t` is, or is a view or cast of; None if it is anything else."""
    if isinstance(t, nn.Parameter):
        return t
    if isinstance(t._base, nn.Parameter):
        return t._base
    return leaf_behind(t.grad_fn)


def leaf_behind(node: Any) -> Tensor | None:
    """The leaf whose gradient `node` passes on unchanged but for shape and dtype."""
    while node is not None:
        if node.name() == ACCUMULATE:
            variable: Tensor = node.variable
            return variable
        if op_name(node) not in VIEWS or not node.next_functions:
            return None
        node = node.next_functions[0][0]
    return None


def saved_tensor(node: Any, role: str) -> Tensor | None:
    """What `node` saved under `role`, with its history; reading it unpacks what is packed."""
    name, bracket, rest = role.partition("[")
    attribute = "saved_tensors" if name == "tensors" else f"_saved_{name}"
    value = getattr(node, attribute)
    found = value[int(rest[:-1])] if bracket else value
    return found if isinstance(found, Tensor) else None


def running_node() -> Any:
    """The node whose backward, or whose hook, is running."""
    return torch._C._current_autograd_node()


def current_backward() -> int:
    """The number of the backward pass that runs in this thread; -1 where none does."""
    number: int = torch._C._current_graph_task_id()
    return number


def kept_for(node: Any, role: str) -> Any:
    """What a hook put in the place of a saved tensor; None where there is no such role."""
    raw = getattr(node, _RAW + role, None)
    return None if raw is None else raw.data


def under_transform() -> bool:
    """Whether torch.func (grad, vmap, …) runs, which saves nothing that could be taken over."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Whether the code that runs is being compiled, exported or traced."""
    return torch.compiler.is_compiling() or bool(torch._C._is_tracing())


def is_exported() -> bool:
    """Whether the code that runs is being exported (what torch before 2.7 does not tell)."""
    return bool(getattr(torch.compiler, "is_exporting", lambda: False)())


def is_compiled(module: nn.Module) -> bool:
    """Whether calling `module` runs a graph of torch.compile instead of its forward.

    >>> is_compiled(nn.ReLU())
    False
    """
    if module._compiled_call_impl is not None:
        return True
    # Importing it takes seconds, and nothing is compiled where nobody has.
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return frames is not None and isinstance(module, frames.OptimizedModule)
