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
    amplitudes: Float32Array
    """Standard deviation of each band of noise in Y, Cr and Cb, in levels, `(3, BANDS)`."""
    by_brightness: Float32Array
    """Factor at each level of luma, `(256,)`."""


def amplitudes_of(variances: Float64Array) -> Float32Array:
    """Returns `Grain.amplitudes` for noise with `variances (3, BANDS)` in the bands of
    `split_bands`.
    """
    return np.asarray(np.sqrt(np.maximum(variances @ _to_noise(), 0)), np.float32)


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
    strength *= np.sqrt(2 / np.maximum(weight, _LEAST_WEIGHT) - 1)
    random = np.random.default_rng([grain.seed, *grain.time_s.as_integer_ratio(), *corner])
    height, width = weight.shape
    noise = _noise(grain.seed, _PLACES_PX + (1 << max(weight.shape).bit_length()))
    for plane, step, amplitudes in zip(planes, _STEPS, grain.amplitudes, strict=True):
        left, top = random.integers(0, _PLACES_PX, 2).tolist()
        bands = noise[:, top : top + height + step : step, left : left + width + step : step]
        samples = np.einsum("b,bhw->hw", amplitudes, bands)
        samples = cv2.resize(samples, None, fx=step, fy=step, interpolation=cv2.INTER_NEAREST)
        plane += strength * samples[corner[1] % step :, corner[0] % step :][:height, :width]


@lru_cache(maxsize=4)  # faces of all sizes of a clip
def _noise(seed: int, side_px: int) -> Float32Array:
    """Returns independent noise of each band, with standard deviation 1, `(BANDS, side_px,
    side_px)`.
    """
    random = np.random.default_rng(seed)
    bands = []
    for level in range(BANDS):
        white = random.standard_normal((side_px, side_px), np.float32)
        band = split_bands(white)[level]
        noise = cv2.resize(band, (side_px, side_px), interpolation=cv2.INTER_CUBIC)
        bands.append(noise / noise.std())
    return np.array(bands, np.float32)


@cache
def _to_noise() -> Float64Array:
    """Returns the matrix `(BANDS, BANDS)` from variances in the bands of `split_bands` to those of
    the noise that has them.
    """
    variances = [[band.var() for band in split_bands(noise)] for noise in _noise(0, _PLACES_PX)]
    return np.linalg.inv(variances)
