"""The slow and obvious K-FAC: rows from autograd, explicit Kronecker products, dense solves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

#: A call of a layer: its input, its weight and bias (as leaves), and its output.
Layer = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass
class Dense:
    """Factors of a layer with one group: (in, in) and (out, out)."""

    inputs: Tensor
    gradients: Tensor
    rows: int


def rows_of(
    call: Layer, x: Tensor, weight: Tensor, bias: Tensor | None, *, channels: int
) -> tuple[Tensor, Tensor]:
    """What the layer multiplies its weight with, row by row, from derivatives alone.

    An output is linear in the weight: the derivative of output channel o at one place by the
    weight's row o is the input row of that place. `channels` is the output's channel dimension.
    Returns (places, in [+1]) and the output as (places, out).
    """
    weight = weight.detach().requires_grad_()
    bias = None if bias is None else bias.detach().requires_grad_()
    y = call(x, weight, bias).movedim(channels, -1)
    flat = y.reshape(-1, y.shape[-1])
    rows = []
    for place in range(len(flat)):
        leaves = [weight] if bias is None else [weight, bias]
        found = torch.autograd.grad(flat[place, 0], leaves, retain_graph=True)
        row = found[0][0].flatten()
        rows.append(row if bias is None else torch.cat([row, found[1][:1]]))
    return torch.stack(rows), flat.detach()


def dense_factors(rows: Tensor, gradients: Tensor, terms: int) -> Dense:
    """Sums of outer products, one place at a time; `gradients` are of the summed loss."""
    inputs = sum(torch.outer(a, a) for a in rows) / len(rows)
    outputs = sum(torch.outer(g, g) for g in gradients) / terms
    return Dense(torch.as_tensor(inputs), torch.as_tensor(outputs), len(rows))


def precondition(dense: Dense, gradient: Tensor, damping: float, method: str) -> Tensor:
    """(F + λI)⁻¹ · vec(gradient), with F = gradients ⊗ inputs written out."""
    out, columns = gradient.shape
    eye_out = torch.eye(out, dtype=gradient.dtype)
    eye_in = torch.eye(columns, dtype=gradient.dtype)
    if method == "eigen":
        matrix = torch.kron(dense.gradients, dense.inputs)
        matrix = matrix + damping * torch.kron(eye_out, eye_in)
    else:
        mean_in = dense.inputs.trace() / columns
        mean_out = dense.gradients.trace() / out
        pi = (mean_in / mean_out).sqrt()
        matrix = torch.kron(
            dense.gradients + damping**0.5 / pi * eye_out,
            dense.inputs + damping**0.5 * pi * eye_in,
        )
    return torch.linalg.solve(matrix, gradient.flatten()).view_as(gradient)


def gradient_matrix(weight: nn.Parameter, bias: nn.Parameter | None) -> Tensor:
    """Weight and bias gradients as one matrix."""
    assert weight.grad is not None
    flat = weight.grad.flatten(1)
    if bias is None:
        return flat.clone()
    assert bias.grad is not None
    return torch.cat([flat, bias.grad[:, None]], 1)
