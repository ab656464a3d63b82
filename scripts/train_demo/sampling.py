"""Paints clips with the networks as they are trained, to see how training goes; the shipped way is the pipeline's."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latentsync_trt.bench.sync_measure import agreement
from latentsync_trt.diffusion.loop import initial_noise
from latentsync_trt.diffusion.scheduler import ddim_schedule
from latentsync_trt.face.mask import latent_mask, mouth_mask
from scripts.train_demo.datasets import AudioFeatures, as_images
from scripts.train_demo.loop import TrainingContext
from scripts.train_demo.networks import WINDOW_FRAMES, ImageMouthPredictor, TrainedUNet
from scripts.train_demo.stage_unet import Batch, LatentDataset
from scripts.train_demo.vae import Vae

_STEPS, _GUIDANCE, _NOISE_SEED = 20, 1.5, 1247
_SHUT_BELOW = 0.08
_TAKES_PER_BATCH = 8


def sampled_latents(unet: TrainedUNet, batch: Batch, guidance: float = _GUIDANCE, steps: int = _STEPS) -> Tensor:
    """Latents of the batch's windows `(B·F, 4, h, w)`, from noise, by the pipeline's schedule."""
    device, (height, width) = batch.target.device, batch.target.shape[2:]
    noise = torch.from_numpy(initial_noise(_NOISE_SEED, height, width)[:, :, 0]).to(device)
    latents = noise.expand(len(batch.target), -1, -1, -1)
    mask = torch.from_numpy(latent_mask(8 * height)).to(device).expand(len(latents), 1, -1, -1)
    with torch.no_grad():
        for step in ddim_schedule(steps):
            sample = torch.cat([latents, mask, batch.masked, batch.reference], 1)
            level = torch.full((len(batch.take),), step.timestep, device=device)
            heard = unet(sample, level, batch.audio, frames=WINDOW_FRAMES)[0].float()
            unconditional = unet(sample, level, torch.zeros_like(batch.audio), frames=WINDOW_FRAMES)[0].float()
            noise_now = unconditional + guidance * (heard - unconditional)
            c_x, c_eps = step.coefficients[:2].tolist()
            latents = c_x * latents + c_eps * noise_now
    return latents


@dataclass(frozen=True, slots=True, eq=False)
class ValidationSet:
    """What is painted to see how training goes: the first `takes` of a speech_data, with what is heard of their speech."""

    latents: LatentDataset
    heard: AudioFeatures
    takes: int

    def sampled_latents(self, unet: TrainedUNet, vae: Vae) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each take its number, its pictures `(n, 3, H, W)`, and what the networks make of them."""
        count = min(self.takes, len(self.latents.faces))
        windows = self.latents.faces.frames // WINDOW_FRAMES
        for start in range(0, count, _TAKES_PER_BATCH):
            takes = np.arange(start, min(start + _TAKES_PER_BATCH, count))
            rows = np.repeat(takes, windows)
            frames = np.tile(np.arange(windows * WINDOW_FRAMES).reshape(windows, WINDOW_FRAMES), (len(takes), 1))
            nothing, quiet = np.zeros(len(rows), np.int64), np.zeros((len(rows), 1, 1, 1), np.bool_)
            batch = self.latents.windows(rows, frames, self.heard, nothing, nothing.astype(np.bool_), quiet)
            drawn = sampled_latents(unet, batch) / self.latents.scale
            for take, part in zip(takes.tolist(), drawn.split(windows * WINDOW_FRAMES), strict=True):
                truth = as_images(self.latents.faces.spoken[take, : windows * WINDOW_FRAMES])
                with torch.no_grad():
                    yield take, truth, vae.decode(part).float().clamp(-1, 1)


def validate(unet: TrainedUNet, vae: Vae, mouth_predictor: ImageMouthPredictor, examined: ValidationSet) -> tuple[dict[str, float], Tensor]:
    """How well takes are painted, by the mouth that is seen in them; and pictures of the first, to look at.

    `opening`: correlation with the mouth that spoke; `other`: with another take's; `shut`, `silent`: frames seen shut.
    """
    faces, speech = examined.latents.faces, examined.latents.speech_data.speech
    seen, said, shut, silent, level, first = [], [], [], [], [], None
    for take, truth, made in examined.sampled_latents(unet, vae):
        with torch.no_grad():
            seen.append(mouth_predictor(made)[:, 0].float().cpu().numpy())
        kept = torch.from_numpy(mouth_mask(truth.shape[2]).copy()).to(truth.device)
        level.append(float(((made - truth).abs() * (1 - kept)).sum() / (1 - kept).sum() / len(truth) / 3))
        start = int(speech.starts[faces.recording[take]] + faces.first[take])
        place = slice(start, start + len(truth))
        said.append(speech.track[place, 0])
        shut.append(speech.shut[place])
        silent.append(speech.silent[place])
        first = torch.cat([truth, made], 2) if first is None else first
    if first is None:
        raise ValueError("no take to judge")
    a, b = np.concatenate(seen), np.concatenate(said)
    found, other = agreement(a, b), agreement(a, np.concatenate([*said[1:], said[0]]))
    report = {"opening": found.correlation, "lag_frames": found.lag_frames, "other": other.correlation}
    report["level"] = float(np.mean(level))
    for name, flags in (("shut", np.concatenate(shut)), ("silent", np.concatenate(silent))):
        report[name] = float((a[flags] < _SHUT_BELOW).mean()) if flags.any() else float("nan")
    return report, first


def save_preview(context: TrainingContext, name: str, pictures: Tensor, most: int = 12) -> None:
    """Writes some of `pictures (n, 3, H, W)` side by side as a PNG into the context's folder."""
    import cv2

    chosen = pictures[:: max(1, len(pictures) // most)][:most]
    levels = ((chosen.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    row = np.concatenate(list(levels), axis=1)
    cv2.imwrite(str(context.folder / f"{name}.png"), cv2.cvtColor(row, cv2.COLOR_RGB2BGR))
