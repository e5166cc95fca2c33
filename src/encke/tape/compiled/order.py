"""The order of products in a backward graph: a weight's gradient before what flows on.

A linear layer's backward is two products of the gradient dY that comes in: with the layer's
input for its weight, and with its weight for the layer before. Whichever is first, the results
are the same. But the input has been decoded, or computed again from what was, and is let go
after the first; what flows on is as large and stays. So the weight's comes first here, and
both are never there together. Left to itself Inductor often takes the other order, computes the
input again and its derivative in one loop, which needs both at once, or puts the product off to
the end of backward, where a tied weight's other gradient is added.
"""

from __future__ import annotations

from torch import fx

from encke.tape.compiled import roles
from encke.tape.compiled.survey import summands


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


def _factors(product: fx.Node) -> set[fx.Node]:
    return {roles.behind_views(n) for n in product.all_input_nodes}


def needed_by(node: fx.Node) -> set[fx.Node]:
    """A node, and everything that it is computed from."""
    found: set[fx.Node] = set()
    stack = [node]
    while stack:
        here = stack.pop()
        if here not in found:
            found.add(here)
            stack.extend(here.all_input_nodes)
    return found


def _move_before(place: fx.Node, nodes: set[fx.Node]) -> None:
    """Move those of the nodes that come after a place before it, in their order."""
    late = [n for n in place.graph.nodes if n in nodes and n > place]
    for node in late:
        place.prepend(node)
