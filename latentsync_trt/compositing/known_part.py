"""The part of a face that the networks know, in the frame and as they painted it: what they lost
there, they lost at the mouth, too. Pure.

Detail and noise are told apart by the frame before: detail stays the same, noise does not. The
product of two frames is the power of detail alone, half the square of their difference that of
noise.
"""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.compositing.bands import split_bands
from latentsync_trt.compositing.resize import FittedFace
from latentsync_trt.face.align import inverse, shifted, steps, transformed
from latentsync_trt.types import Float32Array, Float64Array, Picture

_CENTER = np.array([0.5, 0.2])
_SIZE = np.array([0.5, 0.28])
"""Center and size of the part in a crop, x and y, whose sides are 1: forehead and eyes, above the
mask of the mouth.
"""
_MOST_PX = np.array([144, 72])
"""The part is at most so wide and high in the frame, to limit the cost."""
_LEAST_PX = 32
"""A smaller part says nothing."""

BRIGHTNESSES = 3
"""Noise is measured in as many equal groups of blocks, the darkest first."""
_NOISE_BLOCK_PX = 8
"""Side of the blocks in which detail and noise are measured."""
_FLAT_SHARE = 0.4
"""Share of the blocks in which noise is measured: those with the least detail."""
_STRONG = 4.0
"""Blocks with more detail than this times the usual one count as if they had that much: edges of
hair and of eyes would hide the skin.
"""
_LEAST_VARIANCE = 0.02
"""Variance of noise, in levels², below which there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What two frames of a track tell of detail and noise, or many in weighted sums."""

    detail: Float64Array
    """Shape `(3, BANDS)`, of the luma: the mean product of the source with itself, of the source
    with the painted face, and of this with itself, each without noise.
    """
    inverse_noise: Float64Array
    """Shape `(BRIGHTNESSES, BANDS, 6)`: 1 / variance of the noise in Y, Cr and Cb of the source,
    then of the painted face; so that frames in which something moves count little.
    """
    brightness: Float64Array
    """The mean luma at which each group of the noise was measured, `(BRIGHTNESSES,)`."""
    noise_weight: float
    """What the last two are divided by: 1, and 0 where both frames show the same picture, which
    says nothing of its noise.
    """

    @property
    def slopes(self) -> tuple[float, ...]:
        """How much of each band of the source is in the painted face: 1 = all."""
        source, common, _ = self.detail
        return tuple((common / np.maximum(source, 1e-6)).tolist())

    def after(self, older: "Evidence", weight: float) -> "Evidence":
        """Returns the sums with older evidence, which counts so much."""
        return Evidence(
            self.detail + weight * older.detail,
            self.inverse_noise + weight * older.inverse_noise,
            self.brightness + weight * older.brightness,
            self.noise_weight + weight * older.noise_weight,
        )

    def noise(self) -> Float64Array:
        """Returns the variance of noise, shaped like `inverse_noise`."""
        return np.maximum(self.noise_weight / self.inverse_noise - _LEAST_VARIANCE, 0)


def known_part(picture: Picture, face: FittedFace, color: Float32Array | None) -> Float32Array:
    """Returns the part of a frame and of the painted face as it would be pasted there, with a
    change of its colors as in `Finish`: Y, Cr and Cb of the frame, then of the face, in levels,
    float32 `(h, w, 6)`.
    """
    to_frame = inverse(face.matrix)
    size = np.array(face.levels.shape[1::-1])
    center = transformed(np.array([_CENTER * size], np.float32), to_frame)[0]
    reach = np.minimum(_SIZE * size * steps(to_frame), _MOST_PX) / 2
    corners = np.rint([center - reach, center + reach])
    (left, top), (right, bottom) = np.clip(corners, 0, picture.shape[1::-1]).astype(int).tolist()
    source = picture[top:bottom, left:right].astype(np.float32)
    painted = np.zeros_like(source)
    if not source.size:
        return np.dstack([source, painted])
    from_part = shifted(face.matrix, left, top)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    cv2.warpAffine(face.levels, from_part, source.shape[1::-1], dst=painted, flags=flags)
    if color is not None:
        cv2.transform(painted, color, dst=painted)
    return np.dstack([cv2.cvtColor(each, cv2.COLOR_RGB2YCrCb) for each in (source, painted)])


def compare_frames(now: Float32Array, before: Float32Array) -> Evidence | None:
    """Returns what the known parts of two frames of a track tell, one after the other; None where
    they have too little in common.
    """
    new, old = _in_common(now, before, 0, 0)
    if min(new.shape[:2]) < _LEAST_PX:
        return None
    luma = np.ascontiguousarray(new[..., 0])
    old_luma = np.ascontiguousarray(old[..., 0])
    (right, down), _ = cv2.phaseCorrelate(old_luma, luma, _window(*luma.shape))
    new, old = _in_common(now, before, round(right), round(down))
    if min(new.shape[:2]) < _LEAST_PX:
        return None
    bands = list(zip(split_bands(new), split_bands(old), strict=True))
    rows = len(new) // _NOISE_BLOCK_PX
    energies = [
        _means_of_blocks(each[0][..., :1] * each[1][..., :1], rows)[..., 0] for each in bands
    ]
    detail = [_powers(*each, energy) for each, energy in zip(bands, energies, strict=True)]

    coarse = energies[-1] + energies[-2]
    is_flat = coarse <= np.sort(coarse.ravel())[int(_FLAT_SHARE * coarse.size)]
    noise = np.array([_means_of_blocks(np.square(_change(*each)), rows)[is_flat] for each in bands])
    brightness = _means_of_blocks(new, rows)[is_flat, 0]
    groups = np.array_split(np.argsort(brightness), BRIGHTNESSES)
    # Medians, in a fifth of the time of `np.median`.
    variances = [np.sort(noise[:, group], axis=1)[:, len(group) // 2] / 2 for group in groups]
    weight = float(noise[..., 0].any())
    return Evidence(
        np.array(detail).T,
        weight / (np.array(variances) + _LEAST_VARIANCE),
        weight * np.array([brightness[group].mean() for group in groups]),
        weight,
    )


def _in_common(
    new: Float32Array, old: Float32Array, right: int, down: int
) -> tuple[Float32Array, Float32Array]:
    """Returns whole blocks of what two pictures have in common, where the new one lies so far to
    the right of the old one, and below.
    """
    new = new[max(down, 0) :, max(right, 0) :]
    old = old[max(-down, 0) :, max(-right, 0) :]
    height = min(len(new), len(old)) // _NOISE_BLOCK_PX * _NOISE_BLOCK_PX
    width = min(new.shape[1], old.shape[1]) // _NOISE_BLOCK_PX * _NOISE_BLOCK_PX
    return new[:height, :width], old[:height, :width]


@lru_cache(maxsize=8)
def _window(height: int, width: int) -> Float32Array:
    return np.asarray(cv2.createHanningWindow((width, height), cv2.CV_32F), np.float32)


def _powers(new: Float32Array, old: Float32Array, energy: Float32Array) -> list[float]:
    """Returns a column of `Evidence.detail` from a band of two frames; `energy (rows, columns)`:
    that of each block.
    """
    most = _STRONG * np.median(np.abs(energy))
    of_blocks = np.minimum(most / np.maximum(energy, 1e-6), 1)
    weight = cv2.resize(of_blocks, new.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    weighted = (new[..., ::3] * weight[..., None]).reshape(-1, 2)
    products = weighted.T @ old[..., ::3].reshape(-1, 2) / weight.size
    return [products[0, 0], (products[0, 1] + products[1, 0]) / 2, products[1, 1]]


def _change(new: Float32Array, old: Float32Array) -> Float32Array:
    """Returns what has changed in a band `(h, w, channels)`, without what a shift by a part of a
    pixel explains.
    """
    change = new - old
    axes = ((1, 0), (0, 1))
    slopes = [cv2.Sobel(new + old, cv2.CV_32F, *axis, ksize=1) for axis in axes]
    of_luma = np.array([slope[..., 0].ravel() for slope in slopes])
    power = of_luma @ of_luma.T + np.eye(2)
    right, down = np.linalg.solve(power, of_luma @ change[..., 0].ravel())
    return np.asarray(change - right * slopes[0] - down * slopes[1], np.float32)


def _means_of_blocks(values: Float32Array, rows: int) -> Float32Array:
    """Returns the means of `values (h, w, channels)` in so many rows of square blocks."""
    height, width, channels = values.shape
    side = height // rows
    sums = values.reshape(rows, side, width * channels).sum(axis=1)  # quicker than both at once
    return sums.reshape(rows, width // side, side, channels).sum(axis=2) / side**2
