"""How painted faces fit their sources: likeness, sharpness, place and color. Pure.

The networks know the forehead, and paint the nose anew, which does not speak: there, a painted face
should be the source's. The mouth itself may differ.

Several faces are compared at once, in pictures with a channel for each: after each call into a
library a thread waits for Python's lock, longer than such small pictures take.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.compositing.outline import LIPS
from latentsync_trt.face.align import inverse, mouth_mask, steps, transformed
from latentsync_trt.types import (
    AlignedFace,
    Float32Array,
    Float64Array,
    UInt8Array,
    UInt16Array,
)

_SIDE_PX = 128
"""Side of the faces that are compared, whatever the networks' size is."""
_FOREHEAD_ROWS = slice(8, 43)
_LEFT_HALF = slice(32, 64)
_RIGHT_HALF = slice(64, 96)
_LOWER_NOSE_ROWS = slice(64, 79)
_LOWER_NOSE_COLUMNS = slice(23, 105)
"""Parts of a face: both halves of the forehead; nose and cheeks below the part that is kept."""

_SIGMAS_PX = (1, 2, 4)
"""Detail lies between pictures that are so much blurred: sharpness shows in the finer band,
likeness in the coarser one, which noise hardly reaches.
"""
_FLAT_DETAIL = 0.3
"""Standard deviation, in levels, that counts as none: flat parts are as sharp as their source."""
_RIDGE = 1.0
"""Keeps a shift finite where nothing shows it."""


@dataclass(frozen=True, slots=True)
class PartFit:
    """How a part of a painted face fits its source."""

    likeness: float
    """Correlation of the detail of both pictures; 1 = equal."""
    sharpness: float
    """Finer detail as a share of the source's."""


@dataclass(frozen=True, slots=True)
class PaintFigures:
    """How a painted face fits its source."""

    forehead: PartFit
    """The lower figures of both halves."""
    nose: PartFit
    shift_px: complex
    """How far the painted forehead lies to the right of the source's, + i × below, in pixels of
    the frame.
    """
    color: complex
    """How far the mean color of what is pasted is off, a* + i b* (CIE 1976 Lab)."""
    lips_in_mask: float
    """Share of the lips' outline in the part that is generated; 0 where the painted picture shows
    no face.
    """


@dataclass(frozen=True, slots=True, eq=False)
class ComparedFace:
    """A painted face beside its source, both at the size at which they are compared."""

    source: UInt8Array
    """RGB, `(128, 128, 3)`."""
    painted: UInt16Array
    """RGB, `(128, 128, 3)`, 257 × the 8-bit level."""
    pixel_px: float
    """Pixels of the frame for one of theirs."""
    color: Float32Array | None
    """The change of its RGB levels with which the painted face is pasted, `(3, 4)`; None for none.
    """
    lips_in_mask: float
    """See `PaintFigures`."""


def compared_face(
    face: AlignedFace,
    painted: UInt16Array,
    mesh: Float32Array | None,
    color: Float32Array | None,
) -> ComparedFace:
    """Returns what is compared of a painted face and its source.

    Args:
        painted: uint16 `(H, H, 3)` RGB, 257 × the 8-bit level.
        mesh: FaceMesh's points of the painted face, `(468, 2)` in pixels of the frame; None where
            it finds none.
        color: see `ComparedFace`.
    """
    source = np.empty((_SIDE_PX, _SIDE_PX, 3), np.uint8)
    copy = np.empty((_SIDE_PX, _SIDE_PX, 3), np.uint16)
    cv2.resize(face.image, (_SIDE_PX, _SIDE_PX), dst=source, interpolation=cv2.INTER_AREA)
    cv2.resize(painted, (_SIDE_PX, _SIDE_PX), dst=copy, interpolation=cv2.INTER_AREA)
    pixel_px = steps(inverse(face.matrix))[0] * face.crop_size_px[0] / _SIDE_PX
    return ComparedFace(source, copy, pixel_px, color, _lips_in_mask(face, mesh))


def paint_figures(faces: Sequence[ComparedFace]) -> list[PaintFigures]:
    """Returns how each painted face fits its source."""
    pictures: list[UInt8Array | UInt16Array] = [face.source for face in faces]
    pictures += [face.painted for face in faces]
    levels = np.array(pictures, np.float32)
    sources, copies = np.split(levels, 2)
    copies /= 257
    detail = _two_bands(levels)
    left = _part_fits(detail, _FOREHEAD_ROWS, _LEFT_HALF)
    right = _part_fits(detail, _FOREHEAD_ROWS, _RIGHT_HALF)
    foreheads = _as_fits(np.minimum(left, right))
    noses = _as_fits(_part_fits(detail, _LOWER_NOSE_ROWS, _LOWER_NOSE_COLUMNS))
    shifts = _forehead_shifts(detail)
    changes = _color_changes(sources, copies, [face.color for face in faces])
    return [
        PaintFigures(
            foreheads[index],
            noses[index],
            face.pixel_px * shifts[index],
            changes[index],
            face.lips_in_mask,
        )
        for index, face in enumerate(faces)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Detail:
    """Two bands of the luma of n sources, then of their n painted faces: float32 `(128, 128, 2·n)`
    in levels.
    """

    fine: Float32Array
    coarse: Float32Array


def _two_bands(levels: Float32Array) -> _Detail:
    """Returns the detail of faces, RGB levels `(2·n, 128, 128, 3)` in [0, 255]."""
    below_each_other = levels.reshape(-1, _SIDE_PX, 3)
    luma = cv2.cvtColor(below_each_other, cv2.COLOR_RGB2GRAY).reshape(-1, _SIDE_PX, _SIDE_PX)
    channels = np.ascontiguousarray(np.moveaxis(luma, 0, 2))
    sharp, softer, soft = (cv2.GaussianBlur(channels, (0, 0), sigma) for sigma in _SIGMAS_PX)
    fine = cv2.subtract(sharp, softer, dst=sharp)
    coarse = cv2.subtract(softer, soft, dst=softer)
    return _Detail(np.asarray(fine, np.float32), np.asarray(coarse, np.float32))


def _part_fits(detail: _Detail, rows: slice, columns: slice) -> Float32Array:
    """Returns likeness and sharpness of a part of each face, `(2, n)`."""
    source, copy = np.split(detail.coarse[rows, columns], 2, axis=2)
    power = _sums(source, source) * _sums(copy, copy)
    likeness = _sums(source, copy) / (np.sqrt(power) + _RIDGE)
    deviations = detail.fine[rows, columns].std(axis=(0, 1)) + _FLAT_DETAIL
    source_detail, copy_detail = np.split(deviations, 2)
    sharpness = copy_detail / source_detail
    return np.array([likeness, sharpness])


def _as_fits(likeness_and_sharpness: Float32Array) -> list[PartFit]:
    """Returns the columns of an array `(2, n)`."""
    return [PartFit(*column) for column in likeness_and_sharpness.T.tolist()]


def _sums(a: Float32Array, b: Float32Array) -> Float32Array:
    """Returns the sum of the products of two pictures `(h, w, n)` in each channel."""
    return np.einsum("hwn,hwn->n", a, b)


def _forehead_shifts(detail: _Detail) -> list[complex]:
    """Returns how far each painted forehead lies to the right, + i × below, by one step of Lucas
    and Kanade's method (1981).
    """
    part = np.s_[_FOREHEAD_ROWS, _LEFT_HALF.start : _RIGHT_HALF.stop]
    source, copy = np.split(detail.fine[part] + detail.coarse[part], 2, axis=2)
    middle = (source + copy) / 2
    to_the_right = cv2.Sobel(middle, cv2.CV_32F, 1, 0, ksize=1)
    below = cv2.Sobel(middle, cv2.CV_32F, 0, 1, ksize=1)
    slopes = np.array([to_the_right, below]).reshape(2, *middle.shape)
    slopes /= 2
    power = np.einsum("ahwn,bhwn->nab", slopes, slopes)
    power += _RIDGE * np.eye(2)
    change = np.einsum("ahwn,hwn->na", slopes, source - copy)
    shifts = np.linalg.solve(power, change[..., None])
    return [complex(right, down) for right, down in shifts[..., 0].tolist()]


def _color_changes(
    sources: Float32Array, copies: Float32Array, colors: Sequence[Float32Array | None]
) -> list[complex]:
    """Returns how far the mean color of each generated part is off, a* + i b*, after a change of
    its colors; both pictures RGB levels `(n, 128, 128, 3)`.
    """
    old = _generated_means(sources)
    new = _generated_means(copies)
    for index, color in enumerate(colors):
        if color is not None:
            new[index] = color[:, :3] @ new[index] + color[:, 3]
    levels = np.array([old, new], np.float32)
    levels /= 255
    lab = cv2.cvtColor(levels, cv2.COLOR_RGB2LAB)
    changes = lab[1] - lab[0]
    return [complex(a, b) for _, a, b in changes.tolist()]


def _generated_means(pictures: Float32Array) -> Float64Array:
    """Returns the mean color of the generated part of each picture, `(n, 3)`."""
    generated = _is_generated(_SIDE_PX).astype(np.float32).ravel()
    pixels = pictures.reshape(len(pictures), -1, 3)
    means = generated @ pixels / generated.sum()
    return np.asarray(means, np.float64)


def _lips_in_mask(face: AlignedFace, mesh: Float32Array | None) -> float:
    """Returns the share of the lips' outline that the mask of the mouth covers; 0 without mesh."""
    if mesh is None:
        return 0.0
    side_px = len(face.image)
    width_px, height_px = face.crop_size_px
    points = transformed(mesh[LIPS], face.matrix) * (side_px / width_px, side_px / height_px)
    columns, rows = np.rint(points).astype(int).clip(0, side_px - 1).T
    return float(_is_generated(side_px)[rows, columns].mean())


@lru_cache(maxsize=2)
def _is_generated(side_px: int) -> UInt8Array:
    return np.asarray(mouth_mask(side_px) < 0.5, np.uint8)
