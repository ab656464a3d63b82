"""Trains the U-Net: noise prediction on latents, then also losses on decoded images and their lips.

The target is a take with the mouth of its speech. Masked image and reference come from the source,
as from a user's video, where the mouth says something else. Some references are other frames of the
target take, as in LatentSync. With the target itself as the reference, the network would copy it.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from latentsync_trt.diffusion import TRAINING_STEPS, alphas_cumprod
from latentsync_trt.export.networks import WhisperEncoder
from latentsync_trt.face.align import latent_mask, mouth_mask
from scripts.train_demo.datasets import AudioFeatures, FaceDataset, SpeechDataset, as_images
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
    TRACK_VALUES,
    WINDOW_FRAMES,
    TrainedUNet,
    latents_of,
    lower_part,
    mouth_errors,
)
from scripts.train_demo.speech import Int64Array
from scripts.train_demo.stage_faces import mouth_region

_UNCONDITIONAL_SHARE = 0.1  # share of windows without audio features, for classifier-free guidance
_OTHER_FRAMES_SHARE = 0.3
_FRAME_NOISE = 0.7
"""Amplitude of the noise that differs between frames. With the same noise in all frames, as where
the sampler starts, differences between frames would reveal the mouths, and the network would not
need the audio.
"""

# share of windows at the sampler's first step: the same noise in all frames, and no signal
_FIRST_STEP_SHARE = 0.2
_KEPT_WEIGHT = 0.1
_MOUTH_WEIGHT = 2.0
_LEAST_SIGNAL = 0.6
_MOST_SIGNAL = 5.0
"""Min-SNR weighting (Hang et al.), which limits the weight of steps with little noise. The lower
limit keeps those with much noise, which decide the mouth, from vanishing.
"""

_MOUTH_HEAD_WEIGHT = 0.5

# interval at which audio features are computed again, with other augmentation
_REFRESH_FEATURES_STEPS = 1000
_PIXEL_WEIGHT = 2.0
_LEAST_CONFIDENCE = 0.1
"""Images decoded from much noise are blurred, but their mouths are decided there."""
_LIPS_WEIGHT = 4.0
_MOTION_WEIGHT = 1.0
_VALUE_WEIGHTS = (4.0, 1.0, 1.0, 1.0, 0.5)


Helpers = tuple[WhisperEncoder, AutoencoderKL, nn.Sequential]
"""Frozen: audio encoder, image codec and mouth predictor."""


class Batch(NamedTuple):
    """A batch of windows."""

    take: Int64Array  # (B,)
    frames: Int64Array  # (B, F)
    target: Tensor  # (B·F, 4, h, w), as the next two
    masked: Tensor
    reference: Tensor
    audio: Tensor  # (B·F, S, D)
    mouths: Tensor  # those that belong to the speech, (B·F, 5)
    heard: Tensor  # 1 where the audio features are not zero, (B·F,)


class _Prediction(NamedTuple):
    error: Tensor  # weighted and squared, (B·F, 4, h, w)
    signal: Tensor  # its share, (B·F, 1, 1, 1)
    clean: Tensor  # latents that the predicted noise implies
    mouths: Tensor  # by the mouth head, (B·F, 5)


class LatentDataset:
    """Scaled latents: `spoken (t, n, 4, h, w)` of all takes, `source` and `masked` `(c, n, 4, h,
    w)` of all scenes.
    """

    def __init__(
        self,
        vae: AutoencoderKL,
        faces: FaceDataset,
        speech_data: SpeechDataset,
        scale: float,
        context: TrainingContext,
    ) -> None:
        self.faces = faces
        self.speech_data = speech_data
        self.scale = scale
        mask = torch.from_numpy(mouth_mask(faces.spoken.shape[2]).copy()).to(faces.device)

        def latents(images: Tensor) -> Tensor:
            return latents_of(vae, images).float() * scale

        with torch.no_grad(), context.autocast():
            self.spoken = torch.stack([latents(as_images(take)) for take in faces.spoken])
            self.source = torch.stack([latents(as_images(source)) for source in faces.source])
            self.masked = torch.stack(
                [latents(as_images(source) * mask) for source in faces.source]
            )

    def draw(self, generator: np.random.Generator, batch: int, features: AudioFeatures) -> Batch:
        """A random batch of windows; of some the reference is other frames of the take, or audio
        features are zero.
        """
        take = generator.integers(0, len(self.faces), batch)
        start, other = generator.integers(0, self.faces.frames - WINDOW_FRAMES + 1, (2, batch))
        unconditional = generator.random((batch, 1, 1, 1)) < _UNCONDITIONAL_SHARE
        from_other = generator.random(batch) < _OTHER_FRAMES_SHARE
        frames = start[:, None] + np.arange(WINDOW_FRAMES)
        device = self.spoken.device
        takes = to_device(take, device)[:, None]
        times = to_device(frames, device)
        scenes = to_device(self.faces.scene[take], device)[:, None]
        other_times = to_device(other[:, None] + np.arange(WINDOW_FRAMES), device)
        pick = to_device(from_other, device)[:, None, None, None, None]
        reference = torch.where(pick, self.spoken[takes, other_times], self.source[scenes, times])
        audio = features.tokens(
            self.faces.recording[take], self.faces.first[take][:, None] + frames
        )
        audio = audio.reshape(*frames.shape, *audio.shape[1:]) * to_device(~unconditional, device)
        latents = (self.spoken[takes, times], self.masked[scenes, times], reference)
        first = self.speech_data.speech.starts[self.faces.recording[take]] + self.faces.first[take]
        mouths = self.speech_data.track[to_device(first[:, None] + frames, device).flatten()]
        audio = audio.flatten(0, 1)
        heard = (audio.abs().amax((1, 2)) > 0).float()
        return Batch(
            take, frames, *(part.flatten(0, 1).float() for part in latents), audio, mouths, heard
        )


def train_unet(
    unet: TrainedUNet,
    latents: LatentDataset,
    helpers: Helpers,
    plans: tuple[StagePlan, StagePlan],
    context: TrainingContext,
) -> None:
    """Both stages: noise prediction, then also decoded images and lips, for which `helpers` are
    frozen.
    """

    @lru_cache(maxsize=1)
    def features(number: int) -> AudioFeatures:
        return AudioFeatures(latents.speech_data, helpers[0], context.generator("features", number))

    for name, plan in zip(("unet", "tune"), plans, strict=True):
        unet.requires_grad_(True)
        stage = _UNetStage(unet, latents, features, helpers, context).to(context.device)
        losses = stage.losses if name == "unet" else stage.tuning_losses
        run_stage(name, stage, partial(losses, batch=plan.batch), plan, context)


class _WindowUNet(nn.Module):
    """The U-Net for windows of 16 frames, with tensors as its only arguments."""

    def __init__(self, unet: TrainedUNet) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, sample: Tensor, level: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
        noise, hidden = self.unet(sample, level, audio, frames=WINDOW_FRAMES)
        return noise, hidden


class _UNetStage(nn.Module):
    """Noise prediction on latents; `tuning_losses` adds losses on decoded images and their lips.

    A linear head also predicts the mouth from the state before the U-Net's last layer. Where noise
    hides the mouth, only the audio determines it, so the network learns to use the audio early.
    """

    def __init__(
        self,
        unet: TrainedUNet,
        latents: LatentDataset,
        features: Callable[[int], AudioFeatures],
        helpers: Helpers,
        context: TrainingContext,
    ) -> None:
        super().__init__()
        self.unet = unet
        self.mouth_head = nn.Linear(unet.config.widths[0], TRACK_VALUES)
        self._windows: Callable[..., tuple[Tensor, Tensor]] | None = None
        self._latents = latents
        self._features = features
        self._helpers = helpers
        self._context = context
        device = context.device
        side = latents.faces.spoken.shape[2]
        self._signal = torch.from_numpy(alphas_cumprod().copy()).float().to(device)
        self._latent_mask = torch.from_numpy(latent_mask(side)).to(device)
        self._kept = torch.from_numpy(mouth_mask(side).copy()).to(device)
        self._region = mouth_region(side, device)
        coarse = self._region[::8, ::8] * _MOUTH_WEIGHT + 1
        self._weight = torch.where(
            self._latent_mask > 0, torch.full_like(coarse, _KEPT_WEIGHT), coarse
        )
        self._value_weights = torch.tensor(_VALUE_WEIGHTS, device=device)

    def losses(self, step: int, batch: int) -> Losses:
        """Errors of the predicted noise."""
        generator = self._context.generator("unet", step)
        drawn = self._latents.draw(
            generator, batch, self._features(step // _REFRESH_FEATURES_STEPS)
        )
        timestep = generator.integers(0, TRAINING_STEPS, batch)
        predicted = self._predict(drawn, timestep, generator)
        error = predicted.error
        signal = predicted.signal
        ratio = signal / (1 - signal)
        weight = ratio.clamp(_LEAST_SIGNAL, _MOST_SIGNAL) / ratio
        denoising = (error.mean((1, 2, 3), keepdim=True) * weight).mean()
        mouth = mouth_errors(predicted.mouths, drawn.mouths, self._value_weights)
        mouth = (mouth * drawn.heard * (1 - signal).flatten()).mean()
        return {
            "loss": denoising + _MOUTH_HEAD_WEIGHT * mouth,
            "noise": error.mean(),
            "mouth_head": mouth,
        }

    def tuning_losses(self, step: int, batch: int) -> Losses:
        """Errors of the predicted noise, and of the decoded images, their changes over time and
        their lips.
        """
        generator = self._context.generator("tune", step)
        drawn = self._latents.draw(
            generator, batch, self._features(step // _REFRESH_FEATURES_STEPS)
        )
        predicted = self._predict(drawn, generator.integers(0, TRAINING_STEPS, batch), generator)
        error = predicted.error
        confidence = predicted.signal.flatten().clamp_min(_LEAST_CONFIDENCE)
        images = self._helpers[1].decode(predicted.clean / self._latents.scale).sample.float()
        take = to_device(drawn.take, images.device)[:, None]
        frames = to_device(drawn.frames, images.device)
        target = as_images(self._latents.faces.spoken[take, frames])
        weight = (1 - self._kept) * (1 + _MOUTH_WEIGHT * self._region)
        difference = (images - target) * weight
        pixels = (difference.abs().mean((1, 2, 3)) * confidence).mean()
        changes = (
            difference.reshape(batch, WINDOW_FRAMES, *difference.shape[1:])
            .diff(dim=1)
            .abs()
            .mean((2, 3, 4))
        )
        motion = (changes.mean(1) * confidence.reshape(batch, WINDOW_FRAMES)[:, 0]).mean()
        mouths = mouth_errors(
            self._helpers[2](lower_part(images)).float(), drawn.mouths, self._value_weights
        )
        lips = (mouths * confidence * drawn.heard).mean()
        loss = error.mean() + _PIXEL_WEIGHT * pixels + _LIPS_WEIGHT * lips + _MOTION_WEIGHT * motion
        return {
            "loss": loss,
            "noise": error.mean(),
            "pixels": pixels,
            "lips": lips,
            "motion": motion,
        }

    def _predict(
        self, batch: Batch, timestep: Int64Array, generator: np.random.Generator
    ) -> _Prediction:
        first = generator.random(len(batch.take)) < _FIRST_STEP_SHARE
        level = to_device(np.where(first, TRAINING_STEPS - 1, timestep), batch.target.device)
        signal = self._signal[level].repeat_interleave(WINDOW_FRAMES)[:, None, None, None]
        # Shared by all frames of a window, as in the sampler, and of each frame.
        windows = len(batch.take)
        size = batch.target.shape[1:]
        device = batch.target.device
        shared = (
            normal(generator, (windows, 1, *size), device)
            .expand(-1, WINDOW_FRAMES, -1, -1, -1)
            .flatten(0, 1)
        )
        per_frame = normal(generator, tuple(batch.target.shape), device)
        at_first = to_device(first, batch.target.device).repeat_interleave(WINDOW_FRAMES)[
            :, None, None, None
        ]
        mixed = (1 - _FRAME_NOISE**2) ** 0.5 * shared + _FRAME_NOISE * per_frame
        noisy = torch.where(
            at_first, shared, signal.sqrt() * batch.target + (1 - signal).sqrt() * mixed
        )
        noise = (noisy - signal.sqrt() * batch.target) / (1 - signal).sqrt()
        mask = self._latent_mask.expand(len(noisy), 1, -1, -1)
        sample = torch.cat([noisy, mask, batch.masked, batch.reference], 1)
        if self._windows is None:
            self._windows = graphed(_WindowUNet(self.unet), (sample, level, batch.audio))
        predicted, hidden = self._windows(sample, level, batch.audio)
        predicted = predicted.float()
        clean = (noisy - (1 - signal).sqrt() * predicted) / signal.sqrt()
        mouths = self.mouth_head(hidden.mean((2, 3))).float()
        return _Prediction((predicted - noise) ** 2 * self._weight, signal, clean, mouths)
