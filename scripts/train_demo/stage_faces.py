"""Trains the autoencoder on aligned faces, and a small network that predicts the mouth from them."""

import numpy as np
import torch
from torch import Tensor, nn

from latentsync_trt.face.mask import mouth_mask
from scripts.train_demo.datasets import FaceDataset, SpeechDataset, as_images
from scripts.train_demo.loop import Losses, TrainingContext, normal, to_device
from scripts.train_demo.networks import ImageMouthPredictor
from scripts.train_demo.vae import Vae

_MASKED_SHARE, _SOURCE_SHARE = 0.2, 0.3
_EDGE_WEIGHT, _DIVERGENCE_WEIGHT = 1.0, 1e-4
_MOUTH_WEIGHT = 3.0
_LIGHT, _SHIFT = 0.15, 0.1
_VALUE_WEIGHTS = (4.0, 1.0, 1.0)
_IMAGE_NOISE = 0.05

# Where the mouth is in an aligned face, as shares of its height and width.
_MOUTH_ROWS, _MOUTH_COLUMNS = (0.42, 0.80), (0.22, 0.78)


class VaeStage(nn.Module):
    """Reconstruction loss on levels and edges, weighted towards the mouth, without an adversarial loss."""

    def __init__(self, vae: Vae, faces: FaceDataset, context: TrainingContext) -> None:
        super().__init__()
        self.vae = vae
        self._faces, self._context = faces, context
        side = faces.spoken.shape[2]
        self._mask = torch.from_numpy(mouth_mask(side).copy()).to(context.device)
        self._weight = 1 + _MOUTH_WEIGHT * mouth_region(side, context.device)

    def losses(self, step: int, batch: int) -> Losses:
        """Errors of the reconstructions."""
        generator = self._context.generator("vae", step)
        images = self._drawn(generator, batch)
        latent = (batch, 4, images.shape[2] // 8, images.shape[3] // 8)
        noise = normal(generator, latent, images.device)
        reconstructed, divergence = self.vae(images, noise)
        reconstructed = reconstructed.float()
        level = ((reconstructed - images).abs() * self._weight).mean()
        edges = (_edges(reconstructed) - _edges(images)).abs().mean()
        loss = level + _EDGE_WEIGHT * edges + _DIVERGENCE_WEIGHT * divergence.float()
        return {"loss": loss, "level": level, "edges": edges, "divergence": divergence}

    def _drawn(self, generator: np.random.Generator, batch: int) -> Tensor:
        """Target, source and masked faces at random, with random gain and shift of their colors."""
        device = self._context.device
        take = generator.integers(0, len(self._faces), batch)
        frame = to_device(generator.integers(0, self._faces.frames, batch), device)
        spoken = as_images(self._faces.spoken[to_device(take, device), frame])
        source = as_images(self._faces.source[to_device(self._faces.scene[take], device), frame])
        pick = to_device(generator.random((batch, 1, 1, 1)) < _SOURCE_SHARE, device)
        images = torch.where(pick, source, spoken)
        gain = 1 + _LIGHT * generator.standard_normal((batch, 3, 1, 1)).astype(np.float32)
        shift = _SHIFT * generator.standard_normal((batch, 3, 1, 1)).astype(np.float32)
        images = (images * to_device(gain, device) + to_device(shift, device)).clamp(-1, 1)
        masked = to_device(generator.random((batch, 1, 1, 1)) < _MASKED_SHARE, device)
        return torch.where(masked, images * self._mask, images)


class ImageMouthStage(nn.Module):
    """Trains the mouth predictor on faces, half of them reconstructed by the autoencoder."""

    def __init__(
        self,
        mouth_predictor: ImageMouthPredictor,
        vae: Vae,
        faces: FaceDataset,
        speech_data: SpeechDataset,
        context: TrainingContext,
    ) -> None:
        super().__init__()
        self.mouth_predictor = mouth_predictor
        self._vae, self._faces, self._speech_data, self._context = [vae], faces, speech_data, context
        self._weights = torch.tensor(_VALUE_WEIGHTS, device=context.device)

    def losses(self, step: int, batch: int) -> Losses:
        """Errors of the mouths predicted from images."""
        generator = self._context.generator("mouth", step)
        take, frame = generator.integers(0, len(self._faces), batch), generator.integers(0, self._faces.frames, batch)
        device = self._context.device
        images = as_images(self._faces.spoken[to_device(take, device), to_device(frame, device)])
        with torch.no_grad():
            images[: batch // 2] = self._vae[0].decode(self._vae[0].encode(images[: batch // 2])).float()
        images += _IMAGE_NOISE * normal(generator, tuple(images.shape), images.device)
        index = self._speech_data.speech.starts[self._faces.recording[take]] + self._faces.first[take] + frame
        track = self._speech_data.track[to_device(index, device)]
        loss = ((self.mouth_predictor(images).float() - track) ** 2 * self._weights).mean()
        return {"loss": loss}


def mouth_region(side: int, device: torch.device) -> Tensor:
    """1 in the mouth's rectangle of an aligned face of `side` pixels, else 0: `(side, side)`."""
    region = torch.zeros(side, side, device=device)
    rows, columns = ([round(share * side) for share in ends] for ends in (_MOUTH_ROWS, _MOUTH_COLUMNS))
    region[rows[0] : rows[1], columns[0] : columns[1]] = 1.0
    return region


def latent_spread(vae: Vae, faces: FaceDataset, generator: np.random.Generator, count: int = 512) -> float:
    """The standard deviation of latents; its inverse is the scaling factor."""
    take = torch.from_numpy(generator.integers(0, len(faces), count))
    frame = torch.from_numpy(generator.integers(0, faces.frames, count))
    with torch.no_grad():
        parts = [vae.encode(as_images(part)) for part in faces.spoken[take, frame].split(64)]
    return float(torch.cat(parts).float().std())


def _edges(images: Tensor) -> Tensor:
    """Vertical and horizontal differences between neighboring pixels, `(N, 6, H − 1, W − 1)`."""
    down = images[:, :, 1:, :-1] - images[:, :, :-1, :-1]
    across = images[:, :, :-1, 1:] - images[:, :, :-1, :-1]
    return torch.cat([down, across], 1)
