"""Lazy logits: losses without values, and everything else as with ordinary logits."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import encke
from encke.errors import StaleLogitsError
from encke.head.lazy import LazyHead, LazyLogits

pytestmark = pytest.mark.usefixtures("small_heads")

CLASSES, FEATURES = 50, 6
LABELS = torch.randint(0, CLASSES, (3, 7), generator=torch.Generator().manual_seed(1))
LABELS[0, :3] = -100


class Net(nn.Module):
    def __init__(self, *, tied: bool = False, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, FEATURES)
        self.body = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(torch.tanh(self.body(self.embedding(ids))))
        return result


IDS = torch.randint(0, CLASSES, (3, 7), generator=torch.Generator().manual_seed(2))
Loss = Callable[[Tensor], Tensor]


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}


def train(loss: Loss, *, lazy: bool, **options: Any) -> tuple[Any, ...]:
    """Loss, gradients and logits of one step."""
    net = Net(**options)
    if lazy:
        with LazyHead():
            logits = net(IDS)
            value = loss(logits)
        assert type(logits) is LazyLogits
    else:
        logits = net(IDS)
        value = loss(logits)
    value.sum().backward()
    return value.detach(), gradients(net), logits


def check_loss(loss: Loss, *, fused: bool = True, **options: Any) -> LazyLogits:
    """The same loss, gradients and, afterwards, logits; without values if `fused`."""
    ours, theirs = train(loss, lazy=True, **options), train(loss, lazy=False, **options)
    logits = ours[2]
    assert logits.is_computed != fused
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-8, atol=1e-12, equal_nan=True)
    assert torch.equal(logits.detach(), theirs[2].detach())
    return logits


def flat(logits: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.view(-1, CLASSES), LABELS.view(-1), **options)


def shifted(logits: Tensor) -> Tensor:
    return F.cross_entropy(
        logits[..., :-1, :].contiguous().view(-1, CLASSES), LABELS[..., 1:].reshape(-1)
    )


FUSED: dict[str, Loss] = {
    "view": flat,
    "reshape": lambda x: F.cross_entropy(x.reshape(21, CLASSES), LABELS.view(-1)),
    "reshape, a tuple": lambda x: F.cross_entropy(x.reshape((21, -1)), LABELS.view(-1)),
    "torch.reshape": lambda x: F.cross_entropy(
        torch.reshape(x, (-1, CLASSES)), LABELS.view(-1)
    ),
    "flatten": lambda x: F.cross_entropy(x.flatten(0, 1), LABELS.flatten()),
    "flatten up to -2": lambda x: F.cross_entropy(x.flatten(end_dim=-2), LABELS.flatten()),
    "sum": lambda x: flat(x, reduction="sum"),
    "none": lambda x: flat(x, reduction="none"),
    "smoothing": lambda x: flat(x, label_smoothing=0.1),
    "class weights": lambda x: flat(x, weight=torch.linspace(0, 1, CLASSES).double()),
    "another ignore_index": lambda x: F.cross_entropy(
        x.view(-1, CLASSES), LABELS.view(-1).clamp(min=0), ignore_index=0
    ),
    "module": lambda x: nn.CrossEntropyLoss()(x.view(-1, CLASSES), LABELS.view(-1)),
    "shifted": shifted,
    "shifted, one slice": lambda x: F.cross_entropy(
        x[:, 1:].reshape(-1, CLASSES), LABELS[:, 1:].reshape(-1)
    ),
    "one row of the batch": lambda x: F.cross_entropy(x[1], LABELS[1]),
    "a new dimension": lambda x: F.cross_entropy(x[None, 1].view(7, -1), LABELS[1]),
    "one token": lambda x: F.cross_entropy(x[1, 2], LABELS[1, 2]),
    "masked rows": lambda x: F.cross_entropy(x[LABELS != -100], LABELS[LABELS != -100]),
    "transposed": lambda x: F.cross_entropy(x.transpose(1, 2), LABELS),
    "permuted": lambda x: F.cross_entropy(x.permute(0, 2, 1), LABELS),
    "time first": lambda x: F.cross_entropy(
        x.transpose(0, 1).reshape(-1, CLASSES), LABELS.t().reshape(-1)
    ),
    "to the dtype it has": lambda x: flat(x.to(torch.float64).to("cpu")),
    "scaled": lambda x: flat(x * 0.25),
    "scaled from the left": lambda x: flat(3 * x),
    "divided": lambda x: flat(x / 7.0),
    "soft cap": lambda x: flat(torch.tanh(x / 0.5) * 0.5),
    "scaled soft cap": lambda x: flat((x * 2).div(0.5).tanh().mul(0.5) * 1.5),
    "log_softmax": lambda x: F.nll_loss(
        F.log_softmax(x.view(-1, CLASSES), dim=-1), LABELS.view(-1)
    ),
    "log_softmax, transposed": lambda x: nn.NLLLoss()(
        x.log_softmax(-1).transpose(1, 2), LABELS
    ),
    "two losses": lambda x: flat(x) + shifted(x * 0.5),
    "all ignored": lambda x: F.cross_entropy(
        x.view(-1, CLASSES), torch.full((21,), -100), reduction="sum"
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_loss_without_logits_equals_the_one_with_them(name: str) -> None:
    check_loss(FUSED[name])


@pytest.mark.parametrize("name", ["shifted", "smoothing", "soft cap", "two losses"])
def test_tied_weights(name: str) -> None:
    check_loss(FUSED[name], tied=True, bias=False)


COMPUTED: dict[str, Loss] = {
    "argmax before the loss": lambda x: flat(x) + 0 * x.argmax(-1).sum(),
    "softmax": lambda x: x.softmax(-1).square().sum(),
    "probabilities as targets": lambda x: F.cross_entropy(
        x.view(-1, CLASSES), torch.full((21, CLASSES), 1 / CLASSES).double()
    ),
    "a tensor as a factor": lambda x: flat(x * torch.tensor(2.0).double()),
    "a factor of zero": lambda x: flat(x * 0.0),
    "a mask in place": lambda x: flat(x.masked_fill_(torch.arange(CLASSES) == 3, -1e4)),
    "an assignment": lambda x: (x.__setitem__((0, 0), 1.0), flat(x))[1],
    "an addition in place": lambda x: flat(x.add_(1.0)),
    "some classes": lambda x: x[..., :30].square().mean(),
    "chosen rows": lambda x: x.view(-1, CLASSES)[torch.tensor([0, 0, 2])].square().mean(),
    "a list": lambda x: torch.cat([x, x]).square().mean(),
    "an einsum": lambda x: torch.einsum("abc,abc->", x, x),
    "as the second operand": lambda x: (torch.ones(()).double() - x).square().mean(),
    "classes and rows mixed": lambda x: x.view(-1).square().mean(),
    "iterated": lambda x: sum(row.square().mean() for row in x),
    "chunks": lambda x: sum(
        F.cross_entropy(c.flatten(0, 1), LABELS[:, :1].flatten()) for c in x.split(1, 1)
    ),
    "another function of the family": lambda x: F.multi_margin_loss(
        x.view(-1, CLASSES), LABELS.view(-1).clamp(min=0)
    ),
    "an old argument": lambda x: F.cross_entropy(
        x.view(-1, CLASSES), LABELS.view(-1), size_average=False
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.filterwarnings("ignore:size_average")
def test_whatever_is_not_understood_computes_the_logits(name: str) -> None:
    loss = COMPUTED[name]
    ours, theirs = train(loss, lazy=True), train(loss, lazy=False)
    assert ours[2].is_computed
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])
    assert torch.equal(ours[2].detach(), theirs[2].detach())


def lazy_logits(net: nn.Module | None = None) -> LazyLogits:
    with LazyHead():
        found = (net or Net())(IDS)
    assert type(found) is LazyLogits
    return found


USES: dict[str, Callable[[Tensor], Any]] = {
    "print": repr,
    "format": lambda x: f"{x[0, 0, 0]:.3f}",
    "item": lambda x: x[0, 0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.detach().numpy().tolist(),
    "float": lambda x: float(x[0, 0, 0]),
    "stride": lambda x: x.stride(),
    "contiguity": lambda x: x[:, 1:].is_contiguous(),
    "data": lambda x: x.data.sum().item(),
    "topk": lambda x: x.topk(3).indices.tolist(),
    "comparison": lambda x: (x > 0).sum().item(),
    "pickle": lambda x: pickle.loads(pickle.dumps(x.detach())).tolist(),
    "copy": lambda x: copy.deepcopy(x.detach()).tolist(),
    "clone": lambda x: type(x.clone()),
    "no_grad": torch.no_grad()(lambda x: (type(x.view(-1)), x.argmax(-1).tolist())),
    "inference_mode": torch.inference_mode()(lambda x: x.argmax(-1).tolist()),
    "metadata": lambda x: (x.shape, x.dtype, x.device, x.ndim, len(x), x.size(-1), x.dim(),
                           x.numel(), x.requires_grad, x.is_leaf, x.layout, x.nbytes,
                           x.is_floating_point(), torch.is_tensor(x)),
    "instance": lambda x: isinstance(x, Tensor),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_logits_can_be_used_like_any_tensor(name: str) -> None:
    use = USES[name]
    logits = lazy_logits()
    plain = Net()(IDS)
    if name == "print":
        assert repr(logits).split("grad_fn")[0] == repr(plain).split("grad_fn")[0]
    else:
        assert use(logits) == use(plain)


def test_metadata_computes_nothing() -> None:
    logits = lazy_logits()
    USES["metadata"](logits)
    USES["instance"](logits)
    assert logits.grad_fn is not None
    assert not logits.is_computed


def test_saving_gives_an_ordinary_tensor() -> None:
    file = io.BytesIO()
    torch.save({"logits": lazy_logits()}, file)
    file.seek(0)
    found = torch.load(file)["logits"]
    assert type(found) is Tensor
    torch.testing.assert_close(found, Net()(IDS))


def test_what_torch_refuses_is_refused_alike() -> None:
    logits, plain = lazy_logits(), Net()(IDS)
    for wrong in (
        lambda x: x.view(7, 11),
        lambda x: x[5],
        lambda x: x[0, 0, 0, 0],
        lambda x: F.cross_entropy(x.view(-1, CLASSES), LABELS),
        lambda x: F.cross_entropy(x.view(-1, CLASSES), LABELS.view(-1), reduction="men"),
        lambda x: copy.deepcopy(x),
        lambda x: x.numpy(),
        lambda x: x.transpose(0, 3),
    ):
        with pytest.raises(Exception) as theirs:
            wrong(plain)
        with pytest.raises(type(theirs.value)):
            wrong(logits)
    with pytest.raises(IndexError, match="Target 50 is out of bounds"):
        F.cross_entropy(lazy_logits().view(-1, CLASSES), torch.full((21,), 50))


def test_logits_used_after_the_loss_add_their_own_gradient() -> None:
    def loss(logits: Tensor) -> Tensor:
        return shifted(logits) + 0.1 * logits.square().mean()

    ours, theirs = train(loss, lazy=True), train(loss, lazy=False)
    torch.testing.assert_close(ours[:2], theirs[:2])


def test_tensors_made_from_logits_share_memory_as_they_would() -> None:
    def change(logits: Tensor) -> Tensor:
        view, copied = logits[:, 1:], logits[:, 1:].contiguous()
        logits[:, 2] = 5.0
        return torch.stack([view.sum(), copied.sum()])

    torch.testing.assert_close(change(lazy_logits()), change(Net()(IDS)))


# -- gradients of the logits themselves ------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "shifted",
        "smoothing",
        "soft cap",
        "two losses",
        "transposed",
        "log_softmax",
        "masked rows",
    ],
)
def test_the_gradient_of_the_logits_can_be_asked_for(name: str) -> None:
    loss = FUSED[name]
    plain = Net()(IDS)
    (expected,) = torch.autograd.grad(loss(plain), plain)
    logits = lazy_logits()
    value = loss(logits)
    (found,) = torch.autograd.grad(value, [logits], retain_graph=True)
    assert type(found) is Tensor
    torch.testing.assert_close(found, expected)
    seen: list[Tensor] = []
    logits.register_hook(seen.append)
    logits.retain_grad()
    assert not logits.is_computed
    value.backward()
    torch.testing.assert_close(seen, [expected])
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("name", ["soft cap", "log_softmax"])
def test_the_gradient_in_the_middle_can_be_asked_for(name: str) -> None:
    def middle(x: Tensor) -> tuple[Tensor, Tensor]:
        if name == "soft cap":
            inner = x / 0.5
            return inner, flat(inner.tanh() * 0.5)
        inner = x.log_softmax(-1)
        return inner, F.nll_loss(inner.view(-1, CLASSES), LABELS.view(-1))

    found = []
    for logits in (lazy_logits(), Net()(IDS)):
        inner, value = middle(logits)
        found.append(torch.autograd.grad(value, inner)[0])
    torch.testing.assert_close(*found)


def test_a_hook_before_the_loss_may_change_the_gradient() -> None:
    found = []
    for net, mode in ((Net(), LazyHead()), (Net(), torch.enable_grad())):
        with mode:
            logits = net(IDS)
            logits.register_hook(lambda g: 2 * g)
            flat(logits).backward()
        found.append(gradients(net))
    torch.testing.assert_close(*found)


def test_a_hook_after_the_loss_may_change_the_gradient() -> None:
    found = []
    for net, mode in ((Net(), LazyHead()), (Net(), torch.enable_grad())):
        with mode:
            logits = net(IDS)
            value = shifted(logits)
            logits.register_hook(lambda g: 2 * g)
            value.backward()
        found.append(gradients(net))
    torch.testing.assert_close(*found)


def test_second_derivatives() -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Net()
        with mode:
            value = shifted(net(IDS) * 0.5)
        first = torch.autograd.grad(value, list(net.parameters()), create_graph=True)
        sum(g.square().sum() for g in first).backward()
        found.append(gradients(net))
    torch.testing.assert_close(*found)


def test_backward_from_the_logits() -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Net()
        with mode:
            logits = net(IDS)
        logits.backward(torch.ones_like(logits))
        found.append(gradients(net))
    torch.testing.assert_close(*found)


# -- code that does not go through torch's Python functions ----------------------------------


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


@pytest.mark.parametrize("through", ["root", "slice", "soft cap"])
def test_an_autograd_function_of_the_users_own(through: str) -> None:
    change = {
        "root": lambda x: x,
        "slice": lambda x: x[:, 1:].transpose(1, 2),
        "soft cap": lambda x: torch.tanh(x / 2) * 2,
    }[through]
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Net()
        with mode:
            logits = net(IDS)
            value = Identity.apply(change(logits)).square().mean() + shifted(logits)
        value.backward()
        found.append((value.detach(), gradients(net)))
    torch.testing.assert_close(*found)


def test_hooks_of_modules() -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net, seen = Net(), []
        net.head.register_full_backward_hook(lambda m, i, o, seen=seen: seen.append(o[0]))
        net.head.register_forward_hook(lambda m, i, o: o * 1.0)
        with mode:
            flat(net(IDS)).backward()
        found.append((gradients(net), seen))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("what", ["head", "loss"])
def test_checkpoints(what: str, reentrant: bool) -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Net()
        with mode:
            if what == "head":
                hidden = net.body(net.embedding(IDS))
                value = flat(checkpoint(net.head, hidden, use_reentrant=reentrant))
            else:
                value = checkpoint(flat, net(IDS), use_reentrant=reentrant)
        value.backward()
        found.append((value.detach(), gradients(net)))
    torch.testing.assert_close(*found)


def test_inference_stays_as_it_is() -> None:
    net = Net()
    with LazyHead(), torch.no_grad():
        assert type(net(IDS)) is Tensor
    with LazyHead(), torch.inference_mode():
        assert type(net(IDS)) is Tensor
    with LazyHead():
        assert type(net.requires_grad_(False)(IDS)) is Tensor


def test_torch_func() -> None:
    net = Net()
    parameters = dict(net.named_parameters())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return flat(torch.func.functional_call(net, parameters, (IDS,)))

    expected = torch.func.grad(loss)(parameters)
    with LazyHead():
        torch.testing.assert_close(torch.func.grad(loss)(parameters), expected)


@pytest.mark.slow
def test_compile_and_trace() -> None:
    net = Net()
    expected = net(IDS)
    with LazyHead():
        compiled = torch.compile(net, backend="eager")
        torch.testing.assert_close(compiled(IDS) + 0, expected)
        traced = torch.jit.trace(net, (IDS,))
        torch.testing.assert_close(traced(IDS) + 0, expected)
    torch.compiler.reset()


# -- precision -------------------------------------------------------------------------------


@pytest.mark.parametrize("cast", [False, True])
def test_bfloat16_autocast(cast: bool) -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Net().float()
        with mode, torch.autocast("cpu", dtype=torch.bfloat16):
            logits = net(IDS)
            value = shifted(logits.float() if cast else logits)
        assert logits.dtype == torch.bfloat16
        value.backward()
        found.append((value.detach(), gradients(net), logits.detach()))
    (ours, our_gradients, our_logits), (theirs, their_gradients, their_logits) = found
    assert torch.equal(our_logits, their_logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    for name, gradient in their_gradients.items():
        assert (our_gradients[name] - gradient).norm() <= 1e-2 * gradient.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(dtype: torch.dtype) -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        net = Net().to(dtype)
        with mode:
            value = shifted(net(IDS).float())
        value.backward()
        assert value.dtype == torch.float32
        found.append((value.detach(), gradients(net)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    for name, gradient in found[1][1].items():
        assert (found[0][1][name] - gradient).float().norm() <= 2e-2 * gradient.float().norm()


# -- weights that change ---------------------------------------------------------------------


def step(net: nn.Module, *, lazy: bool = True) -> Tensor:
    """Logits after a step of an optimizer, in a variable that is read then."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with LazyHead() if lazy else torch.enable_grad():
        logits = net(IDS)
        flat(logits).backward()
    optimizer.step()
    return logits


def test_logits_read_after_a_step_are_those_from_before() -> None:
    logits = step(Net())
    assert torch.equal(logits.argmax(-1), step(Net(), lazy=False).argmax(-1))
    assert torch.equal(logits.detach(), step(Net(), lazy=False).detach())


def _several_steps(net: Net) -> None:
    # In a function without `assert`: pytest's refers to locals().
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(3):
        with LazyHead():
            out = {"logits": net(IDS)}
            loss = flat(out["logits"])
        loss.backward()
        optimizer.step()


def test_logits_that_nobody_reads_are_not_computed_at_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from encke.head.family import Family

    counted: list[Tensor] = []
    monkeypatch.setattr(Family, "compute", lambda self: counted.append(self.weight))
    net = Net()
    _several_steps(net)
    assert not any(weight is net.head.weight for weight in counted)


@pytest.mark.parametrize("how", ["in place", "data", "hidden"])
def test_logits_are_never_computed_from_changed_weights(how: str) -> None:
    net = Net()
    with LazyHead():
        hidden = torch.tanh(net.embedding(IDS)) * 1.0
        logits = net.head(hidden)
        flat(logits)
    if how == "data":
        net.head.weight.data.mul_(1.01)
    else:
        with torch.no_grad():
            (net.head.weight if how == "in place" else hidden).mul_(2)
    with pytest.raises(StaleLogitsError, match="used for the first time after"):
        logits.argmax(-1)
    with pytest.raises(encke.EnckeError):
        flat(logits)


# -- which layers ----------------------------------------------------------------------------


def test_a_layer_whose_output_is_computed_is_not_lazy_again() -> None:
    first, second = nn.Linear(4, 64), nn.Linear(64, 4)
    x = torch.randn(10, 4)
    with LazyHead():
        assert type(first(x)) is LazyLogits
        second(F.gelu(first(x)))
        assert type(first(x)) is Tensor


def test_ordinary_layers_are_not_lazy() -> None:
    with LazyHead():
        assert type(nn.Linear(16, 64)(torch.randn(10, 16))) is Tensor
        assert type(nn.Linear(4, 32)(torch.randn(10, 4))) is Tensor


def test_nested_modes() -> None:
    with LazyHead(), LazyHead():
        logits = Net()(IDS)
        value = flat(logits)
        torch.testing.assert_close(logits.sum(), Net()(IDS).sum())
    torch.testing.assert_close(value, flat(Net()(IDS)))


def test_logits_that_nobody_holds_leave_nothing() -> None:
    from encke.head.family import waiting

    before = len(waiting)
    with LazyHead():
        value = flat(Net()(IDS))
    assert len(waiting) == before
    value.backward()
