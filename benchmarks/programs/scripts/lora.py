"""A LLaMA-like model fine-tuned with LoRA by peft: the base is frozen."""

import torch
from data import batch, text
from log import Log, arguments
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    args = arguments(steps=32)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=400,
    )  # fmt: skip
    adapters = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, task_type="CAUSAL_LM",
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
    )  # fmt: skip
    model = get_peft_model(LlamaForCausalLM(config), adapters)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    sequences = text(128, 128, 400)
    model.train()
    log = Log()
    for step in range(args.steps):
        (ids,) = batch(step, 8, sequences)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
