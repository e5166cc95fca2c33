"""What is used of torch.compile beyond its public interface, all in one place.

Written against torch 2.13, and tested with that version alone: where Inductor takes a
partitioner (`custom_partitioner_fn`), the min-cut partitioner and the mark by which it keeps a
value, what has one op wait for another (`control_deps`), what puts a value into memory in an
order (`inductor_force_stride_order`), whether memory is held to be used again
(`allow_buffer_reuse`), the fake tensors that stand for a model's parameters while it is traced,
what a node's `meta` says about where it comes from, how a guard of one's own is added to those
of a frame, and how a compiled artifact is kept out of the caches on disk.
`tests/tape/test_compile_facts.py` tells when one changes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import fx, nn

log = logging.getLogger("encke")

Split = tuple[fx.GraphModule, fx.GraphModule]
Partition = Callable[..., Split]
_Function = TypeVar("_Function", bound=Callable[..., object])


def at_trace_time(function: _Function) -> _Function:
    """Have Dynamo call `function` for real while it traces, and take the result as constant.

    The public `torch.compiler.assume_constant_result` does the same and imports Dynamo, which
    takes seconds, whether or not anything is compiled.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def inductor_is_loaded() -> bool:
    return "torch._inductor.config" in sys.modules


def dynamo_is_loaded() -> bool:
    return "torch._dynamo" in sys.modules


def tell_hooks_apart(apart: bool) -> None:
    """Whether code compiled for a module without hooks may run for one like it with hooks."""
    from torch._dynamo import config

    config.skip_nnmodule_hook_guards = not apart


def install(partition: Partition) -> bool:
    """Let Inductor split joint graphs with `partition`; whether it did not before.

    It is also kept from holding memory that a later op of the same size could use: what is
    decoded comes and goes, and until then an allocator has better uses for it.
    """
    from torch._inductor import config

    if not hasattr(config, "custom_partitioner_fn"):
        _say_unsupported()
        return False
    if getattr(config.custom_partitioner_fn, "partition", None) is partition:
        return False
    config.custom_partitioner_fn = _inductor_partitioner(
        partition, config.custom_partitioner_fn, config.allow_buffer_reuse
    )
    config.allow_buffer_reuse = False
    return True


@cache
def _say_unsupported() -> None:
    log.warning(
        "torch %s lets nobody else split its graphs: compiled models keep their tensors as "
        "they are; torch 2.13 is what this is written for",
        torch.__version__,
    )


def uninstall(partition: Partition) -> None:
    """Give Inductor back the partitioner that it had before `install`."""
    if not inductor_is_loaded():
        return
    from torch._inductor import config

    installed = getattr(config, "custom_partitioner_fn", None)
    if getattr(installed, "partition", None) is partition:
        config.custom_partitioner_fn = installed.before  # type: ignore[union-attr]
        config.allow_buffer_reuse = installed.reused  # type: ignore[union-attr]


def _inductor_partitioner(partition: Partition, before: Any, reused: bool) -> Any:
    from torch._inductor.codecache import BypassFxGraphCache
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class InductorPartitioner(CustomPartitionerFn):
        def __init__(self) -> None:
            self.partition, self.before, self.reused = partition, before, reused

        def __call__(
            self, gm: fx.GraphModule, joint_inputs: Sequence[object], **options: Any
        ) -> Split:
            return partition(
                gm, joint_inputs, within=before or min_cut, lays_out=lays_out_anew, **options
            )

        def uuid(self) -> Any:
            # What is compiled speaks of a tape of this process: no cache may keep it.
            raise BypassFxGraphCache("a tape's graphs belong to one process")

    return InductorPartitioner()


def min_cut(gm: fx.GraphModule, joint_inputs: Sequence[object], **options: Any) -> Split:
    """The partitioner that Inductor uses by default."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    return min_cut_rematerialization_partition(gm, joint_inputs, **options)


def lays_out_anew(forward: fx.GraphModule) -> bool:
    """Whether Inductor will put the images of a forward graph into channels-last layout."""
    from torch._inductor.graph import GraphLowering

    return bool(GraphLowering.decide_layout_opt(forward, is_inference=False))


def split_with_decisions(
    gm: fx.GraphModule,
    joint_inputs: Sequence[object],
    decisions: Sequence[fx.Node],
    *,
    within: Partition,
    num_fwd_outputs: int,
    **options: Any,
) -> Split:
    """Split a joint graph so that forward makes `decisions`, and backward gets them kept.

    The partitioner leaves to backward what only backward needs, whatever marks it bears; so
    for the time being decisions are results of the forward graph. It is also told that values
    which backward needs whole may be computed again, as long as that takes no product: an
    activation's output follows from its input, and only one of them is kept.
    """
    from torch._functorch import config
    from torch.utils.checkpoint import CheckpointPolicy

    for node in decisions:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    end = num_fwd_outputs + len(decisions)
    _set_results(gm.graph, slice(num_fwd_outputs, num_fwd_outputs), list(decisions))
    with config.patch(ban_recompute_materialized_backward=False):
        forward, backward = within(gm, joint_inputs, num_fwd_outputs=end, **options)
    _set_results(forward.graph, slice(num_fwd_outputs, end), [])
    forward.recompile()
    return forward, backward


def _set_results(graph: fx.Graph, place: slice, nodes: list[fx.Node]) -> None:
    """Put `nodes` in the place of some of a graph's results."""
    output = graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    results[place] = nodes
    output.args = (tuple(results),)
    described = output.meta.get("desc")
    if described is not None:
        new = list(described)
        new[place] = [None] * len(nodes)
        output.meta["desc"] = type(described)(new)


def keep_order(gm: fx.GraphModule, waits: dict[fx.Node, fx.Node]) -> None:
    """Have Inductor run each op of `waits` after the one that it waits for."""
    try:
        from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    except ImportError:  # older versions have the graph's order as a hint
        return
    from torch.utils._ordered_set import OrderedSet

    preserve_node_ordering(gm.graph, {n: OrderedSet([first]) for n, first in waits.items()})
    gm.recompile()


def lay_out(node: fx.Node, value: torch.Tensor) -> None:
    """Have Inductor put what a node stands for into memory, with the strides of `value`."""
    from torch._inductor import inductor_prims  # noqa: F401 - defines the op

    op = torch.ops.prims.inductor_force_stride_order.default
    with node.graph.inserting_after(node):
        laid_out = node.graph.call_function(op, (node, list(value.stride())))
    laid_out.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(laid_out, delete_user_cb=lambda user: user is not laid_out)


def serve_only_where(holds: Callable[[torch.Tensor], bool], *, of: Iterable[str]) -> bool:
    """Let the code that is being compiled serve only models of which `holds` is true.

    It is asked with a parameter, at each call; where it is not true, Dynamo compiles anew.
    Returns whether the graph has a parameter to ask with.

    of  what the guard says when torch explains why it compiled again
    """
    from torch._guards import Guard, TracingContext

    context = TracingContext.try_get()
    if context is None:
        return False

    def create(builder: Any, guard: Any) -> None:
        builder.get_guard_manager(guard).add_lambda_guard(holds, list(of), None)

    for tensor, traced in context.tensor_to_context.items():  # type: ignore[no-untyped-call]
        source = getattr(traced, "tensor_source", None)
        if isinstance(tensor, nn.Parameter) and source is not None:
            context.guards_context.dynamo_guards.add(Guard(source, create))
            return True
    return False


def forget_code_of(model: nn.Module) -> None:
    """Have what was compiled of a model's forward, for it or one like it, compiled again."""
    from torch._dynamo.eval_frame import remove_from_cache

    remove_from_cache(type(model).forward)


def is_tangent(node: fx.Node) -> bool:
    """Whether a node stands for a gradient that comes into the backward graph."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def parameters_among(joint_inputs: Sequence[Any], model: nn.Module) -> dict[int, str]:
    """Which inputs of the graph that is being compiled are parameters of `model`."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return {}
    converter = context.fake_mode.fake_tensor_converter
    primals = joint_inputs[0]
    storages = {
        x.untyped_storage()._cdata: i
        for i, x in enumerate(primals)
        if isinstance(x, torch.Tensor) and x.layout is torch.strided
    }
    found: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        fake = converter._get_memo(parameter)
        if fake is not None and fake.layout is torch.strided:
            index = storages.get(fake.untyped_storage()._cdata)
            if index is not None:
                found[index] = name
    return found


def modules_around(node: fx.Node) -> list[int]:
    """Identities of the modules that a node was traced in, the innermost last."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    found = []
    for key in stack:
        number = str(key).partition("@")[0]
        if number.isdigit():
            found.append(int(number))
    return found


def traced_from(node: fx.Node) -> str:
    """The op that was decomposed into `node`: "_log_softmax_backward_data"."""
    return op_name(node.meta.get("original_aten"))


def op_name(target: object) -> str:
    """The name of an operator without its namespace and overload; "" for anything else.

    >>> op_name(torch.ops.aten.relu.default)
    'relu'
    """
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    return ""


def namespace(target: object) -> str:
    return target.namespace if isinstance(target, torch._ops.OpOverload) else ""


def compiled_module(module: nn.Module) -> nn.Module:
    """The module inside what `torch.compile(module)` returned; any other is itself."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    while frames is not None and isinstance(module, frames.OptimizedModule):
        module = module._orig_mod
    return module


def expected(size: Any) -> int:
    """A size as a number: as it was while tracing, where it may change."""
    if isinstance(size, int):
        return size
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return optimization_hint(size, fallback=0)


def _symbols(graph: fx.Graph) -> dict[Any, fx.Node]:
    """The symbols of sizes that a graph is given, and where."""
    found: dict[Any, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr.is_symbol:
            found[value.node.expr] = node
    return found


def has_symbols(sizes: Sequence[Any], graph: fx.Graph) -> bool:
    """Whether `sizes` can be computed from what `graph` is given."""
    unknown = [size for size in sizes if not isinstance(size, int)]
    known = _symbols(graph) if unknown else {}
    return all(symbol in known for size in unknown for symbol in size.node.expr.free_symbols)


def size_nodes(sizes: Sequence[Any], graph: fx.Graph) -> list[int | fx.Node]:
    """Sizes as numbers, or as nodes computed from the symbols that `graph` is given.

    New nodes go where `graph` is set to insert.
    """
    if all(isinstance(size, int) for size in sizes):
        return list(sizes)
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    known = {symbol: fx.Proxy(node) for symbol, node in _symbols(graph).items()}
    found: list[int | fx.Node] = []
    for size in sizes:
        if isinstance(size, int):
            found.append(size)
            continue
        result = sympy_interp(PythonReferenceAnalysis, known, size.node.expr)
        if not isinstance(result, fx.Proxy):
            found.append(int(result))
            continue
        _note_values(result.node)
        found.append(result.node)
    return found


def _note_values(node: fx.Node) -> None:
    """Give a node made of sizes, and those before it, the value that they stand for."""
    if "val" not in node.meta:
        for before in node.all_input_nodes:
            _note_values(before)
        values = fx.node.map_arg(node.args, lambda n: n.meta["val"])
        node.meta["val"] = node.target(*values)  # type: ignore[operator]
