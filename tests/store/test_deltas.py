"""A chain of deltas: small, within its bounds however long, and honest about a lost link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import encke
from encke import store
from encke.store import StateReader, StoreError


def test_errors_do_not_add_up_over_fifty_links(tmp_path: Path) -> None:
    torch.manual_seed(0)
    w, bound = torch.randn(100, 100), encke.Absolute(0.01)
    sizes = []
    for link in range(51):
        base = tmp_path / f"{link - 1}.encke" if link else None
        path = tmp_path / f"{link}.encke"
        done = store.save(path, {"w": w}, bounds=bound, base=base, keyframe=100)
        sizes.append(done.nbytes)
        assert done.links == link + 1
        found = store.load(path)["model"]["w"]
        assert float((found.double() - w.double()).abs().max()) <= 0.01
        w = w + 0.003 * torch.randn(100, 100)
    assert max(sizes[1:]) < 0.5 * sizes[0]


def test_a_full_file_is_written_where_the_chain_would_get_too_long(tmp_path: Path) -> None:
    w, links = torch.randn(50, 50), []
    for number in range(7):
        base = tmp_path / f"{number - 1}.encke" if number else tmp_path / "none.encke"
        path = tmp_path / f"{number}.encke"
        done = store.save(
            path, {"w": w + 1e-3 * number}, bounds=encke.Absolute(0.01), base=base, keyframe=3
        )
        links.append(done.links)
    assert links == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.slow
def test_checkpoints_with_a_budget_get_smaller_as_deltas(tmp_path: Path, trained: Any) -> None:
    data = trained.batches[:3]
    first = store.save(
        tmp_path / "0.encke", trained.model, trained.optimizer, loss=1e-3, data=data
    )
    for batch in trained.batches[:3]:
        trained.step(batch)
    second = store.save(
        tmp_path / "1.encke",
        trained.model,
        trained.optimizer,
        loss=1e-3,
        data=data,
        base=tmp_path / "0.encke",
    )
    assert second.nbytes < 0.8 * first.nbytes
    told = second.report["budget"]
    assert told["measured"] <= told["allowed"]
    with StateReader(tmp_path / "1.encke") as stored:
        for name, x in trained.model.state_dict().items():
            entry = stored.entry(f"model/{name}")
            if entry.facts.get("error"):
                y = stored.tensor(entry.name)
                assert float((y.double() - x.double()).abs().max()) <= entry.facts["error"]


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    state = {"frozen": torch.randn(300, 300), "n": torch.arange(5000)}
    store.save(tmp_path / "0.encke", state)
    done = store.save(tmp_path / "1.encke", state, base=tmp_path / "0.encke")
    assert done.nbytes < 2000
    found = store.load(tmp_path / "1.encke")["model"]
    assert all(torch.equal(found[name], state[name]) for name in state)


def chain(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    state = {"w": torch.randn(100, 100), "fresh": torch.randn(100, 100)}
    for number in range(3):
        base = tmp_path / f"{number - 1}.encke" if number else None
        state = {"w": state["w"] + 1e-3, "fresh": torch.randn(100, 100)}
        store.save(tmp_path / f"{number}.encke", state, bounds=encke.Absolute(0.01), base=base)
    return state


def test_a_lost_link_names_what_can_still_be_loaded(tmp_path: Path) -> None:
    state = chain(tmp_path)
    (tmp_path / "0.encke").unlink()
    with pytest.raises(StoreError, match=r"0\.encke, which is not there"):
        store.load(tmp_path / "2.encke")
    found = store.load(tmp_path / "2.encke", partial=True)
    assert list(found["missing"]) == ["model/w"]
    assert "0.encke" in found["missing"]["model/w"]
    assert float((found["model"]["fresh"] - state["fresh"]).abs().max()) <= 0.01
    assert "w" not in found["model"]


def test_a_base_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    chain(tmp_path)
    store.save(tmp_path / "0.encke", {"w": torch.randn(100, 100)})
    with pytest.raises(StoreError, match=r"another 0\.encke"):
        store.load(tmp_path / "2.encke")
    with pytest.raises(StoreError, match="same file"):
        store.save(tmp_path / "0.encke", {"w": torch.ones(1)}, base=tmp_path / "0.encke")


def test_a_chain_may_be_moved_to_another_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    state = chain(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    found = store.load(tmp_path / "b" / "2.encke")["model"]
    assert float((found["w"] - state["w"]).abs().max()) <= 0.01
