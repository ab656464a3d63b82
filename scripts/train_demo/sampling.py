"""Samples clips with the networks during training, to validate them; the pipeline itself is not used here."""

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from torch import Tensor

from latentsync_trt.diffusion import ddim_schedule, initial_noise
from latentsync_trt.face.mask import latent_mask, mouth_mask
from latentsync_trt.measure.lips import agreement
from scripts.train_demo.datasets import AudioFeatures, as_images
from scripts.train_demo.loop import TrainingContext
from scripts.train_demo.networks import WINDOW_FRAMES, ImageMouthPredictor, TrainedUNet
from scripts.train_demo.stage_unet import Batch, LatentDataset
from scripts.train_demo.vae import Vae

_STEPS, _GUIDANCE, _NOISE_SEED = 20, 1.5, 1247
_SHUT_BELOW = 0.08
_TAKES_PER_BATCH = 8


def sampled_latents(unet: TrainedUNet, batch: Batch, guidance: float = _GUIDANCE, steps: int = _STEPS) -> Tensor:
    """Samples the latents of the batch's windows, `(B·F, 4, h, w)`, with the pipeline's noise and schedule."""
    device, (height, width) = batch.target.device, batch.target.shape[2:]
    noise = torch.from_numpy(initial_noise(_NOISE_SEED, height, width)[:, :, 0]).to(device)
    latents = noise.expand(len(batch.target), -1, -1, -1)
    mask = torch.from_numpy(latent_mask(8 * height)).to(device).expand(len(latents), 1, -1, -1)
    with torch.no_grad():
        for step in ddim_schedule(steps):
            sample = torch.cat([latents, mask, batch.masked, batch.reference], 1)
            level = torch.full((len(batch.take),), step.timestep, device=device)
            conditional = unet(sample, level, batch.audio, frames=WINDOW_FRAMES)[0].float()
            unconditional = unet(sample, level, torch.zeros_like(batch.audio), frames=WINDOW_FRAMES)[0].float()
            predicted = unconditional + guidance * (conditional - unconditional)
            c_x, c_eps = step.coefficients[:2].tolist()
            latents = c_x * latents + c_eps * predicted
    return latents


@dataclass(frozen=True, slots=True, eq=False)
class ValidationSet:
    """The takes to validate on: the first `takes` of `latents`, with the audio features of their speech."""

    latents: LatentDataset
    features: AudioFeatures
    takes: int

    def images(self, unet: TrainedUNet, vae: Vae) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each take its number, its target images and the sampled ones, `(n, 3, H, W)` each."""
        count = min(self.takes, len(self.latents.faces))
        windows = self.latents.faces.frames // WINDOW_FRAMES
        for start in range(0, count, _TAKES_PER_BATCH):
            takes = np.arange(start, min(start + _TAKES_PER_BATCH, count))
            rows = np.repeat(takes, windows)
            frames = np.tile(np.arange(windows * WINDOW_FRAMES).reshape(windows, WINDOW_FRAMES), (len(takes), 1))
            zeros, conditional = np.zeros(len(rows), np.int64), np.zeros((len(rows), 1, 1, 1), np.bool_)
            batch = self.latents.windows(rows, frames, self.features, zeros, zeros.astype(np.bool_), conditional)
            sampled = sampled_latents(unet, batch) / self.latents.scale
            for take, part in zip(takes.tolist(), sampled.split(windows * WINDOW_FRAMES), strict=True):
                target = as_images(self.latents.faces.spoken[take, : windows * WINDOW_FRAMES])
                with torch.no_grad():
                    yield take, target, vae.decode(part).float().clamp(-1, 1)


def validate(
    unet: TrainedUNet, vae: Vae, mouth_predictor: ImageMouthPredictor, validation_set: ValidationSet
) -> tuple[dict[str, float], Tensor]:
    """Scores by the opening that `mouth_predictor` finds in sampled images; and images of the first take.

    `opening`: correlation with the take's mouth; `other`: with another take's; `level`: mean absolute error of pixels;
    `shut`, `silent`: shares of such frames in which the mouth is shut.
    """
    faces, speech = validation_set.latents.faces, validation_set.latents.speech_data.speech
    openings, targets, shut, silent, level, preview = [], [], [], [], [], None
    for take, target, sampled in validation_set.images(unet, vae):
        with torch.no_grad():
            openings.append(mouth_predictor(sampled)[:, 0].float().cpu().numpy())
        kept = torch.from_numpy(mouth_mask(target.shape[2]).copy()).to(target.device)
        level.append(float(((sampled - target).abs() * (1 - kept)).sum() / (1 - kept).sum() / len(target) / 3))
        start = int(speech.starts[faces.recording[take]] + faces.first[take])
        frames = slice(start, start + len(target))
        targets.append(speech.track[frames, 0])
        shut.append(speech.shut[frames])
        silent.append(speech.silent[frames])
        preview = torch.cat([target, sampled], 2) if preview is None else preview
    if preview is None:
        raise ValueError("the validation set has no takes")
    opening = np.concatenate(openings)
    found = agreement(opening, np.concatenate(targets))
    other = agreement(opening, np.concatenate([*targets[1:], targets[0]]))
    report = {"opening": found.correlation, "lag_frames": found.lag_frames, "other": other.correlation}
    report["level"] = float(np.mean(level))
    for name, flags in (("shut", np.concatenate(shut)), ("silent", np.concatenate(silent))):
        report[name] = float((opening[flags] < _SHUT_BELOW).mean()) if flags.any() else float("nan")
    return report, preview


def save_preview(context: TrainingContext, name: str, pictures: Tensor, most: int = 12) -> None:
    """Writes up to `most` of `pictures (n, 3, H, W)` side by side to a PNG in the context's folder."""
    chosen = pictures[:: max(1, len(pictures) // most)][:most]
    levels = ((chosen.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    row = np.concatenate(list(levels), axis=1)
    cv2.imwrite(str(context.folder / f"{name}.png"), cv2.cvtColor(row, cv2.COLOR_RGB2BGR))
