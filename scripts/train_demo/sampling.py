"""Paints clips with the networks as they are trained, to see how training goes; the shipped way is the pipeline's."""

import numpy as np
import torch
from torch import Tensor

from latentsync_trt.bench.sync_measure import agreement
from latentsync_trt.diffusion.loop import initial_noise
from latentsync_trt.diffusion.scheduler import ddim_schedule
from latentsync_trt.face.mask import latent_mask, mouth_mask
from scripts.train_demo.banks import FeatureBank, SpeechBank, as_images
from scripts.train_demo.loop import Workshop
from scripts.train_demo.networks import WINDOW_FRAMES, MouthSeer, TrainedUNet
from scripts.train_demo.stage_unet import Batch, LatentBank
from scripts.train_demo.vae import Vae

_STEPS, _GUIDANCE, _NOISE_SEED = 20, 1.5, 1247
_SHUT_BELOW = 0.08


def painted(unet: TrainedUNet, batch: Batch, guidance: float = _GUIDANCE, steps: int = _STEPS) -> Tensor:
    """Latents of the batch's windows `(B·F, 4, h, w)`, from noise, by the pipeline's schedule."""
    device, (height, width) = batch.target.device, batch.target.shape[2:]
    noise = torch.from_numpy(initial_noise(_NOISE_SEED, height, width)[:, :, 0]).to(device)
    latents = noise.expand(len(batch.target), -1, -1, -1)
    mask = torch.from_numpy(latent_mask(8 * height)).to(device).expand(len(latents), 1, -1, -1)
    with torch.no_grad():
        for step in ddim_schedule(steps):
            sample = torch.cat([latents, mask, batch.masked, batch.reference], 1)
            level = torch.full((len(batch.clip),), step.timestep, device=device)
            heard = unet(sample, level, batch.audio, frames=WINDOW_FRAMES)[0].float()
            deaf = unet(sample, level, torch.zeros_like(batch.audio), frames=WINDOW_FRAMES)[0].float()
            noise_now = deaf + guidance * (heard - deaf)
            c_x, c_eps = step.coefficients[:2].tolist()
            latents = c_x * latents + c_eps * noise_now
    return latents


def judged(
    unet: TrainedUNet, vae: Vae, seer: MouthSeer, latents: LatentBank, features: FeatureBank, bank: SpeechBank
) -> tuple[dict[str, float], Tensor]:
    """How well held-out clips are painted, by the mouth that is seen in them; and pictures of the first, to look at.

    `opening`: correlation with the mouth that spoke; `other`: with another clip's; `shut`, `silent`: frames seen shut.
    """
    windows = latents.faces.frames // WINDOW_FRAMES
    seen, said, shut, silent, level, first = [], [], [], [], [], None
    for clip in range(len(latents.faces)):
        frames = np.arange(windows * WINDOW_FRAMES).reshape(windows, WINDOW_FRAMES)
        rows, nothing = np.full(windows, clip), np.zeros(windows, np.int64)
        quiet = np.zeros((windows, 1, 1, 1), np.bool_)
        batch = latents.windows(rows, frames, features, nothing, nothing.astype(np.bool_), quiet)
        with torch.no_grad():
            made = vae.decode(painted(unet, batch) / latents.scale).float().clamp(-1, 1)
            seen.append(seer(made)[:, 0].float().cpu().numpy())
        truth = as_images(latents.faces.spoken[clip, : windows * WINDOW_FRAMES])
        kept = torch.from_numpy(mouth_mask(truth.shape[2]).copy()).to(truth.device)
        level.append(float(((made - truth).abs() * (1 - kept)).sum() / (1 - kept).sum() / len(truth) / 3))
        start = int(bank.speech.starts[latents.faces.recording[clip]] + latents.faces.first[clip])
        place = slice(start, start + windows * WINDOW_FRAMES)
        said.append(bank.speech.track[place, 0])
        shut.append(bank.speech.shut[place])
        silent.append(bank.speech.silent[place])
        first = torch.cat([truth, made], 2) if first is None else first
    a, b = np.concatenate(seen), np.concatenate(said)
    found, other = agreement(a, b), agreement(a, np.concatenate([*said[1:], said[0]]))
    report = {"opening": found.correlation, "lag_frames": found.lag_frames, "other": other.correlation}
    report["level"] = float(np.mean(level))
    for name, flags in (("shut", np.concatenate(shut)), ("silent", np.concatenate(silent))):
        report[name] = float((a[flags] < _SHUT_BELOW).mean()) if flags.any() else float("nan")
    if first is None:
        raise ValueError("no clip to judge")
    return report, first


def show(workshop: Workshop, name: str, pictures: Tensor, most: int = 12) -> None:
    """Writes some of `pictures (n, 3, H, W)` side by side as a PNG into the workshop's folder."""
    import cv2

    chosen = pictures[:: max(1, len(pictures) // most)][:most]
    levels = ((chosen.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    row = np.concatenate(list(levels), axis=1)
    cv2.imwrite(str(workshop.folder / f"{name}.png"), cv2.cvtColor(row, cv2.COLOR_RGB2BGR))
