"""A batch norm's input may be kept normalised, each channel with an error of its own size."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from watching import Watching

import encke
from encke.tape.batch_norm.channels import Channels

ERROR = 0.25


def normalising() -> Watching:
    """One bound for the normalised values; the exact tensors beside."""
    return Watching(encke.Absolute(ERROR), codec="entropy", normalise=True, check=True)


def uneven(count: int = 8) -> Tensor:
    """Channels whose means and deviations lie three orders of magnitude apart."""
    scales = torch.logspace(-2, 1, 16).view(1, 16, 1, 1)
    return (torch.randn(count, 16, 12, 12) + 3) * scales


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(16, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, padding=1),
    )


def test_restored_values_stay_within_the_bound_times_their_channels_deviation() -> None:
    x = uneven()
    spread, mean = torch.var_mean(x, (0, 2, 3), correction=0)
    channels = Channels(mean, spread.rsqrt(), x.ndim)
    normal = channels.normalise(x)
    packed = encke.compress(normal, encke.Absolute(ERROR), codec="entropy", dither=True)
    error = (channels.restore(packed.decompress()) - x).abs().amax((0, 2, 3))
    allowed = ERROR * spread.sqrt()
    assert bool((error <= allowed * (1 + 1e-4)).all())
    assert bool((error >= allowed * 0.9).all())


@pytest.mark.parametrize("training", [True, False])
def test_errors_of_normalised_inputs_are_predicted(training: bool) -> None:
    network = net()
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(16).view(16, 16, 1, 1))
        network(uneven(64))  # running statistics that are no longer those of the start
    network.train(training)
    policy = normalising()
    tape = encke.attach(network, policy=policy)
    sums: dict[str, list[float]] = {}
    for step in range(12):
        torch.manual_seed(step)
        x = uneven().requires_grad_()
        F.mse_loss(network(x), torch.randn(8, 8, 12, 12)).backward()
        for effect in policy.effects:
            if effect.measured is not None and effect.predicted > 0:
                both = sums.setdefault(str(effect.consumer), [0.0, 0.0])
                both[0] += effect.measured[0]
                both[1] += effect.predicted
    tape.detach()
    # A norm's gradient has 16 values, a single draw of whose error is compared each time.
    for consumer, least in (("1/NativeBatchNorm.input", 0.6), ("3/Convolution.input", 0.8)):
        measured, predicted = sums[consumer]
        assert least < measured / predicted < 1 / least, consumer


def test_only_inputs_of_batch_norms_have_channels() -> None:
    network, policy = net(), normalising()
    tape = encke.attach(network, policy=policy)
    network(uneven()).sum().backward()
    tape.detach()
    known = {str(sight.site): sight.channels for sight in policy.sights}
    assert known == {
        "0/Convolution.input": False,
        "1/NativeBatchNorm.input": True,
        "3/Convolution.input": False,
    }
