"""A study.toml becomes cells, or an error that says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_cells import small_cell, small_study

from encke.study.cells import Cell
from encke.study.definition import make, read
from encke.study.errors import StudyError

ROOT = Path(__file__).parents[2]


def study_toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text)
    return path


def test_the_matrix_is_every_model_on_every_data_set_in_every_way_from_every_seed(
    tmp_path: Path,
) -> None:
    study = read(
        study_toml(
            tmp_path,
            """
            title = "A title"
            seeds = [0, 1]
            policies = ["plain", "encke:tolerance=0.02"]
            [models.small]
            network = "mlp"
            hidden = 8
            training = { rate = 0.5 }
            [models.resnet_cifar]
            [data.digits]
            size = 32
            training = { steps = 5 }
            [data.jets]
            [training]
            batch = 16
            """,
        )
    )
    assert study.name == "study"
    assert study.title == "A title"
    assert len(study.cells) == len({cell.id for cell in study.cells}) == 2 * 2 * 2 * 2
    first = study.cells[0]
    assert str(first) == "small on digits, plain, seed 0"
    assert first.model.given_options() == {"of": "mlp", "hidden": 8}
    assert (first.training.batch, first.training.rate, first.training.steps) == (16, 0.5, 5)
    assert all(c.training.rate == 0.1 for c in study.cells if c.model.name != "small")


def test_pairs_and_exclusions_leave_only_what_goes_together() -> None:
    given: dict[str, Any] = {
        "models": ["mlp", "gpt", "gcn"],
        "data": ["digits", "text", "cora"],
        "policies": ["plain", "bf16"],
        "pairs": [
            {"models": ["mlp"], "data": ["digits"], "seeds": [0, 1]},
            {"models": ["gpt"], "data": ["text"], "policies": ["encke"]},
            {"models": ["gcn"], "data": ["cora"], "training": {"steps": 3}},
        ],
        "exclude": [{"model": "gcn", "policy": "bf16"}, {"policy": "bf16", "seed": 1}],
    }
    assert [str(cell) for cell in make(given, name="x", folder=Path()).cells] == [
        "mlp on digits, plain, seed 0",
        "mlp on digits, bf16 autocast, seed 0",
        "mlp on digits, plain, seed 1",
        "gpt on text, Encke, tolerance 0.01, seed 0",
        "gcn on cora, plain, seed 0",
    ]


def test_a_cell_is_known_by_its_settings() -> None:
    cell = small_cell("encke")
    assert cell.id == small_cell("encke:tolerance=0.01").id
    assert cell.id == Cell.of_json(cell.to_json()).id
    assert Cell.of_json(cell.to_json()) == cell
    others = [
        small_cell("encke:tolerance=0.02"),
        small_cell("encke", seeds=[1]),
        small_cell("encke", training={"steps": 7}),
        small_cell("encke", models={"mlp": {"hidden": 64}}),
        small_cell("encke", data={"digits": {"size": 16}}),
    ]
    assert len({cell.id, *(other.id for other in others)}) == 1 + len(others)
    own = small_cell("plain", models=["../my model.py:build"], folder=Path("/elsewhere"))
    assert "/" not in own.id
    assert " " not in own.id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modls": []}, "a key of the study is 'modls', did you mean 'models'?"),
        ({"models": ["resnet_cifr"]}, "model is 'resnet_cifr', did you mean 'resnet_cifar'?"),
        ({"models": []}, "the study has no models"),
        ({"models": {"mlp": {"hiden": 3}}}, "did you mean 'hidden'? Allowed are features,"),
        ({"data": ["digit"]}, "data is 'digit', did you mean 'digits'?"),
        ({"data": {"digits": {"siz": 3}}}, "did you mean 'size'?"),
        ({"policies": ["chekpoint"]}, "did you mean 'checkpoint'?"),
        ({"policies": []}, "policies is [], allowed is a list"),
        ({"policies": [3]}, "a policy is 3"),
        ({"seeds": [-1]}, "a seed is -1"),
        ({"training": {"epoch": 3}}, "a key of training is 'epoch', did you mean 'epochs'?"),
        ({"training": {"batch": 0}}, "batch is 0, allowed are whole numbers from 1"),
        ({"training": {"optimizer": "adm"}}, "did you mean 'adam'?"),
        (
            {"models": ["gpt"]},
            "model 'gpt' is for text, data 'digits' are images; write exclude",
        ),
        ({"pairs": [{"models": ["mpl"]}]}, "models of [[pairs]] is 'mpl', did you mean 'mlp'?"),
        ({"exclude": [{"model": "mlp"}]}, "no cells left"),
        ({"exclude": [{"modl": "mlp"}]}, "did you mean 'model'?"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError) as refused:
        small_study("plain", **changes) if "policies" not in changes else small_study(**changes)
    assert said in str(refused.value)


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"study\.toml is not TOML"):
        read(study_toml(tmp_path, "models = ["))


def test_the_committed_study_has_what_it_promises() -> None:
    study = read(ROOT / "benchmarks" / "studies" / "study.toml")
    pairs = {(cell.model.name, cell.data.name) for cell in study.cells}
    images = {"digits", "fashion_mnist", "cifar10"}
    networks = {model for model, data in pairs if data in images}
    assert len(networks) >= 4
    assert pairs >= {(model, data) for model in networks for data in images}
    kinds = {cell.way.kind for cell in study.cells}
    assert kinds == {
        "plain", "bf16", "checkpoint", "group", "zfp", "fixed", "comet", "encke"
    }  # fmt: skip
    assert {cell.seed for cell in study.cells} == {0, 1, 2}
    assert len({str(c.way) for c in study.cells if c.way.kind == "encke"}) == 3


def test_the_demo_trains_a_convolutional_network_on_digits_plainly_and_otherwise() -> None:
    study = read(ROOT / "examples" / "demo.toml")
    assert {cell.way.kind for cell in study.cells} == {"plain", "checkpoint", "encke"}
    assert {(cell.model.of, cell.data.of) for cell in study.cells} == {
        ("resnet_cifar", "digits")
    }
    assert {cell.data.options["size"] for cell in study.cells} == {32}
