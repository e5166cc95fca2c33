"""Ways to train: how they are written, and that each still computes the same training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from encke.errors import EnckeError
from encke.study import zoo
from encke.study.kinds import KINDS
from encke.study.recompute import divide, recompute, without
from encke.study.ways import Way, parse, parse_list

WRITTEN = {
    "plain": "plain",
    "bf16": "bf16 autocast",
    "checkpoint": "checkpoint",
    "save_on_cpu": "save_on_cpu",
    "group": "group, 2 bits",
    "group:bits=1": "group, 1 bit",
    "group:bits=2,adaptive=true": "ActNN/GACT's rule, 2 bits",
    "zfp": "zfp, 8 bits",
    "fixed:range=0.01": "fixed, 1 % of the range",
    "fixed:range=0.1,dither=true": "fixed, 10 % of the range, dithered",
    "fixed:abs=0.001,codec=fixed": "fixed, 0.001, codec fixed",
    "comet": "COMET's rule",
    "encke": "Encke, tolerance 0.01",
    "encke:tolerance=0.02,prefer=speed": "Encke, tolerance 0.02, prefer speed",
}


@pytest.mark.parametrize(("text", "label"), WRITTEN.items())
def test_a_way_has_a_label_and_is_written_back_as_it_was_read(text: str, label: str) -> None:
    way = parse(text)
    assert way.label == label
    assert parse(str(way)) == way
    assert Way(kind=way.kind, options=dict(way.options)) == way


def test_every_kind_is_written_about() -> None:
    assert {parse(text).kind for text in WRITTEN} == set(KINDS)


def test_a_list_of_ways_keeps_options_with_their_way() -> None:
    assert parse_list(" plain, fixed:range=0.1,dither=true ,encke ") == [
        parse("plain"),
        parse("fixed:range=0.1,dither=true"),
        parse("encke"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("enke", "policy is 'enke', did you mean 'encke'? Allowed are plain,"),
        ("encke:tolerence=0.1", "did you mean 'tolerance'? Allowed are tolerance, prefer"),
        ("encke:tolerance", "'tolerance' is no option=value"),
        ("encke:tolerance=much", "encke:tolerance is 'much', allowed is a number"),
        ("encke:tolerance=0", "tolerance is 0"),
        ("encke:tolerance=true", "allowed is a number"),
        ("fixed", "bounds none, it needs one of range"),
        ("fixed:range=0.1,abs=1", "bounds range, abs, it needs one"),
        ("fixed:range=0.1,dither=1", "allowed are true and false"),
        ("group:bits=3", "allowed are 1, 2, 4 and 8"),
        ("zfp:rate=-1", "-1"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(EnckeError) as refused:
        parse(text)
    assert said in str(refused.value)


def gradients(network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    network.zero_grad()
    network(x).square().mean().backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("vgg16", {"width": 2, "stages": 3, "hidden": 8}, 16),
        ("alexnet", {"hidden": 8}, 63),
        ("resnet_cifar", {"depth": 8, "width": 4}, 16),
        ("vit_tiny", {"size": 16, "patch": 4, "dim": 12, "depth": 2}, 16),
    ],
)
def test_recomputing_gives_the_same_gradients(name: str, options: dict, size: int) -> None:
    network = (
        zoo.build(name, seed=0, classes=3, dropout=0.0, **options)
        if name
        in (
            "vgg16",
            "alexnet",
            "vit_tiny",
        )
        else zoo.build(name, seed=0, classes=3, **options)
    )
    x = torch.randn(2, 3, size, size)
    plain = gradients(network, x)
    stretches = recompute(network)
    assert stretches
    assert all(map(torch.equal, gradients(network, x), plain))
    with without(stretches):
        assert all(map(torch.equal, gradients(network, x), plain))


def test_no_stretch_begins_with_a_layer_that_would_overwrite_its_input() -> None:
    layers = list(zoo.build("vgg16", width=1, hidden=4).features)
    stretches = list(divide(layers))
    assert [layer for stretch in stretches for layer in stretch] == layers
    assert len(stretches) > 3
    assert not any(getattr(stretch[0], "inplace", False) for stretch in stretches)


def test_zfp_at_a_rate_keeps_its_size_and_comes_close() -> None:
    pytest.importorskip("zfpy")
    network = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
    x = torch.randn(512, 32)
    plain = gradients(network, x)
    fitted = parse("zfp:rate=8,derive=false").fit(
        network, torch.optim.SGD(network.parameters())
    )
    assert fitted.tape is not None
    close = gradients(network, x)
    assert fitted.tape.ledger.plain_peak / fitted.tape.ledger.stored_peak == pytest.approx(
        4, rel=0.05
    )
    for a, b in zip(close, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0.1, atol=float(b.abs().max()) / 20)
    with fitted.plain():
        assert all(map(torch.equal, gradients(network, x), plain))
