"""The programs: name → script and arguments, and the packages that a script needs."""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """A training program of the folder scripts/."""

    script: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def _one(script: str, *needs: str) -> dict[str, Program]:
    return {script: Program(f"{script}.py", (), needs)}


def _several(script: str, prefix: str, names: str, *needs: str) -> dict[str, Program]:
    return {prefix + n: Program(f"{script}.py", (n,), needs) for n in names.split()}


PROGRAMS: dict[str, Program] = {
    **_one("mnist_cnn", "sklearn"),
    **_one("resnet"),
    **_several("classic_cnn", "", "alexnet vgg"),
    **_several("modern_cnn", "", "mobilenet efficientnet convnext"),
    **_one("unet"),
    **_one("vae", "sklearn"),
    **_several("gan", "", "dcgan wgan wgan_gp", "sklearn"),
    **_one("siamese", "sklearn"),
    **_one("simclr"),
    **_one("super_resolution"),
    **_one("neural_style"),
    **_several("lstm_words", "lstm_", "unpacked packed"),
    **_one("gru_cell"),
    **_one("time_sequence"),
    **_one("lbfgs"),
    **_one("transformer_lm"),
    **_several(
        "transformers_models",
        "",
        "gpt2 bert roberta deberta llama qwen3 gemma2 mixtral t5 vit mamba mamba2 clip whisper",
        "transformers",
    ),
    **_one("lora", "peft", "transformers"),
    **_one("hf_trainer", "transformers", "accelerate"),
    **_one("accelerate_loop", "transformers", "accelerate"),
    **_one("lightning_module", "lightning", "sklearn"),
    **_one("diffusion", "diffusers", "sklearn"),
    **_several("graph_networks", "geometric_", "gcn gat sage gin", "torch_geometric"),
    **_one("gat_by_hand"),
    **_one("flow"),
    **_one("fno"),
    **_one("pinn"),
    **_several("reinforcement", "", "reinforce actor_critic"),
    **_several("distributed", "", "ddp fsdp"),
    **_several(
        "gpt",
        "gpt_",
        "plain accumulation autocast grad_scaler compiled checkpointed reentrant "
        "in_backward manual_sgd ema",
    ),
    **_several(
        "digits_ways",
        "digits_",
        "loss_method frozen scripted workers swa functional all_frozen two_parts",
        "sklearn",
    ),
}
