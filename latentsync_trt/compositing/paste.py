"""Pastes painted faces into the frames of a clip, of which only the rectangle around the face is
read.

OpenCV's results go where there is memory (`dst`): else each call asks for Python's lock once more,
for which all wait.
"""

from functools import cache, lru_cache
from math import isqrt
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.compositing.blend import PLAIN_BLEND, Blend
from latentsync_trt.compositing.outline import FEATHER_PERCENT, filled
from latentsync_trt.face import align
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.types import (
    AlignedFace,
    Float32Array,
    Float64Array,
    Patch,
    Picture,
    UInt16Array,
)

_RESIZE_GRAPH = Path(__file__).resolve().parents[1] / "assets" / "graphs" / "resize.onnx"

_BORDER_EROSION_PX = 2
_EDGE_DIVISOR = 20
"""Width of the soft edge of a whole crop: 1/20 of the pasted square's side."""
_SPREAD_PX = 1
"""How far resizing and warping blur the outline of the mask, in frame pixels."""

# Bilinear interpolation spreads a crop pixel by less than this.
_WARP_MARGIN_PX = 2

_VISIBLE = 0.5 / 255
"""Smaller opacities change a sample by less than half an 8-bit level: no step that one could see,
at any depth.
"""


def composite(
    frame: Picture, face: AlignedFace, painted: UInt16Array, blend: Blend = PLAIN_BLEND
) -> Patch:
    """Returns the smallest rectangle with all changed pixels of a frame; 0×0 if none is inside it.

    Only the generated region replaces the frame, so that the skin around it stays sharp: the mask
    is warped back like the picture and fades inwards, so that no pixel outside the region changes.

    Args:
        frame: uint8 `(H, W, 3)` RGB. face: what was cut out of it, R × R; may lie partly outside.
        painted: uint16 `(r, r, 3)` RGB, 257 × the 8-bit level; r ≥ R, as an enhancer may enlarge
            it.
    """
    # The crop's size, as enlarged as what was painted; smaller where a side is shorter in the
    # frame, as warping would skip pixels. `steps`: how many frame pixels a step along the crop's
    # rows and columns takes.
    resolution_px = len(face.image)
    enlarged = len(painted) / resolution_px
    sides = zip(face.crop_size_px, align.steps(align.inverse(face.matrix)), strict=True)
    width, height = (max(1, round(side * min(enlarged, step))) for side, step in sides)
    size = width, height
    levels = resize_antialiased(painted * np.float32(1 / 257), size)
    return paste(frame, levels, align.rescaled(face, size), _opacity(resolution_px, size), blend)


@lru_cache(maxsize=8)  # most faces are larger than the network's, and keep one size
def _opacity(resolution_px: int, size_px: tuple[int, int]) -> Float32Array:
    """How much of a crop of this size (width, height) shows, float32 `(h, w)` in [0, 1]."""
    return np.clip(
        resize_antialiased(1 - align.mouth_mask(resolution_px)[..., None], size_px)[..., 0], 0, 1
    )


def resize_antialiased(image: Float32Array, size_px: tuple[int, int]) -> Float32Array:
    """Bicubic resize (a = −0.5) with antialiasing, as PyTorch's `interpolate(antialias=True)`, of
    `image`, float32 `(H, W, C)`, to width and height; values may overshoot. By a small graph, in
    half the time of other libraries' filters. Thread-safe.
    """
    (resized,) = _resizer().run({"image": image[None], "size": np.array(size_px[::-1], np.int64)})
    return np.asarray(resized[0], np.float32)


@cache
def _resizer() -> Session:
    return Session(_RESIZE_GRAPH, SessionSettings(intra_op_threads=1))


def paste(
    frame: Picture,
    crop: Float32Array,
    matrix: Float64Array,
    opacity: Float32Array | None = None,
    blend: Blend = PLAIN_BLEND,
) -> Patch:
    """Warps an upright crop into the frame with a soft edge.

    Args:
        frame: uint8 `(H, W, 3)` RGB. crop: float32 `(h, w, 3)` RGB, levels 0 to 255; clipped after
            interpolation.
        matrix: `(2, 3)` float64, frame pixels → crop pixels.
        opacity: float32 `(h, w)` in [0, 1], how much of the crop shows; None = all of it, with the
            edge of a crop.
    """
    height, width = crop.shape[:2]
    left, top, right, bottom = align.frame_rectangle(
        matrix, (width, height), frame.shape, _WARP_MARGIN_PX
    )
    if left >= right or top >= bottom:
        return Patch(left, top, np.zeros((0, 0, 3), np.uint16), np.zeros((0, 0), np.float32))
    place = align.shifted(matrix, left, top)
    corner = np.array([left, top], np.float32)
    outlines, within = (
        [each - corner for each in shapes] for shapes in (blend.outlines, blend.within)
    )
    weight = _weight(
        opacity, (width, height), place, (right - left, bottom - top), outlines, within
    )
    x, y, wide, high = cv2.boundingRect((weight != 0).view(np.uint8))
    weight = weight[y : y + high, x : x + wide]
    if not weight.size:
        return Patch(left, top, np.zeros((0, 0, 3), np.uint16), weight)
    warped = _warp(crop, align.shifted(place, x, y), weight.shape[::-1])
    if blend.gain_and_offset is not None:
        (red, green, blue), offset = blend.gain_and_offset.tolist()
        own = [[red, 0, 0, offset[0]], [0, green, 0, offset[1]], [0, 0, blue, offset[2]]]
        cv2.transform(warped, np.array(own, np.float32), dst=warped)
    rgb = np.empty(warped.shape, np.uint16)
    cv2.addWeighted(warped, 257, warped, 0, 0, dst=rgb, dtype=cv2.CV_16U)  # clips and rounds, too
    return Patch(left + x, top + y, rgb, weight)


def _weight(
    opacity: Float32Array | None,
    crop_px: tuple[int, int],
    place: Float64Array,
    size: tuple[int, int],
    outlines: list[Float32Array],
    within: list[Float32Array],
) -> Float32Array:
    """The patch's weights in a part of the frame of `size` (width, height); `place`: its pixels →
    crop pixels.
    """
    # The crop's area in the frame without its interpolated border, and the sides of a square with
    # this area, which differ where pixels are not square.
    inside = _eroded(
        _warp(np.ones(crop_px[::-1], np.float32), place, size), (_BORDER_EROSION_PX,) * 2
    )
    area = cv2.sumElems(inside)[0]
    wide, high = align.steps(place)
    aspect = round(wide / high, 6)  # exactly 1 for square pixels
    sides_px = isqrt(int(area / aspect)), isqrt(int(area * aspect))
    # The crop fades out before its border, except at the edges of the frame, where the face
    # continues.
    x, y = (side // _EDGE_DIVISOR for side in sides_px)
    weight = _blurred(_eroded(inside, (2 * x, 2 * y)), (x, y))
    if opacity is not None:
        shown = _warp(opacity, place, size)
        if outlines:
            np.minimum(shown, filled(outlines, size), out=shown)
        # It fades inwards, so that pixels that were 0 before resizing and warping are 0 again.
        x, y = (int(side * FEATHER_PERCENT / 100) for side in sides_px)
        shown = _eroded(shown, (2 * (x + _SPREAD_PX) + 1, 2 * (y + _SPREAD_PX) + 1))
        weight *= _blurred(shown, (x, y))
    if within:
        np.minimum(weight, filled(within, size), out=weight)
    cv2.threshold(weight, _VISIBLE, 0, cv2.THRESH_TOZERO, dst=weight)
    return np.minimum(weight, np.float32(1), out=weight)


def _warp(image: Float32Array, matrix: Float64Array, size: tuple[int, int]) -> Float32Array:
    """Samples `image` at a rectangle of `size` (width, height); `matrix`: its pixels → image
    pixels; 0 outside.
    """
    found = np.empty((size[1], size[0], *image.shape[2:]), np.float32)
    return np.asarray(
        cv2.warpAffine(image, matrix, size, found, cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP),
        np.float32,
    )


def _eroded(image: Float32Array, size_px: tuple[int, int]) -> Float32Array:
    """Changes `image` to the minima over a rectangle of `size_px` (width, height); pixels outside
    it are ignored.
    """
    kernel = np.ones((max(size_px[1], 1), max(size_px[0], 1)), np.uint8)
    return np.asarray(cv2.erode(image, kernel, dst=image), np.float32)


def _blurred(image: Float32Array, radius_px: tuple[int, int]) -> Float32Array:
    """Blurs `image` over 2·radius + 1 pixels in x and y, by a Gaussian with OpenCV's deviation for
    that size.
    """
    x, y = radius_px
    # OpenCV's default differs for small kernels
    sigma_x, sigma_y = (0.3 * (radius - 1) + 0.8 for radius in radius_px)
    blurred = cv2.GaussianBlur(image, (2 * x + 1, 2 * y + 1), sigma_x, dst=image, sigmaY=sigma_y)
    return np.asarray(blurred, np.float32)
