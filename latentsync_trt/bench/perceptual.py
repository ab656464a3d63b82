"""LPIPS, a learned distance of pictures, where the user has installed it with its weights; neither is part of this
package."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.types import UInt8Array

_NEEDED = ("torch", "torchvision", "lpips")

_BACKBONE = "alexnet-owt-7be5be79.pth"
"""torchvision's AlexNet, which package `lpips` would otherwise download."""

_LEAST_PX = 64
"""Below this AlexNet's last layers have no pixel left."""


def lpips_distance(a: UInt8Array, b: UInt8Array) -> float | None:
    """Mean LPIPS (AlexNet) of pictures `(n, h, w, 3)`, 0 for equal ones.

    None where it is not measured: without the package or its weights, and for sides below 64 px.
    """
    if min(a.shape[1:3]) < _LEAST_PX or not _is_there():
        return None
    import lpips
    import torch

    network = _network(lpips.LPIPS)
    with torch.inference_mode():
        distances = [float(network(_tensor(x), _tensor(y))) for x, y in zip(a, b, strict=True)]
    return float(np.mean(distances))


def _is_there() -> bool:
    if any(find_spec(name) is None for name in _NEEDED):
        return False
    import torch

    return Path(torch.hub.get_dir(), "checkpoints", _BACKBONE).is_file()


@cache
def _network(make: Any) -> Any:
    return make(net="alex", verbose=False).eval()


def _tensor(picture: UInt8Array) -> Any:
    """`(1, 3, h, w)` in [−1, 1]."""
    import torch

    return torch.from_numpy(picture.transpose(2, 0, 1)[None] / np.float32(127.5) - np.float32(1))
