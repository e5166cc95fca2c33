"""The order of a backward graph: what keeps the fewest tensors in memory at a time.

A layer's backward is two products of the gradient dY that comes in: with the layer's input for
its weight, and with its weight for the layer before. Whichever is first, the results are the
same. But the input has been decoded, or computed again from what was, and is let go after the
first; what flows on is as large and stays. So the weight's comes first here, and both are never
there together. Left to itself Inductor often takes the other order, computes the input again
and its derivative in one loop, which needs both at once, or puts the product off to the end of
backward, where a tied weight's other gradient is added.

What is kept is given back when the gradient that it meets has been made, and not before.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Container
from typing import Any

import torch
from torch import fx

from encke.tape.compiled import internals, roles
from encke.tape.compiled.survey import summands

#: Of a gradient, they give one that is computed as quickly as it is read.
_SCALED = frozenset(("div", "mul", "neg"))
_BACKWARD = torch.ops.aten.convolution_backward.default
_CONVOLUTION = torch.ops.aten.convolution.default


def weights_first(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Move products that end in a weight's gradient before others of the same gradient.

    Returns, for each product that has to wait, the one that it waits for.
    """
    products = [n for n in graph.nodes if roles.is_matrix_product(n)]
    ends = {n for result in graph.output_node().all_input_nodes for n in summands(result)}
    last = [p for p in products if p in ends and len(p.users) == 1]
    waits: dict[fx.Node, fx.Node] = {}
    for weight in last:
        needed = needed_by(weight)
        for other in products:
            if other in needed or other in last or other in waits:
                continue
            if not _factors(weight).isdisjoint(_factors(other)):
                _move_before(other, needed)
                waits[other] = weight
    return waits


def split_convolutions(graph: fx.Graph) -> None:
    """Make two ops of each convolution's backward: for its weight, then for what flows on.

    What flows on is a convolution of the gradient that comes in, transposed, and needs the
    input no more.
    """
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        given: tuple[Any, ...] = node.args
        results = {user.args[1]: user for user in node.users if given[-1][user.args[1]]}
        if 0 not in results or len(results) == 1 or not _is_static(node):
            continue
        with graph.inserting_before(node):
            weight = graph.call_function(_BACKWARD, (*given[:-1], [False, *given[-1][1:]]))
            weight.meta = {**node.meta, "val": (None, *node.meta["val"][1:])}
            onward = graph.call_function(_CONVOLUTION, _transposed(node))
            onward.meta = {**node.meta, "val": node.meta["val"][0]}
        results.pop(0).replace_all_uses_with(onward)
        for user in results.values():
            user.update_arg(0, weight)
    graph.eliminate_dead_code()


def _is_static(backward: fx.Node) -> bool:
    """Whether a convolution is not a transposed one already, and its sizes are numbers."""
    given: tuple[Any, ...] = backward.args
    gradient, seen, *_ = given
    sizes = (*seen.meta["val"].shape, *gradient.meta["val"].shape)
    return not given[7] and all(isinstance(size, int) for size in sizes)


def _transposed(backward: fx.Node) -> tuple[Any, ...]:
    """Arguments of the convolution that gives what flows on through another one."""
    given: tuple[Any, ...] = backward.args
    gradient, seen, weight, _, stride, padding, dilation, _, _, groups, _ = given
    kernel = weight.meta["val"].shape[2:]
    more = [
        there - ((here - 1) * s - 2 * p + d * (k - 1) + 1)
        for there, here, s, p, d, k in zip(
            seen.meta["val"].shape[2:],
            gradient.meta["val"].shape[2:],
            *(_each(one, len(kernel)) for one in (stride, padding, dilation)),
            kernel,
            strict=True,
        )
    ]
    return (gradient, weight, None, stride, padding, dilation, True, more, groups)


def _each(given: Any, dimensions: int) -> list[int]:
    """One number for each dimension: torch takes one for all as well."""
    return list(given) if len(given) == dimensions else list(given) * dimensions


def sink(graph: fx.Graph) -> None:
    """Move what backward computes from kept values alone to right before its first use."""
    gradients = _gradients(graph)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node not in gradients and node.users:
            min(node.users).prepend(node)


class Meetings:
    """Where values that are kept meet gradients in a backward graph."""

    def __init__(self, graph: fx.Graph, kept: Collection[fx.Node]) -> None:
        self._gradients = _gradients(graph)
        large = max(map(roles.count_of, kept), default=0) / 2
        self._large = {n for n in kept if _is_float(n) and roles.count_of(n) >= large}

    def uses(self, kept: fx.Node) -> list[list[fx.Node]]:
        """The users of a kept value, in groups. For each it is given back anew.

        Where a layer's input is computed again from several large values (a residual network's
        sum of two norms), these are let go with it, and not held until each is used itself.
        """
        users = sorted(kept.users)
        meeting = self._first(kept)
        if kept not in self._large or meeting is None or not roles.is_product(meeting):
            return [users]
        needed = needed_by(meeting, but_not=self._gradients)
        early = [user for user in users if user in needed]
        late = [user for user in users if user not in needed]
        return [early, late] if early and late and len(needed & self._large) > 1 else [users]

    def before(self, kept: fx.Node, user: fx.Node) -> list[fx.Node]:
        """What a kept value waits for: the product before, and the gradient that it meets.

        Truth values wait for no gradient: they make it.
        """
        product = _last_product_before(user)
        met = self.gradient(kept) if _is_float(kept) and user is min(kept.users) else None
        return [node for node in dict.fromkeys((product, met)) if node is not None]

    def gradient(self, kept: fx.Node) -> fx.Node | None:
        """The gradient that a kept value meets first, where that is made in the graph.

        Whoever waits for it has it in memory: a gradient that several ops use, one of them far
        away, is otherwise computed again there, from what it was computed from.
        """
        meeting = self._first(kept)
        while meeting is not None:
            mine = [n for n in meeting.all_input_nodes if n in self._gradients]
            if not mine:
                return None
            met = roles.behind_views(max(mine, key=roles.count_of))
            if met.op != "call_function" or roles.tensor_of(met) is None:
                return None
            scaled = internals.op_name(met.target) in _SCALED and not roles.is_product(meeting)
            if len(mine) > 1 or not scaled:
                return met
            meeting = met
        return None

    def _first(self, kept: fx.Node) -> fx.Node | None:
        """The first op that takes a kept value, or one computed from it, and a gradient."""
        values = roles.reached([kept], within=lambda n: n not in self._gradients)
        users = (user for n in values for user in n.users if user in self._gradients)
        first = min(users, default=None)
        return None if first is None or first.op == "output" else first


def _is_float(node: fx.Node) -> bool:
    value = roles.tensor_of(node)
    return value is not None and value.is_floating_point()


def _last_product_before(node: fx.Node) -> fx.Node | None:
    here = node.prev
    while here.op not in ("placeholder", "root"):
        maker = here.args[0] if here.target is operator.getitem else here
        if roles.tensor_of(here) is not None and roles.is_product(maker):  # type: ignore[arg-type]
            return here
        here = here.prev
    return None


def _gradients(graph: fx.Graph) -> set[fx.Node]:
    return roles.reached(n for n in graph.nodes if internals.is_tangent(n))


def _factors(product: fx.Node) -> set[fx.Node]:
    return {roles.behind_views(n) for n in product.all_input_nodes}


def needed_by(node: fx.Node, *, but_not: Container[fx.Node] = ()) -> set[fx.Node]:
    """A node, and everything that it is computed from, but for some."""
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        here = stack.pop()
        if here not in found:
            found.add(here)
            stack.extend(n for n in here.all_input_nodes if n not in but_not)
    return found


def _move_before(place: fx.Node, nodes: set[fx.Node]) -> None:
    """Move those of the nodes that come after a place before it, in their order."""
    late = [n for n in place.graph.nodes if n in nodes and n > place]
    for node in late:
        place.prepend(node)
