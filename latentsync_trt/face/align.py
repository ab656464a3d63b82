"""The pose of the training data: aligning a face to it, the mouth mask there, and affine
transforms. Pure.
"""

from cmath import phase, rect
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, lru_cache
from math import ceil, floor, hypot, inf, sqrt

import cv2
import numpy as np

from latentsync_trt.bundle.manifest import PIXELS_PER_LATENT
from latentsync_trt.errors import InputError
from latentsync_trt.types import AlignedFace, Face, Float32Array, Float64Array, Picture, UInt8Array

# Left brow, right brow and nose, x + iy, in a 75×100 face, which is scaled by 2.8 · resolution /
# 256.
_TEMPLATE = (17 + 20j, 58 + 20j, 37.5 + 40j)
_TEMPLATE_SIZE = (75, 100)
_ENLARGE_NUMERATOR = 28
_ENLARGE_DENOMINATOR = 10 * 256

_NEW_BIAS_SHARE = 0.8
"""Weight of the current frame in the running mean of the nose residual."""
OUTSIDE = 127
"""Level of crop pixels outside the frame."""
# Both sides of the region in the 256 × 256 picture of the public release, pixel for pixel: rows,
# and of each the first generated column and the first kept one beyond. On straight lines in
# between, rounded.
_DRAWN_PX = 256
_LEFT = (
    (95, 129, 170, 179, 189, 196, 207, 214, 217, 219, 222, 232, 235, 237, 238, 241, 242),
    (9, 9, 12, 17, 23, 29, 39, 48, 52, 56, 60, 80, 87, 93, 95, 108, 131),
)
_RIGHT = (
    (95, 127, 128, 169, 178, 196, 205, 213, 222, 228, 231, 234, 239, 242),
    (247, 247, 248, 245, 240, 228, 220, 212, 200, 190, 184, 176, 165, 153),
)
_NOSE_ROWS = slice(95, 128)
_NOSE_COLUMNS = slice(78, 178)

# A bilinear sample needs one more pixel on each side; the second covers rounding.
_SAMPLE_MARGIN_PX = 2


def crop_size_px(resolution: int) -> tuple[int, int]:
    """Width and height of the upright crop that is resized to `resolution` × `resolution`."""
    width, height = (
        side * _ENLARGE_NUMERATOR * resolution // _ENLARGE_DENOMINATOR for side in _TEMPLATE_SIZE
    )
    return width, height


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
        bias: the averaged nose residual, x + iy; None at the start of a track. resolution: the
            network's H = W.
    """
    face, face_center, face_spread = _normalized([complex(*point) for point in points.tolist()])
    pose, pose_center, pose_spread = _pose(resolution)
    residual = pose[2] - face[2]
    if bias is None:
        bias = residual
    else:
        bias = (1 - _NEW_BIAS_SHARE) * bias + _NEW_BIAS_SHARE * residual
    # The rotation, without reflection, that brings the face closest to the pose.
    angle = phase(sum(wanted * found.conjugate() for wanted, found in zip(pose, face, strict=True)))
    linear = rect(pose_spread / face_spread, angle)
    shift = pose_center - linear * face_center + bias
    return np.array(
        [[linear.real, -linear.imag, shift.real], [linear.imag, linear.real, shift.imag]]
    ), bias


def crop(frame: Picture, matrix: Float64Array, resolution: int) -> AlignedFace:
    """Cuts the face out of a frame, uint8 `(H, W, 3)` RGB, reading only its rectangle; `matrix`:
    from `align`.
    """
    size = crop_size_px(resolution)
    image = np.empty((resolution, resolution, 3), np.uint8)
    cv2.resize(
        cut(frame, matrix, size, OUTSIDE),
        image.shape[:2],
        dst=image,
        interpolation=cv2.INTER_LANCZOS4,
    )
    return AlignedFace(image, matrix, size)


def cut(frame: Picture, matrix: Float64Array, size_px: tuple[int, int], outside: int) -> UInt8Array:
    """A picture of `size_px` (width, height); `matrix`: frame → its pixels; `outside`: level beyond
    the frame.
    """
    left, top, right, bottom = frame_rectangle(matrix, size_px, frame.shape, _SAMPLE_MARGIN_PX)
    if left >= right or top >= bottom:
        return np.full((size_px[1], size_px[0], 3), outside, np.uint8)
    part = frame[top:bottom, left:right]
    place = shifted(matrix, left, top)
    found = np.empty((size_px[1], size_px[0], 3), np.uint8)
    return np.asarray(
        cv2.warpAffine(part, place, size_px, dst=found, borderValue=(outside,) * 3), np.uint8
    )


def inverse(matrix: Float64Array) -> Float64Array:
    """The inverse `(2, 3)` float64 of the affine `matrix (2, 3)`."""
    (a, b, x), (c, d, y) = matrix.tolist()
    size = a * d - b * c
    return np.array([[d, -b, b * y - d * x], [-c, a, c * x - a * y]]) / (size or np.inf)


def shifted(matrix: Float64Array, left_px: int, top_px: int) -> Float64Array:
    """`matrix (2, 3)` adapted to the part of the frame that starts at (`left_px`, `top_px`)."""
    return np.array([[a, b, a * left_px + b * top_px + start] for a, b, start in matrix.tolist()])


def steps(matrix: Float64Array) -> tuple[float, float]:
    """How far the affine `matrix (2, 3)` moves a point when that moves by 1 in x, and in y."""
    (a, b, _), (c, d, _) = matrix.tolist()
    return hypot(a, c), hypot(b, d)


def transformed(points: Float32Array, matrix: Float64Array) -> Float32Array:
    """Points `(n, 2)` after the affine `matrix (2, 3)`."""
    single = matrix.astype(np.float32)
    return np.asarray(points @ single[:, :2].T + single[:, 2], np.float32)


def transformed_face(face: Face, matrix: Float64Array) -> Face:
    """A face whose points are moved by the affine `matrix (2, 3)`; its box is around the moved
    corners.
    """
    corners = transformed(face.box[[0, 1, 2, 1, 0, 3, 2, 3]].reshape(4, 2), matrix)
    box = np.concatenate([corners.min(axis=0), corners.max(axis=0)])
    landmarks = None if face.landmarks is None else transformed(face.landmarks, matrix)
    return Face(box, transformed(face.points, matrix), face.score, landmarks)


def rescaled(face: AlignedFace, size_px: tuple[int, int]) -> Float64Array:
    """The face's matrix for a crop resized to `size_px`; pixel centers are half a pixel from the
    edge in both sizes.
    """
    scales = (new / old for new, old in zip(size_px, face.crop_size_px, strict=True))
    rows = zip(scales, face.matrix.tolist(), strict=True)
    return np.array(
        [[a * scale, b * scale, start * scale + (scale - 1) / 2] for scale, (a, b, start) in rows]
    )


def frame_rectangle(
    matrix: Float64Array, size_px: tuple[int, int], frame_shape: tuple[int, ...], margin_px: int
) -> tuple[int, int, int, int]:
    """Left, top, right, bottom (exclusive) of a crop in the frame plus `margin_px`, clipped to the
    frame.
    """
    starts = list[int]()
    ends = list[int]()
    for (along, across, start), length in zip(
        inverse(matrix).tolist(), frame_shape[1::-1], strict=True
    ):
        # To the centers of the crop's corner pixels.
        x = along * (size_px[0] - 1)
        y = across * (size_px[1] - 1)
        starts.append(min(max(floor(start + (min(0.0, x) + min(0.0, y))) - margin_px, 0), length))
        ends.append(min(max(ceil(start + (max(0.0, x) + max(0.0, y))) + 1 + margin_px, 0), length))
    return starts[0], starts[1], ends[0], ends[1]


def square(picture: Picture, aspect: Fraction) -> Picture:
    """A picture whose pixels are `aspect` times as wide as high, stretched horizontally to square
    ones.
    """
    if aspect == 1:
        return picture
    size = max(1, round(picture.shape[1] * aspect)), picture.shape[0]
    return np.asarray(
        cv2.resize(np.asarray(picture), size, interpolation=cv2.INTER_LINEAR), np.uint8
    )


def stretch(picture: Picture, aspect: Fraction) -> Float64Array:
    """`(2, 3)`: pixels of `picture` → pixels of `square(picture, aspect)`."""
    scale = max(1, round(picture.shape[1] * aspect)) / picture.shape[1]
    # Pixel centers lie half a pixel from the edge in both pictures.
    return np.array([[scale, 0, (scale - 1) / 2], [0, 1, 0]])


def composed(first: Float64Array, then: Float64Array) -> Float64Array:
    """The affine `(2, 3)` that does what `first` and `then` do, one after the other."""
    return np.column_stack([then[:, :2] @ first[:, :2], then[:, :2] @ first[:, 2] + then[:, 2]])


@lru_cache(maxsize=8)
def mouth_mask(resolution: int) -> Float32Array:
    """The mask of an aligned face, H = W = `resolution`: float32 `(H, W)`, 1 = kept, 0 = generated;
    read-only.

    Resized as in training, by Lanczos' filter in 8 bits: at other sizes than 256 px, it has values
    in between.
    """
    rows = np.arange(_DRAWN_PX)[:, None]
    columns = np.arange(_DRAWN_PX)
    left, right = (np.rint(np.interp(rows, at, edge)) for at, edge in (_LEFT, _RIGHT))
    inside = (rows >= _LEFT[0][0]) & (rows <= _LEFT[0][-1]) & (columns >= left) & (columns < right)
    drawn = np.where(inside, 0, 255).astype(np.uint8)
    drawn[_NOSE_ROWS, _NOSE_COLUMNS] = 255
    resized = cv2.resize(drawn, (resolution, resolution), interpolation=cv2.INTER_LANCZOS4)
    mask = np.asarray(resized / 255, np.float32)
    mask.flags.writeable = False
    return mask


def latent_mask(resolution: int) -> Float32Array:
    """`mouth_mask` on the latent grid: float32 `(h, w)` in [0, 1], the top-left pixel of each 8×8
    block, as in training.
    """
    return np.ascontiguousarray(mouth_mask(resolution)[::PIXELS_PER_LATENT, ::PIXELS_PER_LATENT])


@cache
def _pose(resolution: int) -> tuple[list[complex], complex, float]:
    return _normalized(
        [point * _ENLARGE_NUMERATOR * resolution / _ENLARGE_DENOMINATOR for point in _TEMPLATE]
    )


def _normalized(points: Sequence[complex]) -> tuple[list[complex], complex, float]:
    """Points centered and divided by their spread; the center; the spread (of all coordinates
    together, n − 1).
    """
    center = sum(points) / len(points)
    spread = sqrt(sum(abs(point - center) ** 2 for point in points) / (2 * len(points) - 1))
    if not 0 < spread < inf:
        shown = [(point.real, point.imag) for point in points]
        raise InputError(f"face points {shown} coincide or are not finite", usage=False)
    return [(point - center) / spread for point in points], center, spread
