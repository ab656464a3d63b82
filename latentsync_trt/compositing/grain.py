"""Grain: noise like that of a source, for what was painted into its frames. Pure.

It is cut out of large pictures of noise at random places, which depend on seed, time and place, so
that equal runs have equal grain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache

import cv2
import numpy as np

from latentsync_trt.compositing.bands import BANDS, split_bands
from latentsync_trt.types import Float32Array, Float64Array

_PLACES_PX = 256
"""Parts of noise begin in so many columns and rows."""

_STEPS = (1, 2, 2)
"""So many rows and columns of pixels does a sample of Y, Cr and Cb cover, as in 4:2:0: eyes see no
finer colors.
"""
_LEAST_WEIGHT = 0.2
"""Where less of a patch shows, the frame's own grain is enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Grain:
    """The grain of one frame."""

    seed: int
    time_s: Fraction
    amplitudes: Float64Array
    """Standard deviation of each band of noise in Y, Cr and Cb, in levels, `(3, BANDS)`."""
    by_brightness: Float32Array
    """Factor at each level of luma, `(256,)`."""


def amplitudes_of(variances: Float64Array) -> Float64Array:
    """Returns `Grain.amplitudes` for noise with `variances (3, BANDS)` in the bands of
    `split_bands`.
    """
    return np.asarray(np.sqrt(np.maximum(variances @ _to_noise(), 0)))


def add_grain(
    planes: Sequence[Float32Array], grain: Grain, corner: tuple[int, int], weight: Float32Array
) -> None:
    """Adds grain to Y, Cr and Cb of a patch, float32 `(h, w)` in levels.

    Half transparent pixels get more of it: frame and patch, mixed, have less noise than each.

    Args:
        corner: x and y of the patch in the frame.
        weight: how much of the patch shows, `(h, w)`.
    """
    levels = np.empty(weight.shape, np.uint8)
    cv2.convertScaleAbs(planes[0], dst=levels)
    strength = cv2.LUT(levels, grain.by_brightness)
    cv2.convertScaleAbs(weight, dst=levels, alpha=255)
    strength = strength * cv2.LUT(levels, _by_weight())
    time_s = grain.time_s
    random = np.random.default_rng([grain.seed, time_s.numerator, time_s.denominator, *corner])
    height, width = weight.shape
    bands = _noise(grain.seed, _PLACES_PX + (1 << max(weight.shape).bit_length()))
    for plane, step, amplitudes in zip(planes, _STEPS, grain.amplitudes.tolist(), strict=True):
        noise = np.zeros((height // step + 1, width // step + 1), np.float32)
        for band, amplitude in zip(bands, amplitudes, strict=True):
            left, top = random.integers(0, _PLACES_PX, 2).tolist()
            rows = slice(top, top + step * noise.shape[0], step)
            part = band[rows, left : left + step * noise.shape[1] : step]
            cv2.scaleAdd(part, amplitude, noise, dst=noise)
        if step > 1:
            noise = noise.repeat(step, axis=0).repeat(step, axis=1)
        noise = noise[corner[1] % step :, corner[0] % step :][:height, :width]
        plane += noise * strength


@cache
def _by_weight() -> Float32Array:
    """Returns the factor, `(256,)`, that keeps the noise of frame and patch together where 1/255,
    2/255, … of the patch shows.
    """
    weight = np.maximum(np.arange(256) / 255, _LEAST_WEIGHT)
    return np.sqrt(2 / weight - 1).astype(np.float32)


@lru_cache(maxsize=4)  # faces of all sizes of a clip
def _noise(seed: int, side_px: int) -> list[Float32Array]:
    """Returns independent noise of each band, with standard deviation 1, in squares."""
    random = np.random.default_rng(seed)
    bands = []
    for level in range(BANDS):
        white = random.standard_normal((side_px, side_px), np.float32)
        noise = split_bands(white)[level]
        for _ in range(level - 1):
            noise = np.asarray(cv2.pyrUp(noise), np.float32)
        bands.append(noise / noise.std())
    return bands


@cache
def _to_noise() -> Float64Array:
    """Returns the matrix `(BANDS, BANDS)` from variances in the bands of `split_bands` to those of
    the noise that has them.
    """
    variances = [[band.var() for band in split_bands(noise)] for noise in _noise(0, _PLACES_PX)]
    return np.linalg.inv(variances)
