"""The part of a face that the networks know, in the frame and as they painted it: what they lost
there, they lost at the mouth, too. Pure.

Detail and noise are told apart by the frame before: detail stays the same, noise does not. The
product of two frames is the power of detail alone, half the square of their difference that of
noise.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.compositing.bands import split_bands
from latentsync_trt.compositing.resize import FittedFace, warped
from latentsync_trt.face.align import inverse, shifted, steps
from latentsync_trt.types import Float32Array, Float64Array, Picture

_CENTER = np.array([0.5, 0.2])
_SIZE = np.array([0.5, 0.28])
"""Center and size of the part in a crop, x and y, whose sides are 1: forehead and eyes, above the
mask of the mouth.
"""
_MOST_PX = np.array([144, 72])
"""The part is at most so wide and high in the frame, to limit the cost."""
_SEARCH_PX = 2
"""How far the known parts of two frames may lie apart: both are cut out around the face."""

BRIGHTNESSES = 3
"""Noise is measured in as many equal groups of blocks, the darkest first."""
_NOISE_BLOCK_PX = 8
"""Side of the blocks in which detail and noise are measured."""
_LEAST_BLOCKS = 4
"""Fewer rows or columns of blocks say nothing."""
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
    """Shape `(BANDS, BRIGHTNESSES, 6)`: 1 / variance of the noise in Y, Cr and Cb of the source,
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
    center = to_frame @ np.append(_CENTER * size, 1)
    reach = np.minimum(_SIZE * size * steps(to_frame), _MOST_PX) / 2 + _SEARCH_PX
    corners = np.rint([center - reach, center + reach])
    (left, top), (right, bottom) = np.clip(corners, 0, picture.shape[1::-1]).astype(int).tolist()
    source = picture[top:bottom, left:right].astype(np.float32)
    if not source.size:
        return np.dstack([source, source])
    painted = warped(face.levels, shifted(face.matrix, left, top), source.shape[1::-1])
    if color is not None:
        cv2.transform(painted, color, dst=painted)
    return np.dstack([cv2.cvtColor(each, cv2.COLOR_RGB2YCrCb) for each in (source, painted)])


def compare_frames(now: Float32Array, before: Float32Array) -> Evidence | None:
    """Returns what the known parts of two frames of a track tell, one after the other; None where
    they are too small.
    """
    least_px = np.minimum(now.shape[:2], np.array(before.shape[:2]) - 2 * _SEARCH_PX)
    rows, columns = (least_px // _NOISE_BLOCK_PX).tolist()
    if min(rows, columns) < _LEAST_BLOCKS:
        return None
    new, old = _same_place(now, before, rows * _NOISE_BLOCK_PX, columns * _NOISE_BLOCK_PX)
    block_means = []
    for band in split_bands(np.dstack([new[..., ::3], old[..., ::3], _change(new, old)])):
        both = np.dstack([band[..., [0, 0, 1]] * band[..., [2, 3, 3]], np.square(band[..., 4:])])
        means = cv2.resize(both, (columns, rows), interpolation=cv2.INTER_AREA)
        block_means.append(means.reshape(rows * columns, -1))
    products, squares = np.split(np.array(block_means), [3], axis=2)

    powers = products[..., 0]
    most = _STRONG * np.median(np.abs(powers), axis=1, keepdims=True)
    weights = np.minimum(most / np.maximum(powers, 1e-6), 1)
    detail = (products * weights[..., None]).mean(axis=1).T

    brightness = cv2.resize(new[..., 0], (columns, rows), interpolation=cv2.INTER_AREA).ravel()
    group_size = int(_FLAT_SHARE * brightness.size) // BRIGHTNESSES
    flattest = np.argsort(powers[-2:].sum(axis=0))[: group_size * BRIGHTNESSES]
    groups = flattest[np.argsort(brightness[flattest])].reshape(BRIGHTNESSES, group_size)
    variances = squares[:, groups].mean(axis=2) / 2
    weight = float(squares[..., 0].any())
    inverse_noise = weight / (variances + _LEAST_VARIANCE)
    return Evidence(detail, inverse_noise, weight * brightness[groups].mean(axis=1), weight)


def _same_place(
    now: Float32Array, before: Float32Array, height: int, width: int
) -> tuple[Float32Array, Float32Array]:
    """Returns parts of two pictures, of this size, in which the sources are most alike."""
    old = before[_SEARCH_PX:, _SEARCH_PX:][:height, :width]
    likeness = cv2.matchTemplate(now[..., 0], old[..., 0], cv2.TM_CCOEFF_NORMED)
    _, _, _, (left, top) = cv2.minMaxLoc(likeness)
    return now[top:, left:][:height, :width], old


def _change(new: Float32Array, old: Float32Array) -> Float32Array:
    """Returns what has changed, `(h, w, 6)`, without what a shift by a part of a pixel explains."""
    change = new - old
    slopes = np.array(np.gradient(new + old, axis=(0, 1)))
    of_luma = slopes[..., 0].reshape(2, -1)
    shift = np.linalg.lstsq(of_luma.T, change[..., 0].ravel(), rcond=None)[0]
    return np.asarray(change - np.tensordot(shift, slopes, 1), np.float32)
