"""What a backward graph is made of, as far as errors that travel through it are concerned.

Gradients come in (tangents), flow from op to op, and leave as gradients of parameters. An error
of something kept enters where it is given back. Between products only elementwise ops and
reductions lie; a product is where a gradient meets a weight, or ends as a weight's.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch import fx

from encke.tape.compiled import roles
from encke.tape.compiled.internals import is_tangent, op_name

#: A gradient of a part of a tensor, with zeros elsewhere.
_PARTS = frozenset(
    ("constant_pad_nd", "select_backward", "select_scatter", "slice_backward", "slice_scatter")
)
_STILL_ITSELF = frozenset(("add", "_to_copy", "convert_element_type"))


class Survey:
    """The gradients in a backward graph, where they end, and where they meet products.

    ends    nodes whose results are gradients of parameters, alone or added up, by name
    stops   gradients that go into a product or come out of one: as far as an error is followed
    joins   sums of gradients, where several ways back meet
    """

    def __init__(self, graph: fx.Graph, parameters: Mapping[int, str]) -> None:
        self._gradients = roles.reached(
            (n for n in graph.nodes if is_tangent(n)),
            within=lambda n: not op_name(n.target).startswith("tape_"),
        )
        results = graph.output_node().args[0]
        self.ends: dict[fx.Node, str] = {}
        for index, name in parameters.items():
            result = results[index]  # type: ignore[index]
            assert isinstance(result, fx.Node)
            for node in summands(result):
                self.ends[node] = name
        self.stops = {n for n in self._gradients if n not in self.ends and self._stops(n)}
        self.joins = {n: mine for n in self._gradients if (mine := self._summands(n))}

    def _summands(self, node: fx.Node) -> list[fx.Node]:
        """The gradients that a node adds up; none if they are parts that do not meet."""
        if op_name(node.target) != "add":
            return []
        mine = [m for m in node.all_input_nodes if m in self._gradients]
        parts = any(op_name(roles.behind_views(m).target) in _PARTS for m in mine)
        return mine if len(mine) > 1 and not parts else []

    def leads_to_weights(self, node: fx.Node) -> bool:
        """Whether a node is, in some form, all or part of a weight's gradient."""
        if node in self.ends:
            return True
        near = roles.is_view(node) or op_name(node.target) == "convolution_backward"
        return near and any(self.leads_to_weights(user) for user in node.users)

    def gradient_into(self, node: fx.Node) -> fx.Node | None:
        """The largest gradient that an op gets."""
        mine = [m for m in node.all_input_nodes if m in self._gradients]
        return max(mine, key=roles.count_of, default=None)

    def _stops(self, node: fx.Node) -> bool:
        maker = node.args[0] if node.target is operator.getitem else node
        if isinstance(maker, fx.Node) and roles.is_product(maker):
            return not isinstance(node.meta.get("val"), tuple | list)
        return any(roles.is_product(user) for user in _users_behind_views(node))

    def onward(
        self, start: fx.Node, shares: Mapping[tuple[fx.Node, fx.Node], float]
    ) -> dict[fx.Node, float]:
        """The ends that a gradient's relative error reaches, and how much of it does.

        Products pass it on as it is; where gradients are added, it counts by its energy.

        shares  for a sum and a summand: ‖summand‖² / ‖sum‖²
        """
        found: dict[fx.Node, float] = {start: 1.0}
        after = roles.reached([start], within=self._gradients.__contains__)
        for node in sorted(after - {start}):
            before = [m for m in node.all_input_nodes if m in found]
            if node in self.joins:
                found[node] = sum(found[m] * shares.get((node, m), 1.0) for m in before)
            else:
                found[node] = max(found[m] for m in before)
        return {node: share for node, share in found.items() if node in self.ends}


def summands(result: fx.Node) -> list[fx.Node]:
    """The nodes that a result is the sum of, and nothing else, in whatever shape and type."""
    found: list[fx.Node] = []
    stack = [result]
    while stack:
        node = stack.pop()
        itself = roles.is_view(node) or op_name(node.target) in _STILL_ITSELF
        if itself and len(node.users) == 1:
            stack.extend(node.all_input_nodes)
        else:
            found.append(node)
    return found


def _users_behind_views(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    stack = list(node.users)
    while stack:
        user = stack.pop()
        if roles.is_view(user):
            stack.extend(user.users)
        else:
            found.append(user)
    return found
