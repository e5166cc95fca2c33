"""The networks of the zoo are the ones they are called after, and can be trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from encke.errors import UnsupportedError
from encke.study import zoo
from encke.study.zoo.adjacency import normalised_adjacency
from encke.study.zoo.mlp import mlp
from encke.study.zoo.samples import IGNORED, cross_entropy, smooth_fields

#: Options that make each model small enough to run in a moment.
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 16},
    "alexnet": {"size": 64, "classes": 5, "hidden": 32},
    "vgg16": {"size": 32, "classes": 5, "hidden": 32},
    "resnet18": {"size": 32, "width": 8, "classes": 5},
    "resnet50": {"size": 32, "width": 8, "classes": 5},
    "resnet_cifar": {"depth": 8, "width": 4},
    "gpt": {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 12, "vocab": 11},
    "vit_tiny": {"size": 16, "patch": 4, "depth": 2, "classes": 5},
    "gcn": {"features": 30, "hidden": 8, "nodes": 20},
    "graphsage": {"features": 30, "hidden": 8, "nodes": 20},
    "unet": {"width": 4, "rows": 16, "columns": 32, "depth": 2},
}
GPT2 = {"vocab": 50257, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("alexnet", {}, 61_100_840),
        ("vgg16", {}, 138_357_544),
        ("vgg16", {"batch_norm": True}, 138_365_992),
        ("resnet18", {}, 11_689_512),
        ("resnet50", {}, 25_557_032),
        ("resnet_cifar", {}, 269_722),
        ("gpt", GPT2, 124_439_808),
        ("gpt", {**GPT2, "tie_weights": False}, 124_439_808 + 50257 * 768),
        ("vit_tiny", {}, 5_717_416),
        ("mlp", {}, 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10),
        ("gcn", {}, 1433 * 64 + 64 * 64 + 64 * 7 + 64 + 64 + 7),
    ],
)
def test_a_network_has_its_well_known_number_of_parameters(
    name: str, options: dict[str, Any], count: int
) -> None:
    with torch.device("meta"):
        assert parameters(zoo.build(name, **options)) == count


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("alexnet", (2, 1000)),
        ("vgg16", (2, 1000)),
        ("resnet18", (2, 1000)),
        ("resnet50", (2, 1000)),
        ("vit_tiny", (2, 1000)),
        ("gpt", (2, 256, 65)),
    ],
)
def test_full_sized_samples_pass_forward_and_backward(
    name: str, shape: tuple[int, ...]
) -> None:
    model = zoo.model(name)
    with torch.device("meta"):
        network = model.build()
    batch = model.sample_batch(2).to("meta")
    output = network(*batch.inputs)
    assert output.shape == shape
    model.loss(output, batch.target).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.slow
def test_a_few_steps_on_one_batch_lower_the_loss(name: str) -> None:
    dropout = {"dropout": 0.0} if "dropout" in zoo.model(name).options else {}
    model = zoo.model(name, **SMALL[name], **dropout)
    network = model.build(seed=1)
    batch = model.sample_batch(4)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = model.loss_of(network, batch)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "part", "shapes"),
    [
        ("alexnet", "features", [(256, 6, 6)]),
        ("vgg16", "features", [(512, 7, 7)]),
        ("resnet18", "stages", [(64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7)]),
        ("resnet50", "stages", [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)]),
    ],
)
def test_activations_have_the_shapes_of_the_papers(
    name: str, part: str, shapes: list[tuple[int, ...]]
) -> None:
    with torch.device("meta"):
        network = zoo.build(name)
        images = torch.empty(1, 3, 224, 224)
    seen = []
    section = network.get_submodule(part)
    for module in section if part == "stages" else [section]:
        module.register_forward_hook(lambda _, __, output: seen.append(tuple(output.shape[1:])))
    network(images)
    assert seen == shapes


def test_the_bottleneck_strides_in_its_3x3_convolution() -> None:
    with torch.device("meta"):
        network = zoo.build("resnet50")
    for stage in list(network.stages)[1:]:
        convolutions = [m for m in stage[0].branch if isinstance(m, nn.Conv2d)]
        assert [m.kernel_size[0] for m in convolutions] == [1, 3, 1]
        assert [m.stride[0] for m in convolutions] == [1, 2, 1]


def test_every_model_of_the_registry_is_tested_here() -> None:
    assert set(zoo.names()) == set(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_samples_and_seeded_weights_repeat_and_leave_torchs_generator_alone(name: str) -> None:
    model = zoo.model(name, **SMALL[name])
    before = torch.random.get_rng_state()
    first, second = model.sample_batch(3, seed=7), model.sample_batch(3, seed=7)
    weights = [model.build(seed=5).state_dict() for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.inputs[0], second.inputs[0])
    assert torch.equal(first.target, second.target)
    assert not torch.equal(first.target, model.sample_batch(3, seed=8).target)
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert torch.equal(model.sample_input(3, seed=7)[0], first.inputs[0])


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UnsupportedError, match=r"'resnet19'.*mlp.*resnet18.*unet"):
        zoo.build("resnet19")


def test_an_unknown_option_lists_the_options() -> None:
    with pytest.raises(UnsupportedError, match=r"clases.*classes=1000.*size=224"):
        zoo.build("resnet18", clases=10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet_cifar", {"depth": 21}, "depth is 21"),
        ("resnet_cifar", {"shortcut": "none"}, "'none'"),
        ("gpt", {"n_embd": 385}, "385 does not divide into 6 heads"),
        ("vit_tiny", {"patch": 15}, "patches of 15"),
        ("gcn", {"aggregate": "sum"}, "'sum'"),
        ("gcn", {"depth": 0}, "depth is 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        zoo.build(name, **options)


@pytest.mark.parametrize(
    ("name", "shape"), [("vit_tiny", (1, 3, 17, 17)), ("unet", (1, 1, 18, 32))]
)
def test_inputs_of_the_wrong_size_are_refused(name: str, shape: tuple[int, ...]) -> None:
    network = zoo.build(name, **SMALL[name])
    with pytest.raises(UnsupportedError, match=str(shape[2])):
        network(torch.zeros(shape))


def test_gpt_refuses_more_tokens_than_its_positions() -> None:
    with pytest.raises(UnsupportedError, match="block_size is 12"):
        zoo.build("gpt", **SMALL["gpt"])(torch.zeros(1, 13, dtype=torch.int64))


def test_gpt_does_not_look_ahead() -> None:
    model = zoo.model("gpt", **SMALL["gpt"])
    network = model.build(seed=0).eval()
    (tokens,) = model.sample_input(1)
    changed = tokens.clone()
    changed[0, 6:] = (changed[0, 6:] + 1) % 11
    torch.testing.assert_close(network(tokens)[:, :6], network(changed)[:, :6])
    assert not torch.allclose(network(tokens)[:, 6:], network(changed)[:, 6:])


@pytest.mark.parametrize("name", ["gcn", "graphsage"])
def test_both_ways_to_aggregate_give_the_same_scores(name: str) -> None:
    inputs = zoo.model(name, **SMALL[name]).sample_input(2)
    outputs = [
        zoo.build(name, seed=0, **SMALL[name], aggregate=way).eval()(*inputs)
        for way in ("sparse", "index_add")
    ]
    torch.testing.assert_close(*outputs)


def test_adjacency_is_that_of_the_papers() -> None:
    edges = torch.tensor([[0, 1], [1, 0], [1, 2], [3, 3]])  # one twice, one a loop
    neighbours = torch.zeros(4, 4)
    neighbours[[0, 1, 1, 2], [1, 0, 2, 1]] = 1.0
    looped = neighbours + torch.eye(4)
    scale = looped.sum(1).rsqrt().diag()
    symmetric = normalised_adjacency(edges, 4, kind="symmetric")
    torch.testing.assert_close(symmetric.to_dense(), scale @ looped @ scale)
    mean = normalised_adjacency(edges, 4, kind="mean")
    degrees = neighbours.sum(1, keepdim=True).clamp_min(1.0)
    torch.testing.assert_close(mean.to_dense(), neighbours / degrees)
    with pytest.raises(UnsupportedError, match="'sum'"):
        normalised_adjacency(edges, 4, kind="sum")


def test_synthetic_images_are_smooth_and_standardised() -> None:
    fields = smooth_fields((4, 3, 32, 32), torch.Generator().manual_seed(0))
    assert abs(float(fields.mean())) < 1e-5
    assert abs(float(fields.std()) - 1) < 1e-5
    assert float(fields.diff(dim=-1).square().mean()) < 0.3  # white noise: 2


def test_ignored_targets_do_not_count() -> None:
    scores = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([0, 1, 2, IGNORED, IGNORED, IGNORED])
    torch.testing.assert_close(
        cross_entropy(scores, target), cross_entropy(scores[:3], target[:3])
    )


def test_a_family_of_ones_own_is_built_like_the_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(zoo.registry, "_FAMILIES", dict(zoo.registry._FAMILIES))
    mine = zoo.Family(
        name="mine",
        about="an MLP",
        network=mlp,
        sample=zoo.model("mlp").family.sample,
        loss=cross_entropy,
    )
    zoo.register(mine)
    assert "mine" in zoo.names()
    assert zoo.build("mine", classes=3)(torch.zeros(2, 64)).shape == (2, 3)
    with pytest.raises(UnsupportedError, match="'mine' already"):
        zoo.register(mine)


def test_a_family_whose_network_has_options_without_default_is_refused() -> None:
    family = zoo.model("mlp").family
    with pytest.raises(UnsupportedError, match="in_features, out_features have no default"):
        zoo.Family(
            name="linear",
            about="a layer",
            network=nn.Linear,
            sample=family.sample,
            loss=family.loss,
        )


def test_an_empty_sample_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="batch is 0"):
        zoo.model("mlp").sample_batch(0)
