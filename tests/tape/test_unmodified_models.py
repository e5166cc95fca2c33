"""Models as other people write them: exact when nothing is lossy, and a rule for every op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import encke

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2}
LLAMA = SMALL | {"num_hidden_layers": 1, "intermediate_size": 96, "num_key_value_heads": 2}
#: Class and configuration in `transformers`, with sizes that make a model of a few thousand
#: parameters whose tensors are large enough to be packed.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", LLAMA | {"num_local_experts": 2}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 1,
            "num_heads": 2,
            "feed_forward_proj": "gated-gelu",
            "decoder_start_token_id": 0,
        },
    ),
}


def check(model: nn.Module, loss: Callable[[], Tensor], *, smaller: float) -> None:
    """Same gradients when lossless, no op without a rule, and so many times fewer bytes."""

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        loss().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    tape = encke.attach(model, policy=encke.Fixed(encke.Lossless()))
    exact = gradients()
    tape.detach()
    assert all(torch.equal(a, b) for a, b in zip(plain, exact, strict=True))
    tape = encke.attach(model, policy=encke.Fixed(encke.RmsRelative(0.02)))
    lossy = gradients()
    tape.detach()
    assert not [str(r.site) for r in tape.records if r.why.startswith("no rule")]
    stored, before = tape.last_forward
    assert before > smaller * stored
    error = sum(float((a - b).abs().square().sum()) for a, b in zip(plain, lossy, strict=True))
    assert error < 1e-2 * sum(float(a.abs().square().sum()) for a in plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_language_model_of_transformers(name: str) -> None:
    library = pytest.importorskip("transformers")
    model_class, config_class, options = TRANSFORMERS[name]
    torch.manual_seed(0)
    model = getattr(library, model_class)(getattr(library, config_class)(**options)).train()
    ids = torch.randint(0, 64, (8, 32))
    check(model, lambda: model(input_ids=ids, labels=ids).loss, smaller=3)


def test_a_transformer_of_torch_with_dropout_and_a_mask() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(32, 2, 1, 1, 96, batch_first=True)
    x, y = torch.randn(8, 24, 32), torch.randn(8, 24, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(24)
    check(model, lambda: model(x, y, tgt_mask=mask).square().mean(), smaller=5)


class SpectralLayer(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        shape = channels, channels, modes, modes
        self.weight = nn.Parameter(torch.randn(shape, dtype=torch.cfloat) / channels)
        self.skip = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        modes, spectrum = self.weight.shape[-1], torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :modes, :modes], self.weight)
        out = torch.zeros_like(spectrum)
        out[:, :, :modes, :modes] = low
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


def test_a_fourier_neural_operator() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 1), SpectralLayer(8, 6), SpectralLayer(8, 6))
    x = torch.randn(4, 2, 32, 32)
    check(model, lambda: model(x).square().mean(), smaller=5)


class Block(nn.Module):
    """A block of a diffusion model's U-Net."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)
        )
        self.time = nn.Linear(16, channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.layers[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[..., None, None]
        out: Tensor = x + self.layers[1](F.silu(self.norms[1](h)))
        return out


def test_a_block_of_group_norms_and_silu() -> None:
    torch.manual_seed(0)
    model, x, time = Block(8), torch.randn(4, 8, 24, 24), torch.randn(4, 16)
    check(model, lambda: model(x, time).square().mean(), smaller=5)
