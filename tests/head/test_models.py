"""Unchanged language models of `transformers`: the same losses and gradients, no logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from allocations import LargestTensor
from torch import Tensor, nn

from encke.head.lazy import LazyHead, LazyLogits

CLASSES, TOKENS = 6000, 384
SMALL = {"vocab_size": CLASSES, "hidden_size": 32, "num_attention_heads": 2}
LLAMA = SMALL | {"num_hidden_layers": 1, "intermediate_size": 64, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": CLASSES, "n_positions": 128, "n_embd": 32, "n_layer": 1, "n_head": 2},
    ),
    "bert": (
        "BertForMaskedLM",
        "BertConfig",
        SMALL | {"num_hidden_layers": 1, "intermediate_size": 64},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", LLAMA | {"head_dim": 16}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", LLAMA | {"num_local_experts": 2}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": CLASSES,
            "d_model": 32,
            "d_kv": 16,
            "d_ff": 64,
            "num_layers": 1,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
    ),
}


def model_of(name: str) -> nn.Module:
    library = pytest.importorskip("transformers")
    model_class, config_class, options = MODELS[name]
    config = getattr(library, config_class)(**options)
    torch.manual_seed(0)
    model: nn.Module = getattr(library, model_class)(config).train()
    return model


def batch(name: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, CLASSES, (TOKENS // 128, 128), generator=generator)
    labels = ids.clone()
    if name == "bert":
        labels[torch.rand(ids.shape, generator=generator) > 0.15] = -100
    return {"input_ids": ids, "labels": labels}


def step(name: str, *, lazy: bool) -> tuple[Any, dict[str, Tensor], int]:
    """Output, gradients and the bytes of the largest tensor of a training step."""
    model, given = model_of(name), batch(name)
    torch.manual_seed(2)
    with LargestTensor() as largest:
        if lazy:
            with LazyHead():
                out = model(**given)
        else:
            out = model(**given)
        out.loss.backward()
    return out, {n: p.grad for n, p in model.named_parameters()}, largest.bytes


@pytest.mark.parametrize("name", MODELS)
def test_an_unchanged_model(name: str) -> None:
    out, gradients, largest = step(name, lazy=True)
    plain, expected, plain_largest = step(name, lazy=False)
    assert type(out.logits) is LazyLogits
    assert not out.logits.is_computed
    assert abs(out.loss.item() - plain.loss.item()) <= 1e-6 * plain.loss.item()
    # Gradients that are zero but for rounding (of a key's bias) need a floor.
    whole = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    for key, gradient in expected.items():
        allowed = 1e-6 * gradient.norm() + 1e-8 * whole
        assert (gradients[key] - gradient).norm() <= allowed, key
    assert torch.equal(out.logits, plain.logits)  # computed now
    size = TOKENS * CLASSES * 4
    assert plain_largest >= size
    assert largest < size


def test_the_largest_tensor_of_the_function_is_a_block_or_a_gradient() -> None:
    import encke

    hidden = torch.randn(1024, 16, requires_grad=True)
    weight = torch.randn(CLASSES, 16, requires_grad=True)
    target = torch.randint(0, CLASSES, (1024,))
    with LargestTensor() as largest:
        encke.linear_cross_entropy(hidden, weight, target, block_bytes=1 << 20).backward()
    assert largest.bytes <= 1 << 20


def test_logits_that_are_there_get_one_tensor_more() -> None:
    model, given = model_of("gpt2"), batch("gpt2")
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        model.zero_grad()
        torch.manual_seed(2)
        with mode:
            out = model(given["input_ids"])
            out.logits.argmax(-1)
            logits = out.logits.view(-1, CLASSES)
            nn.functional.cross_entropy(logits, given["labels"].view(-1)).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).norm() <= 1e-6 * theirs.norm()


def test_accuracy_after_the_step_of_the_optimizer() -> None:
    found = []
    for mode in (LazyHead(), torch.enable_grad()):
        model, given = model_of("llama"), batch("llama")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with mode:
            out = model(**given)
        out.loss.backward()
        optimizer.step()
        found.append(out.logits.argmax(-1))
    assert torch.equal(*found)


@pytest.mark.slow
def test_several_steps_with_accumulation_and_autocast() -> None:
    found = []
    for lazy in (True, False):
        model, given = model_of("gpt2"), batch("gpt2")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        torch.manual_seed(3)
        for number in range(6):
            with (
                LazyHead() if lazy else torch.enable_grad(),
                torch.autocast("cpu", dtype=torch.bfloat16, enabled=number % 2 == 1),
            ):
                loss = model(**given).loss
            loss.backward()
            losses.append(loss.item())
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-3)
