"""Trains the autoencoder on aligned faces, and a small network that predicts the mouth from
them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.face.align import mouth_mask
from scripts.train_demo.datasets import FaceDataset, SpeechDataset, as_images
from scripts.train_demo.loop import (
    Losses,
    StagePlan,
    TrainingContext,
    graphed,
    normal,
    run_stage,
    to_device,
)
from scripts.train_demo.networks import (
    Sizes,
    image_mouth_predictor,
    latents_of,
    lower_part,
    make_vae,
)

_MASKED_SHARE = 0.2
_SOURCE_SHARE = 0.3
_EDGE_WEIGHT = 2.0
_DIVERGENCE_WEIGHT = 1e-4
_MOUTH_WEIGHT = 3.0
_LIGHT = 0.15
_SHIFT = 0.1
_VALUE_WEIGHTS = (4.0, 1.0, 1.0, 1.0, 0.5)
_IMAGE_NOISE = 0.05

# Where the mouth is in an aligned face, as shares of its height and width.
_MOUTH_ROWS = (0.42, 0.80)
_MOUTH_COLUMNS = (0.22, 0.78)


def train_vae(
    sizes: Sizes, faces: FaceDataset, plan: StagePlan, context: TrainingContext
) -> tuple[AutoencoderKL, float]:
    """The image codec, and the scaling factor that gives its latents a standard deviation of 1.

    Levels and edges are reconstructed, mostly of the mouth, without an adversarial loss.
    """
    vae = make_vae(sizes, context.seed + 2).to(context.device)
    side = faces.spoken.shape[2]
    mask = torch.from_numpy(mouth_mask(side).copy()).to(context.device)
    weight = 1 + _MOUTH_WEIGHT * mouth_region(side, context.device)
    calls: list[Callable[..., Any]] = []

    def losses(step: int) -> Losses:
        generator = context.generator("vae", step)
        images = _drawn(faces, generator, plan.batch, mask)
        noise = normal(generator, (plan.batch, 4, side // 8, side // 8), images.device)
        if not calls:
            calls.append(graphed(_Codec(vae), (images, noise)))
        reconstructed, mean, log_variance = calls[0](images, noise)
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
        reconstructed = reconstructed.float()
        level = ((reconstructed - images).abs() * weight).mean()
        edges = (_edges(reconstructed) - _edges(images)).abs().mean()
        loss = level + _EDGE_WEIGHT * edges + _DIVERGENCE_WEIGHT * divergence.float()
        return {"loss": loss, "level": level, "edges": edges, "divergence": divergence}

    run_stage("vae", vae, losses, plan, context)
    generator = context.generator("spread", 0)
    count = 512
    take = torch.from_numpy(generator.integers(0, len(faces), count))
    frame = torch.from_numpy(generator.integers(0, faces.frames, count))
    with torch.no_grad():
        parts = [latents_of(vae, as_images(part)) for part in faces.spoken[take, frame].split(64)]
    scale = 1 / float(torch.cat(parts).float().std())
    context.log(stage="vae", scaling_factor=scale)
    return vae, scale


class _Codec(nn.Module):
    """Reconstructed images, and mean and logarithmic variance of their latents."""

    def __init__(self, vae: AutoencoderKL) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        posterior = self.vae.encode(images).latent_dist
        mean = posterior.mean
        log_variance = posterior.logvar
        decoded = self.vae.decode(mean + noise * torch.exp(0.5 * log_variance)).sample
        return decoded, mean, log_variance


def _drawn(faces: FaceDataset, generator: np.random.Generator, batch: int, mask: Tensor) -> Tensor:
    """Target, source and masked faces at random, with random gain and shift of their colors."""
    device = faces.device
    take = generator.integers(0, len(faces), batch)
    frame = to_device(generator.integers(0, faces.frames, batch), device)
    spoken = as_images(faces.spoken[to_device(take, device), frame])
    source = as_images(faces.source[to_device(faces.scene[take], device), frame])
    pick = to_device(generator.random((batch, 1, 1, 1)) < _SOURCE_SHARE, device)
    images = torch.where(pick, source, spoken)
    gain = 1 + _LIGHT * generator.standard_normal((batch, 3, 1, 1)).astype(np.float32)
    shift = _SHIFT * generator.standard_normal((batch, 3, 1, 1)).astype(np.float32)
    images = (images * to_device(gain, device) + to_device(shift, device)).clamp(-1, 1)
    masked = to_device(generator.random((batch, 1, 1, 1)) < _MASKED_SHARE, device)
    return torch.where(masked, images * mask, images)


def train_mouth_predictor(
    vae: AutoencoderKL,
    faces: FaceDataset,
    speech: SpeechDataset,
    plan: StagePlan,
    context: TrainingContext,
) -> nn.Sequential:
    """Finds the mouth in an image; the U-Net's second stage learns from it."""
    torch.manual_seed(context.seed)
    predictor = image_mouth_predictor().to(context.device)
    weights = torch.tensor(_VALUE_WEIGHTS, device=context.device)

    def losses(step: int) -> Losses:
        """Errors of the mouths predicted from faces, half of them reconstructed by the codec."""
        generator = context.generator("mouth", step)
        batch = plan.batch
        take = generator.integers(0, len(faces), batch)
        frame = generator.integers(0, faces.frames, batch)
        images = as_images(
            faces.spoken[to_device(take, context.device), to_device(frame, context.device)]
        )
        with torch.no_grad():
            images[: batch // 2] = vae.decode(latents_of(vae, images[: batch // 2])).sample.float()
        images += _IMAGE_NOISE * normal(generator, tuple(images.shape), images.device)
        index = speech.speech.starts[faces.recording[take]] + faces.first[take] + frame
        track = speech.track[to_device(index, context.device)]
        return {"loss": ((predictor(lower_part(images)).float() - track) ** 2 * weights).mean()}

    run_stage("mouth", predictor, losses, plan, context)
    return predictor


def mouth_region(side: int, device: torch.device) -> Tensor:
    """1 in the mouth's rectangle of an aligned face of `side` pixels, else 0: `(side, side)`."""
    region = torch.zeros(side, side, device=device)
    rows, columns = (
        [round(share * side) for share in ends] for ends in (_MOUTH_ROWS, _MOUTH_COLUMNS)
    )
    region[rows[0] : rows[1], columns[0] : columns[1]] = 1.0
    return region


def _edges(images: Tensor) -> Tensor:
    """Vertical and horizontal differences between neighboring pixels, `(N, 6, H − 1, W − 1)`."""
    down = images[:, :, 1:, :-1] - images[:, :, :-1, :-1]
    across = images[:, :, :-1, 1:] - images[:, :, :-1, :-1]
    return torch.cat([down, across], 1)
