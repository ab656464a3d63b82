"""Compiles the U-Net's training step while its data are still being made.

torch.compile keeps what it makes in a cache on disk. What a process of its own compiles, beside the filming and the
first stages, the stage that needs it finds there, and loses no time of its own on it.
"""

import multiprocessing
from multiprocessing.process import BaseProcess

import torch

from latentsync_trt.audio.windows import POSITIONS
from latentsync_trt.diffusion.scheduler import TRAINING_STEPS
from latentsync_trt.export.unet import INPUT_CHANNELS
from latentsync_trt.face.mask import LATENT_SCALE
from scripts.train_demo.loop import TrainingContext
from scripts.train_demo.networks import WINDOW_FRAMES, make_unet
from scripts.train_demo.settings import Settings
from scripts.train_demo.stage_unet import accelerated


def start_precompile(settings: Settings, context: TrainingContext) -> BaseProcess:
    """The process that compiles, already begun; its exit code is 0 once all is in the cache."""
    process = multiprocessing.get_context("spawn").Process(
        target=compile_training_step, args=(settings, context), name="compile", daemon=True
    )
    process.start()
    return process


def compile_training_step(settings: Settings, context: TrainingContext) -> None:
    """A step of the stage "unet" on random numbers; nothing of it is kept but what was compiled."""
    torch.set_float32_matmul_precision("high")
    device, sizes, windows = context.device, settings.sizes, settings.unet.batch
    unet = make_unet(sizes, settings.seed).to(device).train()
    frames, side = windows * WINDOW_FRAMES, settings.resolution_px // LATENT_SCALE
    tokens = POSITIONS * (sizes.whisper.blocks + 1)
    inputs = (
        torch.randn(frames, INPUT_CHANNELS, side, side, device=device),
        torch.randint(0, TRAINING_STEPS, (windows,), device=device),
        torch.randn(frames, tokens, sizes.whisper.width, device=device),
    )
    with context.autocast():
        noise, hidden = accelerated(unet, inputs, context)(*inputs)
        loss = (noise.float() ** 2).mean() + (hidden.float() ** 2).mean()
    loss.backward()
