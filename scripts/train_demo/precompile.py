"""Compiles the U-Net's training step in a separate process while clips are rendered and the first stages run.

torch.compile caches its results on disk, so the U-Net stage later loads them instead of compiling.
"""

import multiprocessing
from multiprocessing.process import BaseProcess

import torch

from latentsync_trt.audio.encoder import POSITIONS
from latentsync_trt.diffusion import TRAINING_STEPS
from latentsync_trt.export.unet import INPUT_CHANNELS
from latentsync_trt.face.mask import LATENT_SCALE
from scripts.train_demo.loop import TrainingContext
from scripts.train_demo.networks import WINDOW_FRAMES, make_unet
from scripts.train_demo.settings import Settings
from scripts.train_demo.stage_unet import accelerated


def start_precompile(settings: Settings, context: TrainingContext) -> BaseProcess:
    """Starts the process that compiles; its exit code is 0 if compilation succeeded."""
    process = multiprocessing.get_context("spawn").Process(
        target=compile_training_step, args=(settings, context), name="compile", daemon=True
    )
    process.start()
    return process


def compile_training_step(settings: Settings, context: TrainingContext) -> None:
    """Runs one step of the stage "unet" on random input, to fill the compilation cache."""
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
