"""Mouths drawn ahead of time on a grid of poses, and interpolated between, because drawing one is slow."""

from collections.abc import Callable
from itertools import product
from multiprocessing.pool import Pool
from pathlib import Path
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from latentsync_trt.types import Float64Array, UInt8Array
from scripts.train_demo.mouth import MouthPose

Levels = tuple[int, int, int]
"""Poses along opening, width and rounding."""

_LOWEST, _HIGHEST = np.array([0.0, -1.0, 0.0]), np.array([1.0, 1.0, 1.0])


def draw_atlas(path: Path, levels: Levels, draw: Callable[[MouthPose], UInt8Array], pool: Pool) -> None:
    """Draws all poses of the grid in the processes of `pool` into the file `path`: uint8 `(poses, h, w, 3)`."""
    steps = [np.linspace(low, high, count) for low, high, count in zip(_LOWEST, _HIGHEST, levels, strict=True)]
    poses = [MouthPose(*map(float, pose)) for pose in product(*steps)]
    drawn = pool.imap(draw, poses, chunksize=8)
    first = next(drawn)
    images = np.lib.format.open_memmap(path, "w+", np.uint8, (len(poses), *first.shape))
    images[0] = first
    for number, image in enumerate(drawn, 1):
        images[number] = image
    images.flush()


class Atlas:
    """The memory-mapped result of `draw_atlas`."""

    def __init__(self, path: Path, levels: Levels) -> None:
        images = np.load(path, mmap_mode="r")
        self._images = images.reshape(*levels, *images.shape[1:])
        self._last = np.array(levels) - 1

    def mouth(self, pose: MouthPose) -> UInt8Array:
        """The mouth in `pose`, by trilinear interpolation; poses beyond the grid are clipped to it."""
        values = np.array([pose.opening, pose.width, pose.rounding])
        position = ((values - _LOWEST) / (_HIGHEST - _LOWEST)).clip(0, 1) * self._last
        low = np.minimum(position.astype(np.int64), np.maximum(self._last - 1, 0))
        return np.rint(self._interpolated(low, position - low)).astype(np.uint8)

    def _interpolated(self, low: NDArray[np.int64], share: Float64Array) -> "NDArray[np.float32]":
        total: NDArray[np.float32] | None = None
        for corner in product((0, 1), repeat=3):
            weight = float(np.prod(np.where(corner, share, 1 - share)))
            if not weight:
                continue
            image = np.asarray(self._images[tuple(low + corner)]).astype(np.float32)
            total = image * np.float32(weight) if total is None else cv2.scaleAdd(image, weight, total)
        return cast("NDArray[np.float32]", total)
