"""Which of the values that a compiled forward graph keeps may carry an error.

After tracing there are no layers any more, only small ops, and the partitioner decides which
of their results are kept and which are computed again in backward. So what may be lossy is
read off the graph:

- A comparison decides which way a gradient goes (ReLU's mask). It is never made again from
  values with an error: forward makes it and keeps its outcome, which takes one bit.
- Statistics (means, variances, row sums of attention) are small and enter everything.
- A value that an op with exact needs reads, or an op that is not known, stays as it is.

Everything else are activations, of which backward needs the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable

import torch
from torch import Tensor, fx

from encke.tape.compiled.internals import (
    expected,
    is_tangent,
    namespace,
    op_name,
    traced_from,
)

#: Results in steps: an error near an edge would change them by a whole step.
STEPPED = frozenset(
    ("sign", "sgn", "floor", "ceil", "round", "trunc", "frac", "fmod", "remainder", "heaviside")
)
#: Ops whose backward compares, or needs every bit: see `tape.needs.table`.
EXACT_CONSUMERS = frozenset(
    (
        "_log_softmax_backward_data",
        "_prelu_kernel_backward",
        "hardshrink_backward",
        "hardsigmoid_backward",
        "hardswish_backward",
        "hardtanh_backward",
        "leaky_relu_backward",
        "rrelu_with_noise_backward",
        "softshrink_backward",
        "threshold_backward",
    )
)
_REDUCTIONS = frozenset(
    ("var_mean", "var", "std_mean", "std", "mean", "sum", "norm", "logsumexp", "amax", "amin")
)
_SPLITS = frozenset(("split", "split_with_sizes", "unbind", "chunk", "tensor_split"))
_MATRIX_PRODUCTS = frozenset(("addmm", "baddbmm", "bmm", "mm"))
_VIEWS = frozenset(
    ("_unsafe_view", "permute", "reshape", "squeeze", "t", "transpose", "unsqueeze", "view")
)
_SMALLER = 4  # a statistic has at most this fraction of the values it was made of
_NAMESPACES = frozenset(("aten", "prims"))


def tensor_of(node: fx.Node) -> Tensor | None:
    """The fake tensor that stands for a node's result."""
    value = node.meta.get("val")
    return value if isinstance(value, Tensor) else None


def spell_out_thresholds(graph: fx.Graph) -> None:
    """Write ReLU's backward as a comparison and a choice, where it is still one op."""
    for node in list(graph.nodes):
        if node.op != "call_function" or op_name(node.target) != "threshold_backward":
            continue
        gradient, result, threshold = node.args
        with graph.inserting_before(node):
            below = graph.call_function(torch.ops.aten.le.Scalar, (result, threshold))
            zero = graph.call_function(
                torch.ops.aten.scalar_tensor.default,
                (0.0,),
                {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device},
            )
            chosen = graph.call_function(torch.ops.aten.where.self, (below, zero, gradient))
        for new in (below, zero, chosen):
            values = fx.node.map_arg(new.args, lambda n: n.meta["val"])
            new.meta = {**node.meta, "val": new.target(*values, **new.kwargs)}  # type: ignore[operator]
        node.replace_all_uses_with(chosen)
        graph.erase_node(node)


def decisions(graph: fx.Graph) -> list[fx.Node]:
    """What must not be made again in backward from values with an error."""
    from_values = reached(n for n in graph.nodes if _is_float_input(n))
    from_gradients = reached(n for n in graph.nodes if is_tangent(n))
    found: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "call_function" or node in from_gradients or node not in from_values:
            continue
        result = tensor_of(node)
        if result is None:
            continue
        reads_values = any(
            (t := tensor_of(n)) is not None and t.is_floating_point()
            for n in node.all_input_nodes
        )
        if reads_values and (not result.is_floating_point() or op_name(node.target) in STEPPED):
            found.append(node)
    return found


def side_of(decision: fx.Node, materialised: Container[fx.Node]) -> fx.Node | None:
    """The values of which a decision is `x <= 0`, if they lie in memory anyway.

    Then the tape takes the bits from them, and the truth values need never be written: a
    byte each, which Inductor's code for CPUs writes and reads one at a time.

    materialised  nodes of which that is known
    """
    if decision.target is not torch.ops.aten.le.Scalar or decision.args[1] != 0:
        return None
    values = decision.args[0]
    while isinstance(values, fx.Node) and values.target is torch.ops.aten.alias.default:
        values = values.args[0]
    if not isinstance(values, fx.Node) or values.op != "call_function":
        return None
    seen, result = tensor_of(values), tensor_of(decision)
    if seen is None or result is None or seen.stride() != result.stride():
        return None
    return values if values in materialised or _feeds_product(values) else None


def _feeds_product(node: fx.Node) -> bool:
    """Whether a product reads a node, or a view of it."""
    stack = list(node.users)
    while stack:
        user = stack.pop()
        if is_product(user):
            return True
        if is_view(user):
            stack.extend(user.users)
    return False


def is_matrix_product(node: fx.Node) -> bool:
    return op_name(node.target) in _MATRIX_PRODUCTS


def is_product(node: fx.Node) -> bool:
    """Whether a node multiplies matrices in any way: a layer of its own, or attention."""
    name = op_name(node.target)
    return is_matrix_product(node) or name.startswith("convolution") or "attention" in name


def is_view(node: fx.Node) -> bool:
    """Whether a node is its input in another shape."""
    return op_name(node.target) in _VIEWS


def behind_views(node: fx.Node) -> fx.Node:
    """What a node is a view of."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_float_input(node: fx.Node) -> bool:
    value = tensor_of(node)
    return (
        node.op == "placeholder"
        and not is_tangent(node)
        and value is not None
        and value.is_floating_point()
    )


def reached(
    start: Iterable[fx.Node], *, within: Callable[[fx.Node], bool] | None = None
) -> set[fx.Node]:
    """Nodes that depend on any of `start`, those themselves included.

    within  which nodes are followed, if not all
    """
    found: set[fx.Node] = set()
    stack = list(start)
    while stack:
        node = stack.pop()
        if node not in found and (within is None or within(node)):
            found.add(node)
            stack.extend(node.users)
    return found


def must_be_exact(saved: fx.Node, in_backward: fx.Node) -> str:
    """Why a kept value may not carry an error; "" if it may.

    saved        the node of the forward graph that makes it
    in_backward  what stands for it in the backward graph
    """
    if op_name(saved.target) in STEPPED:
        return "has steps"
    if is_statistic(saved):
        return "a statistic"
    gradients = reached(n for n in in_backward.graph.nodes if is_tangent(n))
    seen: set[fx.Node] = set()
    stack = list(in_backward.users)
    while stack:
        user = stack.pop()
        if user in seen or user.op == "output":
            continue
        seen.add(user)
        name = op_name(user.target)
        if {name, traced_from(user)} & EXACT_CONSUMERS:
            return f"{traced_from(user) or name} needs every bit"
        if name and namespace(user.target) not in _NAMESPACES:
            return f"no rule for {user.target}"
        if user not in gradients:  # computed again from it
            stack.extend(user.users)
    return ""


def is_statistic(node: fx.Node) -> bool:
    """Whether a value is a reduction of something larger, or computed from such alone."""
    count = count_of(node)
    reduced = False
    seen: set[fx.Node] = set()
    stack = [node]
    while stack:
        here = stack.pop()
        if here in seen or here.op != "call_function":
            continue
        seen.add(here)
        maker, further = _maker(here)
        inputs = [n for n in maker.all_input_nodes if tensor_of(n) is not None]
        if further and op_name(maker.target) not in _SPLITS:
            reduced = True  # a norm's mean, attention's row sums
            continue
        small = all(count_of(n) >= _SMALLER * count for n in inputs)
        if op_name(maker.target) in _REDUCTIONS and small:
            reduced = True
            continue
        as_large = [n for n in inputs if count_of(n) >= count]
        if not as_large:
            return False
        stack.extend(as_large)
    return reduced


def _maker(node: fx.Node) -> tuple[fx.Node, bool]:
    """The op that made a node, and whether it is another than that op's first result."""
    further = False
    while node.target is operator.getitem:
        of, index = node.args
        assert isinstance(of, fx.Node)
        node = of
        if index != 0:
            further = True
    return node, further


def count_of(node: fx.Node) -> int:
    """How many values a node's result has, as far as known when it is traced."""
    value = tensor_of(node)
    return 0 if value is None else expected(value.numel())
