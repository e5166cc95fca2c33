"""What the tape takes for granted of torch, one fact a test.

If one of these fails after an upgrade of torch, look at `encke.tape.autograd` and
`encke.tape.storage.handle` before anything else.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_a_node_names_what_it_saved_by_role() -> None:
    y = F.relu(leaf(4))
    assert y.grad_fn.name() == "ReluBackward0"
    assert torch.equal(y.grad_fn._saved_result, y)
    z = F.linear(leaf(3, 4), leaf(5, 4), leaf(5))
    roles = {n for n in dir(z.grad_fn) if n.startswith("_raw_saved_")}
    assert roles == {"_raw_saved_mat1", "_raw_saved_mat2"}


def test_a_saved_tensor_is_read_with_its_history() -> None:
    x = leaf(4, 4)
    h = x.tanh()
    y = F.gelu(h)
    assert y.grad_fn._saved_self.grad_fn is h.grad_fn
    assert y.grad_fn._saved_self is h
    assert h.grad_fn._saved_result.grad_fn is h.grad_fn  # an output, too


def test_a_saved_leaf_is_read_as_the_very_object() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    y = torch.mm(leaf(4, 4), weight)
    assert y.grad_fn._saved_mat2 is weight


def test_a_view_of_a_parameter_knows_its_base() -> None:
    weight = nn.Parameter(torch.randn(5, 4))
    frozen = nn.Parameter(torch.randn(5, 4), requires_grad=False)
    for w in (weight, frozen):
        y = F.linear(leaf(3, 4), w, leaf(5))
        assert y.grad_fn._saved_mat2._base is w


def test_hooks_on_a_raw_saved_tensor_replace_what_is_held() -> None:
    h = leaf(8).tanh()
    y = F.gelu(h)
    raw = y.grad_fn._raw_saved_self
    packed: list[Tensor] = []

    def pack(t: Tensor) -> str:
        packed.append(t)
        return "a token"

    def unpack(token: str) -> Tensor:
        assert token == "a token"
        return torch.zeros(8)

    raw.register_hooks(pack, unpack)
    assert torch.equal(packed[0], h)  # pack ran at once
    assert raw.data == "a token"
    assert raw.unpack_hook is unpack
    (g,) = torch.autograd.grad(y.sum(), h)
    assert torch.equal(g, torch.full((8,), 0.5))  # gelu's slope at zero


def test_a_raw_saved_tensor_without_hooks_has_no_unpack_hook() -> None:
    y = F.gelu(leaf(8))
    assert y.grad_fn._raw_saved_self.unpack_hook is None


def test_hooks_can_be_set_once_only() -> None:
    y = F.gelu(leaf(8))  # a raw saved tensor must not outlive its node: it would crash
    raw = y.grad_fn._raw_saved_self
    raw.register_hooks(lambda t: t.clone(), lambda t: t)
    with pytest.raises(RuntimeError, match="already been set"):
        raw.register_hooks(lambda t: t.clone(), lambda t: t)


def test_a_hooked_saved_tensor_lets_the_original_go() -> None:
    x = leaf(64, 64)
    h = x.exp()
    held = weakref.ref(h)
    y = F.gelu(h)
    storage = StorageWeakRef(h.untyped_storage())
    for node, role in ((y.grad_fn, "self"), (h.grad_fn, "result")):
        getattr(node, f"_raw_saved_{role}").register_hooks(lambda t: None, lambda _: None)
    del h, node
    assert held() is None
    assert storage.expired()
    del y


def test_default_hooks_reach_a_node_before_it_can_be_seen() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0]):
        y = F.gelu(leaf(8))
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    assert y.grad_fn._raw_saved_self.unpack_hook is not None
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_an_emptied_alias_still_counts_the_versions_of_the_original() -> None:
    x = torch.zeros(1024)
    alias = x.detach()
    alias.data = torch.empty(0)
    assert alias.numel() == 0
    x.add_(1)
    assert alias._version == x._version == 1
    x[3:].mul_(2)  # through a view
    assert alias._version == 2
    storage = StorageWeakRef(x.untyped_storage())
    del x
    assert storage.expired()


def test_a_saved_output_shares_the_version_counter() -> None:
    y = leaf(8).tanh()
    seen = y.grad_fn._saved_result.detach()
    y.add_(1)
    assert seen._version == y._version == 1


def test_sequence_numbers_grow_within_a_thread() -> None:
    before = torch._C._autograd._get_sequence_nr()
    a = leaf(2).exp()
    b = a.exp()
    assert before <= a.grad_fn._sequence_nr() < b.grad_fn._sequence_nr()
    assert b.grad_fn._sequence_nr() < torch._C._autograd._get_sequence_nr()


def test_a_leafs_node_has_no_sequence_of_its_own() -> None:
    y = leaf(2).exp()
    accumulate = y.grad_fn.next_functions[0][0]
    assert accumulate.name() == "torch::autograd::AccumulateGrad"
    assert accumulate._sequence_nr() > y.grad_fn._sequence_nr()


def test_a_node_knows_the_shapes_of_its_outputs() -> None:
    q, _ = leaf(6, 4).exp().split([2, 4])
    shapes = [tuple(m.shape) for m in q.grad_fn._input_metadata]
    assert shapes == [(2, 4), (4, 4)]


def test_a_storage_weak_reference_never_matches_a_new_storage() -> None:
    x = torch.zeros(1 << 20)
    reference = StorageWeakRef(x.untyped_storage())
    address = x.untyped_storage()._cdata
    del x
    assert reference.expired()
    # The reference holds the struct, so no new storage can have its address.
    others = [torch.zeros(1 << 20) for _ in range(64)]
    assert all(o.untyped_storage()._cdata != address for o in others)


def test_views_and_aliases_have_one_storage_identity() -> None:
    x = torch.zeros(16)
    same = x.untyped_storage()._cdata
    assert x[3:].untyped_storage()._cdata == same
    assert x.detach().view(4, 4).untyped_storage()._cdata == same
    assert x.clone().untyped_storage()._cdata != same


def test_a_hook_can_ask_which_node_runs() -> None:
    y = leaf(4).exp()
    seen: list[Any] = []
    y.grad_fn.register_hook(lambda *_: seen.append(torch._C._current_autograd_node()))
    y.sum().backward()
    assert seen == [y.grad_fn]


def test_a_node_called_again_in_its_hook_gives_the_same_gradients() -> None:
    x, w = leaf(4, 6), leaf(5, 6)
    y = F.linear(x, w, leaf(5)).relu()
    twice: list[tuple[Any, Any]] = []

    def again(returned: Any, received: Any) -> None:
        node = torch._C._current_autograd_node()
        result = node(*received)
        twice.append((returned, result if isinstance(result, tuple) else (result,)))

    y.grad_fn.register_hook(again)
    y.grad_fn.next_functions[0][0].register_hook(again)
    y.square().sum().backward()
    assert len(twice) == 2
    for returned, result in twice:
        for a, b in zip(returned, result, strict=True):
            # The engine sums what a node returns to the shape of who gets it: a bias.
            assert a is None if b is None else torch.equal(a, b.sum_to_size(a.shape))


def test_a_function_mode_sees_operators_methods_and_functions() -> None:
    class Names(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func: Any, _t: Any, args: Any = (), kw: Any = None) -> Any:
            self.seen.append(func.__name__)
            return func(*args, **(kw or {}))

    x = leaf(2, 3, 4)
    with Names() as names:
        (x @ x.transpose(1, 2)).relu_()
        F.layer_norm(x, (4,))
        torch.cat([x, x])
    for name in ("matmul", "transpose", "relu_", "layer_norm", "cat"):
        assert any(name in seen for seen in names.seen), (name, names.seen)


def test_negative_dimensions_are_stored_as_unsigned_numbers() -> None:
    y = leaf(2, 3, 4).exp().transpose(-1, -2)
    assert y.grad_fn._saved_dim0 in (-1, (1 << 64) - 1)


def test_a_note_on_a_node_lives_as_long_as_the_node() -> None:
    y = leaf(4).tanh()
    y.grad_fn.metadata["note"] = 7
    gc.collect()
    assert y.grad_fn.metadata["note"] == 7
    assert (y * 1).grad_fn.next_functions[0][0].metadata["note"] == 7


def test_a_node_knows_the_shape_and_dtype_of_its_output() -> None:
    y = leaf(4, 3).double()
    about = y.grad_fn._input_metadata[0]
    assert (tuple(about.shape), about.dtype) == ((4, 3), torch.float64)


def test_autograd_does_not_know_the_number_that_is_added_to_a_tensor() -> None:
    y = leaf(4) + 3
    assert {n for n in dir(y.grad_fn) if n.startswith("_saved_")} == {"_saved_alpha"}


def test_an_lstm_layer_run_again_gives_a_workspace_only_where_gradients_are_on() -> None:
    """Not compared byte by byte: parts of it are never written."""
    layer = torch.nn.LSTM(8, 16)
    node = layer(torch.randn(5, 3, 8))[0].grad_fn
    tensors = ("input", "weight0", "weight1", "weight2", "weight3", "hx_", "cx_")
    options = [node._saved_reverse, [], node._saved_mode, 16, 1, True, False, False, True]
    inputs = [getattr(node, f"_saved_{name}").detach() for name in tensors]
    again = torch.mkldnn_rnn_layer(*inputs, *options)
    assert torch.equal(again[0], node._saved_result0)
    assert again[3].shape == node._saved_result3.shape
    with torch.no_grad():
        assert torch.mkldnn_rnn_layer(*inputs, *options)[3] is None
