"""Pastes a generated face into its frame; reads only the face's rectangle. Pure."""

from dataclasses import dataclass
from math import isqrt

import cv2
import numpy as np

from latentsync_trt.face.align import frame_rectangle, inverse, rescaled, resize_antialiased, shifted
from latentsync_trt.face.scene import filled
from latentsync_trt.types import AlignedFace, Float32Array, Float64Array, Patch, Picture, UInt16Array

_BORDER_EROSION_PX = 2
_EDGE_DIVISOR = 20
"""Width of the soft edge of a whole crop: 1/20 of the pasted square's side."""

FEATHER_PERCENT = 1.25
"""The mouth mask fades over this part of the pasted square's side: wide enough to hide the seam,
and narrow enough not to show the source's lips."""

_SPREAD_PX = 1
"""How far resizing and warping blur the outline of the mask, in frame pixels."""

# Bilinear interpolation spreads a crop pixel by less than this.
_WARP_MARGIN_PX = 2

_VISIBLE = 0.5 / 255
"""Smaller opacities change a sample by less than half an 8-bit level: no step that one could see, at any depth."""


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """How what is pasted is fitted in.

    `outlines`, `within`: shapes `(n, 2)` (x, y) in frame pixels; where given, what is pasted fades
    out before the edge of the union of `outlines`, and nothing changes outside that of `within`.
    `gain_and_offset (2, 3)`: of each channel, in levels; None = 1 and 0.
    """

    outlines: tuple[Float32Array, ...] = ()
    within: tuple[Float32Array, ...] = ()
    gain_and_offset: Float32Array | None = None


def composite(
    frame: Picture, face: AlignedFace, painted: UInt16Array, mask: Float32Array, finish: Finish | None = None
) -> Patch:
    """Returns the smallest rectangle with all changed pixels of a frame; 0×0 if none is inside it.

    Only the generated region replaces the frame, so that the skin around it stays sharp: the mask
    is warped back like the picture and fades inwards, so that no pixel outside the region changes.

    Args:
        frame: uint8 `(H, W, 3)` RGB. face: what was cut out of it; may lie partly outside.
        painted: uint16 `(r, r, 3)` RGB, r ≥ R, the generated face, 257 × the 8-bit level.
        mask: float32 `(R, R)` in [0, 1], 1 = kept.
    """
    size = _unaliased_size(face, painted.shape[0] / mask.shape[0])
    generated = np.clip(resize_antialiased(1 - mask[..., None], size)[..., 0], 0, 1)
    levels = resize_antialiased(painted, size, _around(generated, _WARP_MARGIN_PX), unit=1 / 257)
    return paste(frame, levels, rescaled(face, size), generated, finish)


def paste(
    frame: Picture,
    crop: Float32Array,
    matrix: Float64Array,
    opacity: Float32Array | None = None,
    finish: Finish | None = None,
) -> Patch:
    """Warps an upright crop into the frame with a soft edge.

    Args:
        frame: uint8 `(H, W, 3)` RGB. crop: float32 `(h, w, 3)` RGB, levels 0 to 255; clipped after interpolation.
        matrix: `(2, 3)` float64, frame pixels → crop pixels.
        opacity: float32 `(h, w)` in [0, 1], how much of the crop shows; None = all of it, with the edge of a crop.
    """
    finish = finish or Finish()
    height, width = crop.shape[:2]
    left, top, right, bottom = frame_rectangle(matrix, (width, height), frame.shape, _WARP_MARGIN_PX)
    if left >= right or top >= bottom:
        return Patch(left, top, np.zeros((0, 0, 3), np.uint16), np.zeros((0, 0), np.float32))
    place, size = shifted(matrix, left, top), (right - left, bottom - top)
    weight = _weight(opacity, (width, height), place, size, finish, np.array([left, top], np.float32))
    rows, columns = _around(weight)
    weight = weight[rows, columns]
    if not weight.size:
        return Patch(left, top, np.zeros((0, 0, 3), np.uint16), weight)
    warped = _warp(crop, shifted(place, columns.start, rows.start), weight.shape[::-1])
    if finish.gain_and_offset is not None:
        gain, offset = finish.gain_and_offset
        warped = np.asarray(cv2.transform(warped, np.column_stack([np.diag(gain), offset])), np.float32)
    np.clip(warped, 0, 255, out=warped)
    warped *= 257
    rgb = np.rint(warped, out=warped).astype(np.uint16)
    return Patch(left + columns.start, top + rows.start, rgb, weight)


def _weight(
    opacity: Float32Array | None,
    crop_px: tuple[int, int],
    place: Float64Array,
    size: tuple[int, int],
    finish: Finish,
    corner: Float32Array,
) -> Float32Array:
    """The patch's weights in a part of the frame of `size` (width, height), which begins at `corner` (x, y)."""
    # The crop's area in the frame without its interpolated border, and the sides of a square with this area.
    inside = _eroded(_warp(np.ones(crop_px[::-1], np.float32), place, size), (_BORDER_EROSION_PX,) * 2)
    sides = _square_sides(inside, place)
    weight = _soft_edge(inside, sides)
    if opacity is not None:
        shown = _warp(opacity, place, size)
        if finish.outlines:
            np.minimum(shown, filled([outline - corner for outline in finish.outlines], size), out=shown)
        weight *= _feathered(shown, sides)
    if finish.within:
        np.minimum(weight, filled([outline - corner for outline in finish.within], size), out=weight)
    weight *= weight >= _VISIBLE
    return np.minimum(weight, np.float32(1), out=weight)


def _warp(image: Float32Array, matrix: Float64Array, size: tuple[int, int]) -> Float32Array:
    """Samples `image` at a rectangle of `size` (width, height); `matrix`: its pixels → image pixels; 0 outside."""
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, matrix, size, flags=flags, borderMode=cv2.BORDER_CONSTANT).astype(
        np.float32, copy=False
    )


def _square_sides(inside: Float32Array, matrix: Float64Array) -> tuple[int, int]:
    """Width and height in frame pixels, which may not be square, of a square with the area of `inside`."""
    area = float(inside.sum(dtype=np.float64))
    wide, high = np.linalg.norm(matrix[:, :2], axis=0)
    aspect = round(float(wide / high), 6)  # exactly 1 for square pixels
    return isqrt(int(area / aspect)), isqrt(int(area * aspect))


def _soft_edge(inside: Float32Array, sides_px: tuple[int, int]) -> Float32Array:
    """Fades out the crop's area before its border, except at the edges of the frame, where the face continues."""
    x, y = (side // _EDGE_DIVISOR for side in sides_px)
    return _blurred(_eroded(inside, (2 * x, 2 * y)), (x, y))


def _feathered(opacity: Float32Array, sides_px: tuple[int, int]) -> Float32Array:
    """Fades a mask inwards, so that pixels that were 0 before resizing and warping are 0 again."""
    x, y = (int(side * FEATHER_PERCENT / 100) for side in sides_px)
    return _blurred(_eroded(opacity, (2 * (x + _SPREAD_PX) + 1, 2 * (y + _SPREAD_PX) + 1)), (x, y))


def _eroded(image: Float32Array, size_px: tuple[int, int]) -> Float32Array:
    """The minimum over a rectangle of `size_px` (width, height); pixels outside the picture are ignored."""
    kernel = np.ones((max(size_px[1], 1), max(size_px[0], 1)), np.uint8)
    return cv2.erode(image, kernel).astype(np.float32, copy=False)


def _blurred(image: Float32Array, radius_px: tuple[int, int]) -> Float32Array:
    """Gaussian blur over 2·radius + 1 pixels in x and y, with OpenCV's standard deviation for that size."""
    x, y = radius_px
    sigma_x, sigma_y = (0.3 * (radius - 1) + 0.8 for radius in radius_px)  # OpenCV's default differs for small kernels
    return cv2.GaussianBlur(image, (2 * x + 1, 2 * y + 1), sigma_x, sigmaY=sigma_y).astype(np.float32, copy=False)


def _unaliased_size(face: AlignedFace, enlarged: float = 1.0) -> tuple[int, int]:
    """The crop's size times `enlarged`; smaller where a side is shorter in the frame, as warping would skip pixels."""
    # How many frame pixels a step along the crop's rows and columns takes.
    steps = np.linalg.norm(inverse(face.matrix)[:, :2], axis=0).tolist()
    width, height = (
        max(1, round(side * min(enlarged, step))) for side, step in zip(face.crop_size_px, steps, strict=True)
    )
    return width, height


def _around(values: Float32Array, margin_px: int = 0) -> tuple[slice, slice]:
    """Rows and columns of all nonzero `values (H, W)` plus `margin_px`, clipped."""
    left, top, width, height = cv2.boundingRect((values != 0).view(np.uint8))
    bottom, right = min(top + height + margin_px, values.shape[0]), min(left + width + margin_px, values.shape[1])
    return slice(max(top - margin_px, 0), bottom), slice(max(left - margin_px, 0), right)
