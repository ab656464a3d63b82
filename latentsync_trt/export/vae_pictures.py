"""Pictures to try a VAE on: what it is made for here, and the worst that it could meet."""

import numpy as np
import torch
from torch import Tensor

from latentsync_trt.face.align import align, crop
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.media.demo_clip import portrait
from latentsync_trt.types import UInt8Array

_POINTS_PX = np.array([(199, 88), (252, 90), (223, 127)], np.float32)
"""Left brow, right brow and nose in the portrait, where the tracker finds them."""

_WHITE = 255.0
_SEED = 5


def trial_pictures(side_px: int) -> dict[str, Tensor]:
    """Pictures by what they show, each float32 `(1, 3, H, W)` in [−1, 1].

    An aligned face, the same with its mouth masked as the denoiser is given it, both with H = W = `side_px`; black,
    white, and noise of nothing but the darkest and brightest value of each color: these look the same at every size,
    and have half the height and width, which takes a quarter of the time.

    Raises:
        InputError: the package lacks its portrait.
    """
    face = torch.from_numpy(_aligned_face(side_px)).permute(2, 0, 1)[None].float() / (_WHITE / 2) - 1
    small = torch.ones_like(face[..., ::2, ::2])
    noise = torch.randint(0, 2, small.shape, generator=torch.Generator().manual_seed(_SEED)) * 2.0 - 1
    return {
        "face": face,
        "masked face": face * torch.from_numpy(mouth_mask(side_px).copy()),
        "black": -small,
        "white": small,
        "noise": noise,
    }


def _aligned_face(side_px: int) -> UInt8Array:
    """The face of the built-in portrait in the networks' pose, uint8 `(side, side, 3)` RGB."""
    matrix, _ = align(_POINTS_PX, None, side_px)
    return crop(portrait(), matrix, side_px).image
