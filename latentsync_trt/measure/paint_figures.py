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
from latentsync_trt.types import AlignedFace, Float32Array, Patch, Picture, UInt8Array, UInt16Array

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
_COLOR_SAMPLES = 48
"""Rows and columns of a patch in which its color is compared."""


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
    face: AlignedFace, painted: UInt16Array, mesh: Float32Array | None, color: complex
) -> PaintFigures:
    """Compares a painted face with its source.

    Args:
        painted: uint16 `(H, H, 3)` RGB, 257 × the 8-bit level.
        mesh: FaceMesh's points of the painted face, `(468, 2)` in pixels of the frame; None where
            it finds none.
        color: what `color_change` returned.
    """
    source = _two_bands(face.image.astype(np.float32))
    copy = _two_bands(painted * np.float32(1 / 257))
    left = _fit(source, copy, _FOREHEAD_ROWS, _LEFT_HALF)
    right = _fit(source, copy, _FOREHEAD_ROWS, _RIGHT_HALF)
    frame_px = steps(inverse(face.matrix))[0] * face.crop_size_px[0] / _SIDE_PX
    return PaintFigures(
        PartFit(min(left.likeness, right.likeness), min(left.sharpness, right.sharpness)),
        _fit(source, copy, _LOWER_NOSE_ROWS, _LOWER_NOSE_COLUMNS),
        frame_px * _forehead_shift(source.both, copy.both),
        color,
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


def _two_bands(levels: Float32Array) -> _Detail:
    """Returns the detail of a face, RGB levels `(H, H, 3)` in [0, 255]."""
    size_px = (_SIDE_PX, _SIDE_PX)
    small = cv2.resize(levels, size_px, interpolation=cv2.INTER_AREA)
    luma = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
    sharp, softer, soft = (cv2.GaussianBlur(luma, (0, 0), sigma) for sigma in _SIGMAS_PX)
    return _Detail(sharp - softer, softer - soft)


def _fit(source: _Detail, copy: _Detail, rows: slice, columns: slice) -> PartFit:
    old = source.coarse[rows, columns]
    new = copy.coarse[rows, columns]
    power = float((old * old).sum() * (new * new).sum())
    likeness = float((old * new).sum()) / (power**0.5 + _RIDGE)
    source_detail = float(source.fine[rows, columns].std())
    detail = float(copy.fine[rows, columns].std())
    return PartFit(likeness, (detail + _FLAT_DETAIL) / (source_detail + _FLAT_DETAIL))


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


def color_change(picture: Picture, patch: Patch) -> complex:
    """Returns how far the mean color of a patch is from that of the frame below, a* + i b* (CIE
    1976 Lab); 0 where nothing shows.
    """
    height, width = patch.weight.shape
    step = max(1, min(height, width) // _COLOR_SAMPLES)
    weight = patch.weight[::step, ::step, None]
    total = float(weight.sum())
    if not total:
        return 0j
    rows = slice(patch.y_px, patch.y_px + height)
    columns = slice(patch.x_px, patch.x_px + width)
    below = np.asarray(picture[rows, columns])[::step, ::step]
    old = _lab_pixels(below.astype(np.float32) / np.float32(255))
    new = _lab_pixels(patch.rgb[::step, ::step].astype(np.float32) / np.float32(65535))
    _, a, b = ((weight * (new - old)).sum(axis=(0, 1)) / total).tolist()
    return complex(a, b)


def _lab_pixels(rgb: Float32Array) -> Float32Array:
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2LAB), np.float32)


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
