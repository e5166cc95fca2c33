"""Compressed factors stay within what the damping hides, or travel exactly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encke.bound import Absolute, Bound
from encke.wire.kfac import KFAC, triangle
from encke.wire.kfac.collectives import Collectives, Done, Pending, Rounded
from encke.wire.kfac.solve import eigen_of, inverse_of, split_damping


def trained(comm: Collectives | None, **options: Any) -> KFAC:
    """A few steps with factors that grow old; targets are drawn alike for every comm."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, groups=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    )
    settings = {"damping": 1e-3, "factor_interval": 1, "inverse_interval": 1}
    pre = KFAC(model, comm=comm, **(settings | options))
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        model.zero_grad()
        output = model(torch.rand(32, 1, 8, 8, generator=generator))
        pre.sample(output)
        F.cross_entropy(output, torch.randint(10, (32,), generator=generator)).backward()
        pre.step()
    return pre


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_spectral_error_of_a_factor_is_below_its_share_of_the_damping(share: float) -> None:
    exact = trained(None)._factors
    comm = Rounded()
    rounded = trained(comm, factor_error=share)._factors
    assert comm.sent_bytes < comm.plain_bytes / 2
    traces = torch.cat([s.mean.diagonal(dim1=1, dim2=2).mean(1) for s in exact.stacks])
    allowed = share * split_damping(traces, exact.partner, 1e-3)
    for a, b in zip(exact.stacks, rounded.stacks, strict=True):
        errors = torch.linalg.matrix_norm(a.mean - b.mean, 2)
        assert bool((errors > 0).all())
        assert bool((errors <= allowed[a.slots]).all()), (errors, allowed[a.slots])


def test_for_eigenvectors_the_error_times_the_other_side_is_below_the_damping() -> None:
    exact = trained(None, method="eigen")._factors
    rounded = trained(Rounded(), method="eigen", factor_error=0.1)._factors
    norms = torch.cat([torch.linalg.matrix_norm(s.mean, 2) for s in exact.stacks])
    for a, b in zip(exact.stacks, rounded.stacks, strict=True):
        errors = torch.linalg.matrix_norm(a.mean - b.mean, 2)
        assert bool((errors * norms[exact.partner][a.slots] <= 0.1 * 1e-3).all())


def test_no_error_allowed_means_none_made() -> None:
    exact, same = trained(None), trained(Rounded(), factor_error=0.0)
    for a, b in zip(exact._factors.stacks, same._factors.stacks, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-6, atol=0)


class Rough(Rounded):
    """Breaks every promise about the error, as a bound far too large would."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: list[tuple[str, Bound | None, int]] = []

    def all_reduce_mean(self, tensor: Tensor, *, bound: Bound | None, name: str) -> Pending:
        self.bounds.append((name, bound, tensor.numel()))
        if bound is None:
            return Done(tensor)
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
        return Done(tensor + noise * tensor.abs().max())

    def subgroup(self, ranks: Sequence[int]) -> Collectives:
        return self


@pytest.mark.parametrize("method", ["eigen", "inverse"])
def test_factors_that_became_indefinite_are_clamped_and_travel_exactly_afterwards(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    comm = Rough()
    with caplog.at_level(logging.WARNING):
        pre = trained(comm, method=method)
    names = [name for name, _, _ in comm.bounds]
    assert names[:3] == ["kfac.head", "kfac.factors", "kfac.head"]
    assert names[-2:] == ["kfac.head", "kfac.exact"]  # nothing is left that travels with loss
    assert "travel exactly" in caplog.text
    assert sorted(pre.state_dict()["exact"]) == ["0", "3"]
    for parameter in pre.model.parameters():
        assert bool(torch.isfinite(parameter.grad).all())


def test_all_factors_are_one_message_in_units_of_their_own_error() -> None:
    comm = Rough()
    trained(comm)
    name, bound, values = comm.bounds[1]
    assert (name, bound) == ("kfac.factors", Absolute(1.0))
    assert values == sum(d * (d + 1) // 2 for d in (8, 10, 10, 8 * 36 + 1))


def test_clamped_eigenvalues_are_reported_and_none_is_negative() -> None:
    matrices = torch.stack([torch.diag(torch.tensor([2.0, 1.0, s])) for s in (0.5, -0.5)])
    solved = eigen_of(matrices)
    assert solved.clamped.tolist() == [False, True]
    assert solved.values is not None
    assert float(solved.values.min()) == 0.0
    inverse = inverse_of(matrices, damping=torch.tensor([0.1, 0.1]))
    assert inverse.clamped.tolist() == [False, True]
    expected = torch.diag(torch.tensor([1 / 2.1, 1 / 1.1, 1 / 0.1]))
    torch.testing.assert_close(inverse.matrix[1], expected)  # type: ignore[index]


def test_a_triangle_brings_back_its_matrix() -> None:
    for size in (1, 2, 7):
        full = torch.randn(3, size, size)
        full = full + full.mT
        packed = triangle.pack(full)
        assert packed.shape == (3, size * (size + 1) // 2)
        torch.testing.assert_close(triangle.unpack(packed), full, rtol=0, atol=0)
