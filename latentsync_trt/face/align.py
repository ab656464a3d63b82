"""The pose of the training data: aligning a face to it, the mouth mask there, and affine
transforms. Pure.
"""

from cmath import phase, rect
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil, floor, hypot, inf, sqrt

import cv2
import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.errors import InputError
from latentsync_trt.face.geometry import box_corners
from latentsync_trt.types import AlignedFace, Face, Float32Array, Float64Array, Picture, UInt8Array

_TEMPLATE = (17 + 20j, 58 + 20j, 37.5 + 40j)
"""Left brow, right brow and nose, x + iy, in a face of `_TEMPLATE_SIZE`."""
_TEMPLATE_SIZE = (75, 100)
_ENLARGE_NUMERATOR = 28
_ENLARGE_DENOMINATOR = 10 * 256
"""The template is scaled by 2.8 · resolution / 256."""

_NEW_BIAS_SHARE = 0.8
"""Weight of the current frame in the running mean of the nose residual."""
OUTSIDE = 127
"""Level of crop pixels outside the frame."""

_DRAWN_PX = 256
_LEFT_EDGE_ROWS = (
    95,
    129,
    170,
    179,
    189,
    196,
    207,
    214,
    217,
    219,
    222,
    232,
    235,
    237,
    238,
    241,
    242,
)
_LEFT_EDGE = (9, 9, 12, 17, 23, 29, 39, 48, 52, 56, 60, 80, 87, 93, 95, 108, 131)
_RIGHT_EDGE_ROWS = (95, 127, 128, 169, 178, 196, 205, 213, 222, 228, 231, 234, 239, 242)
_RIGHT_EDGE = (247, 247, 248, 245, 240, 228, 220, 212, 200, 190, 184, 176, 165, 153)
"""Both sides of the generated region in the 256 × 256 picture of the public release, pixel for
pixel: the first generated column, and the first kept one beyond. Between these rows they lie on
straight lines, rounded.
"""
_NOSE_ROWS = slice(95, 128)
_NOSE_COLUMNS = slice(78, 178)
"""A rectangle of the region that is kept."""

_SAMPLE_MARGIN_PX = 2
"""A bilinear sample needs one more pixel on each side, and spreads by less than one; the second
covers rounding.
"""


def crop_size_px(resolution: int) -> tuple[int, int]:
    """Returns width and height of the upright crop that is resized to `resolution` ×
    `resolution`.
    """
    width, height = _TEMPLATE_SIZE
    factor = _ENLARGE_NUMERATOR * resolution
    return width * factor // _ENLARGE_DENOMINATOR, height * factor // _ENLARGE_DENOMINATOR


@dataclass(frozen=True, slots=True)
class _Shape:
    """Three points, x + iy, centered and divided by their spread."""

    points: tuple[complex, ...]
    center: complex
    spread: float
    """The standard deviation of all coordinates together."""


def align(
    points: Float32Array, bias: complex | None, resolution: int
) -> tuple[Float64Array, complex]:
    """Returns the similarity transform `(2, 3)` from frame to crop pixels, and the `bias` for the
    track's next frame.

    Orthogonal Procrustes, with both point sets centered and divided by their standard deviation.
    The nose residual (template minus face, normalized, before rotation) is averaged over the track
    and added unscaled to the translation, as in the networks' training data. Raises `InputError` if
    the points coincide or are not finite.

    Args:
        points: `(3, 2)` float32: left brow, right brow, nose, in frame pixels.
        bias: the averaged nose residual, x + iy; None at the start of a track.
        resolution: the network's H = W.
    """
    face = _normalized([complex(*point) for point in points.tolist()])
    pose = _pose(resolution)
    residual = pose.points[2] - face.points[2]
    if bias is None:
        bias = residual
    else:
        bias = (1 - _NEW_BIAS_SHARE) * bias + _NEW_BIAS_SHARE * residual
    # The factor, without reflection, that brings the face closest to the pose.
    pairs = zip(pose.points, face.points, strict=True)
    turn = sum(in_pose * in_face.conjugate() for in_pose, in_face in pairs)
    angle = phase(turn)
    linear = rect(pose.spread / face.spread, angle)
    shift = pose.center - linear * face.center + bias
    return similarity(linear, shift), bias


def similarity(factor: complex, shift: complex) -> Float64Array:
    """Returns the transform `(2, 3)` that multiplies points, as x + iy, by a factor, which turns
    and enlarges them, and then adds a shift.
    """
    x_row = [factor.real, -factor.imag, shift.real]
    y_row = [factor.imag, factor.real, shift.imag]
    return np.array([x_row, y_row])


def crop(frame: Picture, matrix: Float64Array, resolution: int) -> AlignedFace:
    """Cuts a face out of a frame, uint8 `(H, W, 3)` RGB, of which it reads only the face's
    rectangle; `matrix`: from `align`.
    """
    size_px = crop_size_px(resolution)
    upright = cut(frame, matrix, size_px, OUTSIDE)
    side_px = (resolution, resolution)
    image = np.empty((*side_px, 3), np.uint8)
    cv2.resize(upright, side_px, dst=image, interpolation=cv2.INTER_LANCZOS4)
    return AlignedFace(image, matrix, size_px)


def cut(
    frame: Picture, matrix: Float64Array, size_px: tuple[int, int], outside: int | None
) -> UInt8Array:
    """Returns a picture of `size_px` (width, height); `matrix`: frame pixels → its pixels;
    `outside`: its level beyond the frame, None = that at the edge of the frame.
    """
    place = frame_rectangle(matrix, size_px, frame.shape)
    level = outside or 0
    picture = np.full((*size_px[::-1], 3), level, np.uint8)
    if not place.is_empty:
        part = place.of(frame)
        from_part = shifted(matrix, place.left, place.top)
        border = cv2.BORDER_REPLICATE if outside is None else cv2.BORDER_CONSTANT
        cv2.warpAffine(
            part, from_part, size_px, dst=picture, borderMode=border, borderValue=(level,) * 3
        )
    return picture


def inverse(matrix: Float64Array) -> Float64Array:
    """Returns the inverse `(2, 3)` float64 of the affine `matrix (2, 3)`, zeros if it has none."""
    (a, b, x), (c, d, y) = matrix.tolist()
    x_row = [d, -b, b * y - d * x]
    y_row = [-c, a, c * x - a * y]
    determinant = a * d - b * c
    return np.array([x_row, y_row]) / (determinant or np.inf)


def shifted(matrix: Float64Array, left_px: int, top_px: int) -> Float64Array:
    """Returns `matrix (2, 3)` for the part of the frame that starts at (`left_px`, `top_px`)."""
    along_x, along_y, start = matrix.T
    moved = matrix.copy()
    moved[:, 2] = along_x * left_px + along_y * top_px + start
    return moved


def steps(matrix: Float64Array) -> tuple[float, float]:
    """Returns how far the result of the affine `matrix (2, 3)` moves when a point moves by 1 in x,
    and in y.
    """
    (a, b, _), (c, d, _) = matrix.tolist()
    return hypot(a, c), hypot(b, d)


def transformed(points: Float32Array, matrix: Float64Array) -> Float32Array:
    """Returns `points (n, 2)` moved by the affine `matrix (2, 3)`."""
    single = matrix.astype(np.float32)
    linear = single[:, :2]
    return np.asarray(points @ linear.T + single[:, 2], np.float32)


def transformed_face(face: Face, matrix: Float64Array) -> Face:
    """Returns a face moved by the affine `matrix (2, 3)`; its box is around the moved corners of
    the old one.
    """
    moved = transformed(box_corners(face), matrix)
    box = np.concatenate([moved.min(axis=0), moved.max(axis=0)])
    points = transformed(face.points, matrix)
    landmarks = None
    if face.landmarks is not None:
        landmarks = transformed(face.landmarks, matrix)
    return Face(box, points, face.score, landmarks)


def rescaled(face: AlignedFace, size_px: tuple[int, int]) -> Float64Array:
    """Returns the face's matrix for a crop resized to `size_px`; pixel centers are half a pixel
    from the edge in both sizes.
    """
    x_scale = size_px[0] / face.crop_size_px[0]
    y_scale = size_px[1] / face.crop_size_px[1]
    return scaled_matrix(face.matrix, x_scale, y_scale)


def scaled_matrix(matrix: Float64Array, x_scale: float, y_scale: float) -> Float64Array:
    """Returns the affine `matrix (2, 3)` for pixels that are so many times as many along x and y;
    their centers lie half a pixel from the edge.
    """
    scales = np.array([[x_scale], [y_scale]])
    scaled = matrix * scales
    scaled[:, 2:] += (scales - 1) / 2
    return scaled


@dataclass(frozen=True, slots=True)
class FrameRectangle:
    """A part of a frame, in pixels; `right` and `bottom` are not in it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size_px(self) -> tuple[int, int]:
        return self.right - self.left, self.bottom - self.top

    @property
    def is_empty(self) -> bool:
        return self.left >= self.right or self.top >= self.bottom

    def of(self, frame: Picture) -> UInt8Array:
        """Returns this part of a frame."""
        return frame[self.top : self.bottom, self.left : self.right]


def frame_rectangle(
    matrix: Float64Array, size_px: tuple[int, int], frame_shape: tuple[int, ...]
) -> FrameRectangle:
    """Returns where samples of a crop lie in the frame, clipped to the frame.

    Args:
        matrix: `(2, 3)`, frame → crop pixels.
        size_px: width and height of the crop.
    """
    x_row, y_row = inverse(matrix).tolist()
    left, right = _extent(x_row, size_px, frame_shape[1])
    top, bottom = _extent(y_row, size_px, frame_shape[0])
    return FrameRectangle(left, top, right, bottom)


def _extent(row: Sequence[float], size_px: tuple[int, int], length_px: int) -> tuple[int, int]:
    """Returns start and end of a crop along one axis of a frame with this length."""
    along, across, start = row
    # From the center of the crop's first pixel to those of its other corners.
    x = along * (size_px[0] - 1)
    y = across * (size_px[1] - 1)
    least = start + (min(0.0, x) + min(0.0, y))
    most = start + (max(0.0, x) + max(0.0, y))
    first = floor(least) - _SAMPLE_MARGIN_PX
    end = ceil(most) + 1 + _SAMPLE_MARGIN_PX
    return min(max(first, 0), length_px), min(max(end, 0), length_px)


def square(picture: Picture, aspect: Fraction) -> Picture:
    """Returns a picture whose pixels are `aspect` times as wide as high, stretched horizontally to
    square ones.
    """
    if aspect == 1:
        return picture
    size_px = (_square_width_px(picture, aspect), picture.shape[0])
    wide = cv2.resize(np.asarray(picture), size_px, interpolation=cv2.INTER_LINEAR)
    return np.asarray(wide, np.uint8)


def stretch(picture: Picture, aspect: Fraction) -> Float64Array:
    """Returns `(2, 3)`: pixels of `picture` → pixels of `square(picture, aspect)`."""
    scale = _square_width_px(picture, aspect) / picture.shape[1]
    return scaled_matrix(np.eye(2, 3), scale, 1)


def _square_width_px(picture: Picture, aspect: Fraction) -> int:
    return max(1, round(picture.shape[1] * aspect))


def composed(first: Float64Array, then: Float64Array) -> Float64Array:
    """Returns the affine `(2, 3)` that does what `first` and `then` do, one after the other."""
    linear = then[:, :2]
    shift = linear @ first[:, 2] + then[:, 2]
    return np.column_stack([linear @ first[:, :2], shift])


@lru_cache(maxsize=8)
def mouth_mask(resolution: int) -> Float32Array:
    """Returns the mask of an aligned face, H = W = `resolution`: float32 `(H, W)`, 1 = kept, 0 =
    generated; read-only.

    Resized as in training, by Lanczos' filter in 8 bits: at other sizes than 256 px, it has values
    in between.
    """
    drawn = np.full((_DRAWN_PX, _DRAWN_PX), 255, np.uint8)
    for row in range(_LEFT_EDGE_ROWS[0], _LEFT_EDGE_ROWS[-1] + 1):
        left = round(np.interp(row, _LEFT_EDGE_ROWS, _LEFT_EDGE))
        right = round(np.interp(row, _RIGHT_EDGE_ROWS, _RIGHT_EDGE))
        drawn[row, left:right] = 0
    drawn[_NOSE_ROWS, _NOSE_COLUMNS] = 255
    resized = cv2.resize(drawn, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)
    mask = np.asarray(resized / 255, np.float32)
    mask.flags.writeable = False
    return mask


def latent_mask(resolution: int) -> Float32Array:
    """Returns `mouth_mask` on the latent grid: float32 `(h, w)` in [0, 1], the top-left pixel of
    each 8×8 block, as in training.
    """
    return np.ascontiguousarray(mouth_mask(resolution)[::PIXELS_PER_LATENT, ::PIXELS_PER_LATENT])


@cache
def _pose(resolution: int) -> _Shape:
    """Returns the template at the size of the crop for a resolution."""
    return _normalized(
        [point * _ENLARGE_NUMERATOR * resolution / _ENLARGE_DENOMINATOR for point in _TEMPLATE]
    )


def _normalized(points: Sequence[complex]) -> _Shape:
    """Returns the shape of points; raises `InputError` if they coincide or are not finite."""
    center = sum(points) / len(points)
    squares = sum(abs(point - center) ** 2 for point in points)
    spread = sqrt(squares / (2 * len(points) - 1))
    if not 0 < spread < inf:
        coordinates = [(point.real, point.imag) for point in points]
        raise InputError(f"face points {coordinates} coincide or are not finite", usage=False)
    return _Shape(tuple((point - center) / spread for point in points), center, spread)
