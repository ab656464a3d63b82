"""By how much the final latents differ from those of the public release's preprocessing, and which part causes it.

    python scripts/measure_public_difference.py CLIP POINTS.json MASK.png UNET.pt VAE --json FILE   # the export extra

POINTS: `[left brow, right brow, nose]` in pixels for the first frames, painted in 20 guided steps in float32 by
PyTorch, with one noise and random audio. The reference has FFmpeg's usual RGB, a crop without decimals, and the MASK.
A row has some parts as here. `pixels`: mean difference of the aligned faces in levels of 255 (R, G, B);
`latents_percent`: Euclidean norm of the latents' difference in percent of their own.
"""

import argparse
import json
import sys
from itertools import islice
from pathlib import Path

import av
import cv2
import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from latentsync_trt.diffusion import conditioning, initial_noise, solver_schedule
from latentsync_trt.export.networks import VaeEncoder, load_unet, load_vae
from latentsync_trt.export.unet import DenoiseStep
from latentsync_trt.face.align import OUTSIDE, align, crop, crop_size_px, inverse
from latentsync_trt.face.mask import LATENT_SCALE, latent_mask, mouth_mask
from latentsync_trt.media.reader import read_frames
from latentsync_trt.types import Float32Array, Float64Array, UInt8Array
from latentsync_trt.version import __version__

PARTS = {"nothing": (), "color": ("color",), "crop": ("crop",), "mask": ("mask",), "all": ("color", "crop", "mask")}


def public_crop(frame: UInt8Array, matrix: Float64Array, side_px: int) -> UInt8Array:
    """The warp in double precision, truncated to whole levels, then resized."""
    width, height = crop_size_px(side_px)
    grid = np.stack([*np.meshgrid(np.arange(width), np.arange(height)), np.ones((height, width))], -1)
    places = torch.from_numpy(grid @ inverse(matrix).T * 2 / (np.array(frame.shape[1::-1]) - 1) - 1)[None]
    picture = torch.from_numpy(frame).double().permute(2, 0, 1)[None]
    warped = F.grid_sample(picture - OUTSIDE, places, align_corners=True)[0].permute(1, 2, 0).numpy() + OUTSIDE
    return cv2.resize(np.floor(warped + 1e-9).astype(np.uint8), (side_px,) * 2, interpolation=cv2.INTER_LANCZOS4)


@torch.no_grad()
def final_latents(step: DenoiseStep, encode: VaeEncoder, faces: UInt8Array, masks: list[Float32Array]) -> Float32Array:
    """The final latents `(1, 4, F, h, w)`, always of the same noise and audio; `masks`: of pixels and of latents."""
    images = torch.from_numpy(faces).permute(0, 3, 1, 2) / 127.5 - 1
    known = [encode(each).numpy()[None] for each in (images * torch.tensor(masks[0]), images)]
    given = torch.from_numpy(conditioning(masks[1], *known))
    audio = torch.randn(1, len(faces), 50, step.unet.config.audio_width, generator=torch.Generator().manual_seed(1))
    latents = torch.from_numpy(initial_noise(1, *masks[1].shape)).repeat(1, 1, len(faces), 1, 1)
    history, guidance = torch.zeros_like(latents), torch.tensor(1.5)
    for each in solver_schedule("ddim", 20):
        numbers = torch.tensor(each.timestep), guidance, history, torch.tensor(each.coefficients)
        latents, history, _ = step(latents, given, audio, *numbers)
    return latents.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    for name in ("clip", "points", "mask", "unet", "vae"):
        parser.add_argument(name, type=Path)
    for name, usual_value in (("--frames", 4), ("--resolution", 256)):
        parser.add_argument(name, type=int, default=usual_value)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    count, side_px = given.frames, given.resolution
    matrices, bias = [], None
    for points in json.loads(given.points.read_text(encoding="utf-8"))[:count]:
        matrix, bias = align(np.rint(np.array(points, np.float32)), bias, side_px)
        matrices.append(matrix)
    with av.open(str(given.clip)) as container:
        usual = [frame.to_ndarray(format="rgb24") for frame in islice(container.decode(video=0), count)]
    own = [frame.rgb for frame in islice(read_frames(given.clip), count)]
    drawn = cv2.imread(str(given.mask), cv2.IMREAD_GRAYSCALE)
    public_mask = cv2.resize(drawn, (side_px,) * 2, interpolation=cv2.INTER_LANCZOS4) / np.float32(255)
    public_small = F.interpolate(torch.from_numpy(public_mask)[None, None], side_px // LATENT_SCALE)[0, 0].numpy()
    step = DenoiseStep(load_unet(given.unet, torch.float32), guided=True)
    encode, rows = VaeEncoder(load_vae(given.vae, torch.float32)), []
    for name, parts in PARTS.items():
        take = (lambda *face: crop(*face).image) if "crop" in parts else public_crop
        pairs = zip(own if "color" in parts else usual, matrices, strict=True)
        faces = np.stack([take(*pair, side_px) for pair in pairs])
        masks = [mouth_mask(side_px), latent_mask(side_px)] if "mask" in parts else [public_mask, public_small]
        latents = final_latents(step, encode, faces, masks)
        if not parts:
            first_faces, first = faces, latents
        pixels = (faces.astype(int) - first_faces).mean(axis=(0, 1, 2)).round(2).tolist()
        percent = 100 * float(np.linalg.norm(latents - first) / np.linalg.norm(first))
        rows.append({"as_here": name, "pixels": pixels, "latents_percent": round(percent, 3)})
    versions = {"version": __version__, "torch": torch.__version__, "opencv": cv2.__version__, "pyav": av.__version__}
    settings = {"frames": count, "resolution_px": side_px, "clip": given.clip.name}
    given.json.write_text(json.dumps(versions | settings | {"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
