"""Models of `transformers`, each from a small configuration, in a plain PyTorch loop."""

import torch
import transformers as hf
from data import batch, pictures, text
from log import Log, arguments

WORDS = 400
LENGTH = 128


def words(config):
    """Inputs of a causal language model."""
    ids = text(128, LENGTH, WORDS)
    return {"input_ids": ids, "labels": ids}


def masked(config):
    """Inputs of a masked language model: 15 % of the words are to be found."""
    ids = text(128, LENGTH, WORDS)
    hidden = torch.rand(ids.shape) < 0.15
    labels = ids.masked_fill(~hidden, -100)
    return {"input_ids": ids.masked_fill(hidden, 1), "labels": labels}


def translated(config):
    """Inputs of an encoder and decoder: repeat the source, shifted by one word."""
    ids = text(128, 64, WORDS)
    return {"input_ids": ids, "labels": (ids + 1) % WORDS}


def classified(config):
    images, labels = pictures(128, config.image_size)
    return {"pixel_values": images, "labels": labels}


def captioned(config):
    images, labels = pictures(128, config.vision_config.image_size)
    ids = text(10, 32, WORDS - 1)[labels]
    ids[:, -1] = WORDS - 1
    return {"input_ids": ids, "pixel_values": images, "return_loss": True}


def spoken(config):
    ids = text(128, 24, WORDS)
    sound = torch.randn(WORDS, config.num_mel_bins)[ids].repeat_interleave(8, 1)
    sound = sound + 0.3 * torch.randn_like(sound)
    return {"input_features": sound.transpose(1, 2), "labels": ids}


SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
VIT = {
    **SMALL, "intermediate_size": 512, "image_size": 64, "patch_size": 8, "num_labels": 10,
}  # fmt: skip
BERT = {**SMALL, "intermediate_size": 512, "vocab_size": WORDS}
LLAMA = {
    **SMALL, "intermediate_size": 344, "num_key_value_heads": 2, "vocab_size": WORDS,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
MIXTRAL = {**LLAMA, "num_local_experts": 4}
GPT2 = {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "eos_token_id": 2}
T5 = {
    "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4,
    "vocab_size": WORDS, "decoder_start_token_id": 0,
}  # fmt: skip
DEBERTA = {
    **BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 32, "share_att_key": True,
}  # fmt: skip
MAMBA = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "vocab_size": WORDS}
MAMBA2 = {
    **MAMBA, "state_size": 16, "head_dim": 16, "num_heads": 8, "n_groups": 1,
    "chunk_size": 32,
}  # fmt: skip
CLIP = {
    "text_config": {
        **BERT, "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": WORDS - 1,
    },
    "vision_config": VIT,
    "projection_dim": 64,
}  # fmt: skip
WHISPER = {
    "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512,
    "num_mel_bins": 40, "max_source_positions": 96, "max_target_positions": 32,
    "vocab_size": WORDS, "decoder_start_token_id": 0, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip

#: name: (model, configuration, its values, inputs, sequences in a batch)
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2, words, 8),
    "bert": ("BertForMaskedLM", "BertConfig", BERT, masked, 8),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", BERT, masked, 8),
    "deberta": ("DebertaV2ForMaskedLM", "DebertaV2Config", DEBERTA, masked, 8),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, words, 8),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 32}, words, 8),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**LLAMA, "head_dim": 32}, words, 8),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**LLAMA, "num_local_experts": 4},
        words,
        8,
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, translated, 6),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {**VIT, "num_labels": 10},
        classified,
        16,
    ),
    "mamba": ("MambaForCausalLM", "MambaConfig", {**MAMBA, "time_step_rank": 4}, words, 2),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", MAMBA2, words, 4),
    "clip": ("CLIPModel", "CLIPConfig", CLIP, captioned, 16),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, spoken, 8),
}


def main():
    args = arguments(steps=32, names=tuple(MODELS))
    model_name, config_name, values, inputs, size = MODELS[args.name]
    config = getattr(hf, config_name)(**values)
    data = inputs(config)
    model = getattr(hf, model_name)(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = hf.get_linear_schedule_with_warmup(optimizer, 5, 2 * args.steps)
    names = [name for name, value in data.items() if torch.is_tensor(value)]
    flags = {name: value for name, value in data.items() if name not in names}
    log = Log()
    for step in range(args.steps):
        rows = batch(step, size, *[data[name] for name in names])
        loss = model(**dict(zip(names, rows, strict=True)), **flags).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
