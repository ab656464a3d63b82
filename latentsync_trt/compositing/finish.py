"""Finish of a pasted face: its colors, then the detail and the grain that the networks lost, in
amounts that change slowly over a track. No content is new. Pure.
"""

from dataclasses import dataclass
from fractions import Fraction

import cv2
import numpy as np

from latentsync_trt.compositing.bands import BANDS, amplify_bands
from latentsync_trt.compositing.grain import Grain, add_grain, amplitudes_of
from latentsync_trt.compositing.known_part import Evidence, compare_frames
from latentsync_trt.types import Float32Array, Float64Array

_OLD_WEIGHT = 0.92
"""Each comparison counts so much less than the next one: eight later it counts half."""

_FIRST_COMPARED = 12
_FRAMES_PER_COMPARISON = 4
"""Each of so many frames of a track is compared with the one before, and then one of a few: the
means change slowly, and a comparison takes long.
"""
_LEAST_POWER = 0.01
"""Power of a band, in levels², below which it says nothing of what was lost."""
_MOST_GAIN = 3.0
"""A band that has lost more is mostly beyond what the networks saw."""
_OVERLAP = np.array([0.65, 0.6, 0.35, 0.35, 0.35])
"""The filters of neighboring bands overlap, and most detail of a band lies toward the coarser one:
so much of the difference between their gains is added to the finer one's, as measured.
"""
_MOST_ERROR = 4.0
"""A gain is at most 1 + this × what would bring a band closest to the source. At 2, the band is as
far from the source as without a gain; the coarser bands, which come closer, make up for more.
"""

_ROUNDING_VARIANCE = 0.45
"""Variance of the luma, in levels², below which a picture has no grain: rounding to 8 bits, and
moving by a part of a pixel, leave as much.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """How the pixels of a patch are finished."""

    color: Float32Array | None = None
    """An affine change of RGB levels, `(3, 4)`; None leaves the colors as they were painted."""
    gains: tuple[float, ...] = (1.0,) * BANDS
    """Factor of each band of detail."""
    grain: Grain | None = None
    """None adds no grain."""


def finish_patch(
    levels: Float32Array, finish: Finish, corner: tuple[int, int], weight: Float32Array
) -> None:
    """Finishes a patch, RGB `levels (h, w, 3)` from 0 to 255.

    Args:
        corner: x and y of the patch in the frame.
        weight: how much of the patch shows, `(h, w)`.
    """
    if finish.color is not None:
        cv2.transform(levels, finish.color, dst=levels)
    if finish.grain is None and max(finish.gains) == 1:
        return
    cv2.cvtColor(levels, cv2.COLOR_RGB2YCrCb, dst=levels)
    planes = [np.ascontiguousarray(levels[..., index]) for index in range(3)]
    amplify_bands(planes[0], finish.gains)
    if finish.grain is not None:
        add_grain(planes, finish.grain, corner, weight)
    cv2.merge(planes, dst=levels)
    cv2.cvtColor(levels, cv2.COLOR_YCrCb2RGB, dst=levels)


@dataclass(frozen=True, slots=True, eq=False)
class TrackDetail:
    """What the frames of a track so far tell of detail and noise."""

    upper_face: Float32Array | None = None
    """What `known_part` returned of the last frame; None before the first one."""
    sums: Evidence | None = None
    """Of all frames."""
    frames: int = 0
    """How many there were."""

    def after(self, upper_face: Float32Array, following: Float32Array | None) -> "TrackDetail":
        """Returns what is known after the next frame of the track.

        Args:
            following: of the frame after that, with which the first one of a track is compared.
        """
        frames = self.frames + 1
        newest = None
        if self.upper_face is None:
            if following is not None:
                newest = compare_frames(following, upper_face)
        elif frames <= _FIRST_COMPARED or frames % _FRAMES_PER_COMPARISON == 0:
            newest = compare_frames(upper_face, self.upper_face)
        if newest is not None and self.sums is not None:
            newest = newest.after(self.sums, _OLD_WEIGHT)
        return TrackDetail(upper_face, newest or self.sums, frames)


def gains_of(evidence: Evidence) -> Float64Array:
    """Returns the gain of each band, `(BANDS,)`, that gives it the power of the source's; less
    where the picture would be further from the source than without it.
    """
    source, common, painted = np.maximum(evidence.detail, 0) + _LEAST_POWER
    wanted = np.sqrt(source / painted)
    wanted += _OVERLAP * (wanted - np.append(wanted[1:], 1))
    most = 1 + _MOST_ERROR * (common / painted - 1)
    return np.clip(np.minimum(wanted, most), 1, _MOST_GAIN)


def grain_of(evidence: Evidence, gains: Float64Array, seed: int, time_s: Fraction) -> Grain | None:
    """Returns what the painted face lacks of the source's noise after these gains; None where the
    source has none.
    """
    if not evidence.noise_weight:
        return None
    noise = evidence.noise()
    source, painted = np.split(noise.mean(axis=1).T, 2)
    luma_variance = source[0].sum()
    if luma_variance <= _ROUNDING_VARIANCE:
        return None
    painted[0] *= gains**2
    missing = np.maximum(source - painted, 0) * (1 - _ROUNDING_VARIANCE / luma_variance)

    factors = np.sqrt(noise[..., 0].sum(axis=0) / luma_variance)
    brightness = evidence.brightness / evidence.noise_weight
    factor_of_level = np.interp(np.arange(256), brightness, factors)
    return Grain(seed, time_s, amplitudes_of(missing), factor_of_level.astype(np.float32))
