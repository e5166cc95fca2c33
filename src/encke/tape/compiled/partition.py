"""Splitting a joint graph so that what forward keeps for backward goes through a tape.

torch.compile traces forward and backward into one graph and has a partitioner split it: which
values are kept, which are computed again. `Partitioner` lets that happen, and then replaces
each value that is kept by a handle (`tape.compiled.operators`). A value is packed right after
it was made and unpacked right before its first use, so at no time are there more decoded
tensors than the ops at hand need. Graphs without parameters of an attached model stay as they
are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from encke.codec.contract import BOOLS, FLOATS, INTEGERS
from encke.tape.compiled import internals, order, roles
from encke.tape.compiled.graphs import CompiledGraph, Place, attached, has_tape
from encke.tape.compiled.internals import Partition, Split
from encke.tape.compiled.operators import tape_begin, tape_give, tape_keep, tape_observe
from encke.tape.cost.pace import SMALL
from encke.tape.policy import Site
from encke.tape.tape import Tape


def partition(
    gm: fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    within: Partition = internals.min_cut,
    lays_out: Callable[[fx.GraphModule], bool] | None = None,
    num_fwd_outputs: int,
    **options: Any,
) -> Split:
    """Split a joint graph with `within`, and send what is kept through the model's tape.

    For backends other than Inductor, which build on AOTAutograd: their `partition_fn`.

    lays_out  whether the compiler is going to lay images out anew, with channels last
    """
    tape, parameters = _tape_of(joint_inputs)
    if attached:
        # Models of one class share code where they can: not across this line.
        internals.serve_only_where(
            has_tape if tape is not None else _has_no_tape, of=["a model with a tape, or none"]
        )
    else:
        internals.uninstall(partition)  # the last one was dropped, not detached
    if tape is None:
        return within(gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)
    plain, _ = within(
        fx.GraphModule(gm, copy.deepcopy(gm.graph)),
        joint_inputs,
        num_fwd_outputs=num_fwd_outputs,
        **options,
    )
    roles.spell_out_thresholds(gm.graph)
    inputs = gm.graph.find_nodes(op="placeholder")
    decisions = roles.decisions(gm.graph)
    added = {node.name for node in decisions}
    forward, backward = internals.split_with_decisions(
        gm,
        joint_inputs,
        decisions,
        within=within,
        num_fwd_outputs=num_fwd_outputs,
        **options,
    )
    weights = {
        inputs[i].name for i in options.get("static_lifetime_input_indices") or parameters
    }
    # The smallest is never copied into another layout.
    known = min((inputs[i] for i in parameters), key=roles.count_of).name
    order.split_convolutions(backward.graph)
    waits = order.weights_first(backward.graph)
    order.sink(backward.graph)
    rewrite = _Rewrite(tape, forward, backward, num_fwd_outputs, added, weights, known)
    rewrite.run(parameters, plain=_saved_bytes(plain, num_fwd_outputs))
    if lays_out is not None and lays_out(forward):
        _lay_out_with_channels_last(backward)
    internals.keep_order(backward, waits)
    return forward, backward


def _tape_of(joint_inputs: Sequence[Any]) -> tuple[Tape | None, dict[int, str]]:
    """The tape whose model has the most parameters in the graph, and which those are."""
    best: tuple[Tape | None, dict[int, str]] = None, {}
    for tape in attached:
        if tape.model is None:
            continue
        found = internals.parameters_among(joint_inputs, tape.model)
        if len(found) > len(best[1]):
            best = tape, found
    return best


def _has_no_tape(parameter: Tensor) -> bool:
    return not has_tape(parameter)


class _Rewrite:
    """One forward and one backward graph, and what is done to them."""

    def __init__(
        self,
        tape: Tape,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        outputs: int,
        added: set[str],
        weights: set[str],
        known: str,
    ) -> None:
        self._tape, self._added = tape, added
        self._forward, self._backward = forward, backward
        self._outputs = outputs
        assert tape.model is not None
        self._names = {id(m): name for name, m in tape.model.named_modules()}
        self._graph = CompiledGraph(tape)
        self._counts: dict[tuple[str, str], int] = {}
        given = forward.graph.find_nodes(op="placeholder")
        self._activations = roles.reached(n for n in given if n.name not in weights)
        self._parameter = next(n for n in given if n.name == known)

    def run(self, parameters: dict[int, str], *, plain: int) -> None:
        output = self._forward.graph.output_node()
        results = list(output.args[0])  # type: ignore[arg-type]
        inward = {n.name: n for n in self._backward.graph.find_nodes(op="placeholder")}
        public = set(results[: self._outputs])
        chosen: dict[fx.Node, fx.Node] = {}
        for saved in dict.fromkeys(results[self._outputs :]):
            mine = inward.get(getattr(saved, "name", ""))
            if mine is None or saved.op == "placeholder":
                continue
            if saved not in public and self._may_keep(saved, mine):
                chosen[saved] = mine
            else:
                self._graph.beside += _bytes(saved)
        if not chosen:
            return
        handles = self._keep(list(chosen))
        output.args = (
            tuple(
                handles.get(n, n) if i >= self._outputs else n for i, n in enumerate(results)
            ),
        )
        for saved, place in zip(chosen, self._graph.places, strict=True):
            if place.sides and not saved.users:
                self._forward.graph.erase_node(saved)
        self._give({chosen[saved]: handles[saved] for saved in chosen})
        self._forward.recompile()
        self._backward.recompile()
        self._graph.plain = plain
        self._remember(parameters)

    def _may_keep(self, saved: fx.Node, in_backward: fx.Node) -> bool:
        value = roles.tensor_of(saved)
        if value is None or type(value.layout) is not torch.layout:
            return False
        if saved.op != "call_function" or _bytes(saved) < SMALL:
            return False
        if _dense_strides(value) is None or _asks_for_strides(in_backward):
            return False
        if not internals.has_symbols([*value.shape, *value.stride()], in_backward.graph):
            return False
        if value.dtype in BOOLS | INTEGERS:
            return True
        if value.dtype not in FLOATS or saved not in self._activations:
            return False  # weights in another type or form are weights still
        return not roles.must_be_exact(saved, in_backward)

    # -- forward -------------------------------------------------------------------------

    def _keep(self, chosen: list[fx.Node]) -> dict[fx.Node, fx.Node]:
        graph, number = self._forward.graph, self._graph.number
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            token = _call(graph, tape_begin, (self._parameter, number))
        handles: dict[fx.Node, fx.Node] = {}
        materialised = frozenset(chosen)
        for index, saved in enumerate(chosen):
            values = roles.side_of(saved, materialised)
            self._graph.places.append(
                Place(
                    site=self._site(saved),
                    order=index,
                    added=saved.name in self._added,
                    sides=values is not None,
                )
            )
            given = saved if values is None else values
            with graph.inserting_before(given.next):
                handles[saved] = _call(graph, tape_keep, (given, token, number, index))
        return handles

    def _site(self, node: fx.Node) -> Site:
        """Where in the model a value is made."""
        known = [self._names[i] for i in internals.modules_around(node) if i in self._names]
        module = known[-1] if known else ""
        op = internals.traced_from(node) or internals.op_name(node.target) or node.name
        index = self._counts.get((module, op), 0)
        self._counts[module, op] = index + 1
        return Site(module, op, "output", index)

    # -- backward ------------------------------------------------------------------------

    def _give(self, handles: dict[fx.Node, fx.Node]) -> None:
        graph = self._backward.graph
        meetings = order.Meetings(graph, handles)
        uses = {n: meetings.uses(n) for n in handles}
        after = {
            (n, users[0]): meetings.before(n, users[0])
            for n, groups in uses.items()
            for users in groups
        }
        renamed: dict[fx.Node, fx.Node] = {}
        for tensor, handle in handles.items():
            with graph.inserting_before(tensor):
                renamed[tensor] = graph.placeholder(handle.name)
            renamed[tensor].meta = {"val": handle.meta["val"], "encke_handle": True}
        inputs = [n for n in graph.find_nodes(op="placeholder") if n not in handles]
        tensors = [n for n in inputs if roles.tensor_of(n) is not None]
        sizes = [n for n in inputs if isinstance(n.meta.get("val"), torch.SymInt)]
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            token = _call(graph, tape_observe, (tensors, sizes, self._graph.number))
        for place, (tensor, placeholder) in zip(
            self._graph.places, renamed.items(), strict=True
        ):
            for users in uses[tensor]:
                with graph.inserting_before(users[0]):
                    first = [token, *after[tensor, users[0]]]
                    given = _given(graph, tensor.meta["val"], placeholder, first, place)
                for user in users:
                    user.replace_input_with(tensor, given)
            graph.erase_node(tensor)

    def _remember(self, parameters: dict[int, str]) -> None:
        """Keep the backward graph for probes, before the backend rewrites it."""
        program = fx.GraphModule(self._backward, copy.deepcopy(self._backward.graph))
        results: Sequence[Any] = program.graph.output_node().args[0]  # type: ignore[assignment]
        given = {i: name for i, name in parameters.items() if results[i] is not None}
        matrices = {i: name for i, name in given.items() if results[i].meta["val"].ndim > 1}
        self._graph.backward = program
        self._graph.parameters = matrices or given
        self._tape.graphs.append(self._graph)


def _lay_out_with_channels_last(backward: fx.GraphModule) -> None:
    """Give images as the compiled forward will have kept them, not as they were traced.

    Only speed is at stake: an operator gives what it was told to, and copies if it must. What
    one waits for is in memory because of that, and lies there in the same way.
    """
    waited_for: dict[fx.Node, None] = {}
    for node in backward.graph.find_nodes(op="call_function", target=tape_give):
        value = _with_channels_last(node)
        if value is not None:
            node.update_arg(3, list(value.stride()))
            node.meta["val"] = value
        waited_for |= dict.fromkeys(node.args[1][1:])
    for node in waited_for:
        value = _with_channels_last(node)
        if value is not None and not roles.is_product(node):
            internals.lay_out(node, value)
    backward.recompile()


def _with_channels_last(node: fx.Node) -> Tensor | None:
    """What a node stands for, with channels last; None if it is no image, or is so already."""
    value = node.meta["val"]
    if value.ndim != 4 or not value.is_contiguous():
        return None
    value = value.contiguous(memory_format=torch.channels_last)
    return value if all(isinstance(stride, int) for stride in value.stride()) else None


def _call(graph: fx.Graph, op: Any, args: tuple[Any, ...]) -> fx.Node:
    """A call of one of the tape's operators, with what its result looks like."""
    node = graph.call_function(op, args)
    values = fx.node.map_arg(args, lambda n: n.meta["val"])
    node.meta["val"] = op(*values)
    return node


def _given(
    graph: fx.Graph, value: Tensor, handle: fx.Node, first: list[fx.Node], place: Place
) -> fx.Node:
    """What a handle stands for, once some others have been computed."""
    size = internals.size_nodes(value.shape, graph)
    stride = internals.size_nodes(_dense_strides(value) or (), graph)
    given = _call(graph, tape_give, (handle, first, size, stride, _form_of(value)))
    return _truth(graph, given, is_zero=place.sides) if value.dtype == torch.bool else given


def _form_of(value: Tensor) -> torch.dtype:
    """In which dtype a kept tensor is given back.

    Truth values as bfloat16 on a CPU: Inductor's code loads those eight at a time, and truth
    values one by one, which takes ten times as long.
    """
    if value.dtype == torch.bool and value.device.type == "cpu":
        return torch.bfloat16
    return value.dtype


def _truth(graph: fx.Graph, given: fx.Node, *, is_zero: bool) -> fx.Node:
    """Truth values from what was given for them: 0 and 1, or themselves."""
    if given.meta["val"].dtype != torch.bool:
        compare = torch.ops.aten.eq.Scalar if is_zero else torch.ops.aten.ne.Scalar
        return _call(graph, compare, (given, 0))
    if is_zero:
        return _call(graph, torch.ops.aten.logical_not.default, (given,))
    return given


def _bytes(node: fx.Node) -> int:
    value = roles.tensor_of(node)
    return 0 if value is None else roles.count_of(node) * value.element_size()


def _saved_bytes(forward: fx.GraphModule, outputs: int) -> int:
    """Bytes that a forward graph keeps for backward beside its inputs and results."""
    results: Sequence[Any] = forward.graph.output_node().args[0]  # type: ignore[assignment]
    saved = {n for n in results[outputs:] if isinstance(n, fx.Node) and n.op != "placeholder"}
    return sum(_bytes(node) for node in saved - set(results[:outputs]))


def _dense_strides(value: Tensor) -> tuple[Any, ...] | None:
    """Strides without gaps, in the order of a traced tensor's own; None if it overlaps.

    A part of a larger tensor (attention's queries among queries, keys and values) is kept
    without what lies between: whoever reads it takes any strides.
    """
    try:
        if torch.ops.aten.is_non_overlapping_and_dense(value):
            return tuple(value.stride())
    except RuntimeError:  # its strides are symbols that nothing is known of
        return None
    if not all(isinstance(s, int) for s in (*value.shape, *value.stride())):
        return None
    order = sorted(range(value.ndim), key=lambda d: (value.stride(d), value.shape[d]))
    found, room, step = [1] * value.ndim, 0, 1
    for d in order:
        if value.shape[d] > 1 and value.stride(d) <= room:
            return None
        found[d] = step
        room += (value.shape[d] - 1) * value.stride(d)
        step *= value.shape[d]
    return tuple(found)


def _asks_for_strides(in_backward: fx.Node) -> bool:
    """Whether an op reads what is kept by the address of its elements."""
    value = roles.tensor_of(in_backward)
    if value is not None and _dense_strides(value) == tuple(value.stride()):
        return False
    return any(
        internals.op_name(n.target) == "as_strided" for n in roles.reached([in_backward])
    )
