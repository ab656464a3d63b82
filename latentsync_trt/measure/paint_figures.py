"""How one painted face fits its source: likeness, sharpness, place and color. Pure.

The networks know the forehead, and paint the nose anew, which does not speak: there, a painted face
should be the source's. The mouth itself may differ.
"""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.compositing.outline import LIPS
from latentsync_trt.face.align import inverse, mouth_mask, steps, transformed
from latentsync_trt.types import AlignedFace, Float32Array, UInt8Array, UInt16Array

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


def paint_figures(
    face: AlignedFace,
    painted: UInt16Array,
    mesh: Float32Array | None,
    color: Float32Array | None,
) -> PaintFigures:
    """Compares a painted face with its source.

    Args:
        painted: uint16 `(H, H, 3)` RGB, 257 × the 8-bit level.
        mesh: FaceMesh's points of the painted face, `(468, 2)` in pixels of the frame; None where
            it finds none.
        color: the change of its RGB levels with which it is pasted, `(3, 4)`; None for none.
    """
    source_levels = _small(face.image)
    copy_levels = _small(painted) / np.float32(257)
    source = _two_bands(source_levels)
    copy = _two_bands(copy_levels)
    left = _fit(source, copy, _FOREHEAD_ROWS, _LEFT_HALF)
    right = _fit(source, copy, _FOREHEAD_ROWS, _RIGHT_HALF)
    frame_px = steps(inverse(face.matrix))[0] * face.crop_size_px[0] / _SIDE_PX
    return PaintFigures(
        PartFit(min(left.likeness, right.likeness), min(left.sharpness, right.sharpness)),
        _fit(source, copy, _LOWER_NOSE_ROWS, _LOWER_NOSE_COLUMNS),
        frame_px * _forehead_shift(source.both, copy.both),
        _color_change(source_levels, copy_levels, color),
        _lips_in_mask(face, mesh),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Detail:
    """Two bands of the luma of a face, float32 `(128, 128)` in levels."""

    fine: Float32Array
    coarse: Float32Array

    @property
    def both(self) -> Float32Array:
        return self.fine + self.coarse


def _small(picture: UInt8Array | UInt16Array) -> Float32Array:
    """Returns a face at the size at which it is compared."""
    small = cv2.resize(picture, (_SIDE_PX, _SIDE_PX), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32)


def _two_bands(levels: Float32Array) -> _Detail:
    """Returns the detail of a face, RGB levels `(128, 128, 3)` in [0, 255]."""
    luma = cv2.cvtColor(levels, cv2.COLOR_RGB2GRAY)
    sharp, softer, soft = (cv2.GaussianBlur(luma, (0, 0), sigma) for sigma in _SIGMAS_PX)
    return _Detail(sharp - softer, softer - soft)


def _fit(source: _Detail, copy: _Detail, rows: slice, columns: slice) -> PartFit:
    old = source.coarse[rows, columns]
    new = copy.coarse[rows, columns]
    power = float((old * old).sum() * (new * new).sum())
    likeness = float((old * new).sum()) / (power**0.5 + _RIDGE)
    source_detail = _deviation(source.fine[rows, columns])
    detail = _deviation(copy.fine[rows, columns])
    return PartFit(likeness, (detail + _FLAT_DETAIL) / (source_detail + _FLAT_DETAIL))


def _deviation(values: Float32Array) -> float:
    """Returns the standard deviation, in a quarter of the time of `numpy.std`."""
    _, deviation = cv2.meanStdDev(values)
    return float(deviation[0, 0])


def _forehead_shift(source: Float32Array, copy: Float32Array) -> complex:
    """Returns how far the copy lies to the right, + i × below, by one step of Lucas and Kanade's
    method (1981) on two pictures `(128, 128)`.
    """
    columns = slice(_LEFT_HALF.start, _RIGHT_HALF.stop)
    old = source[_FOREHEAD_ROWS, columns]
    new = copy[_FOREHEAD_ROWS, columns]
    middle = (old + new) / 2
    slopes = [cv2.Sobel(middle, cv2.CV_32F, *axis, ksize=1) / 2 for axis in ((1, 0), (0, 1))]
    of_pixels = np.array([slope.ravel() for slope in slopes])
    power = of_pixels @ of_pixels.T + _RIDGE * np.eye(2)
    right, down = np.linalg.solve(power, of_pixels @ (old - new).ravel()).tolist()
    return complex(right, down)


def _color_change(source: Float32Array, copy: Float32Array, color: Float32Array | None) -> complex:
    """Returns how far the mean color of the generated part is off, a* + i b*, after a change of its
    colors; both pictures RGB levels `(128, 128, 3)`.
    """
    generated = _is_generated(_SIDE_PX)
    old = np.array(cv2.mean(source, generated)[:3])
    new = np.array(cv2.mean(copy, generated)[:3])
    if color is not None:
        new = color[:, :3] @ new + color[:, 3]
    levels = np.array([[old, new]], np.float32)
    lab = cv2.cvtColor(levels / np.float32(255), cv2.COLOR_RGB2LAB)
    _, a, b = (lab[0, 1] - lab[0, 0]).tolist()
    return complex(a, b)


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
