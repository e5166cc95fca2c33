"""Denoising diffusion of digits with UNet2DModel and DDPMScheduler of diffusers."""

import torch
import torch.nn.functional as F
from data import batch, digits
from diffusers import DDPMScheduler, UNet2DModel
from log import Log, arguments


def main():
    args = arguments(steps=30)
    images, _ = digits(32)
    model = UNet2DModel(
        sample_size=32, in_channels=1, out_channels=1, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = Log()
    for step in range(args.steps):
        (clean,) = batch(step, 8, images)
        noise = torch.randn_like(clean)
        times = torch.randint(0, 1000, (len(clean),))
        noisy = noise_scheduler.add_noise(clean, noise, times)
        loss = F.mse_loss(model(noisy, times, return_dict=False)[0], noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log.step(loss.item())
    log.end()


if __name__ == "__main__":
    main()
