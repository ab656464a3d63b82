"""Pastes painted faces into the frames of a clip, of which only the rectangle around the face is
read.

OpenCV writes its results to memory that is there (`dst`): else each call asks for Python's lock
once more, for which all threads wait.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt

import cv2
import numpy as np

from latentsync_trt.compositing.blend import Blend
from latentsync_trt.compositing.finish import finish_patch
from latentsync_trt.compositing.outline import FEATHER_PERCENT, drawn
from latentsync_trt.compositing.resize import FittedFace, resize_antialiased, warped
from latentsync_trt.face.align import (
    FrameRectangle,
    frame_rectangle,
    mouth_mask,
    shifted,
    steps,
)
from latentsync_trt.types import (
    Float32Array,
    Float64Array,
    Patch,
    Picture,
)

_BORDER_EROSION_PX = 2
"""Frame pixels at the border of a crop that are mixed with what is outside it."""
_EDGE_DIVISOR = 20
"""Width of the soft edge of a whole crop: 1/20 of the pasted square's side."""
_SPREAD_PX = 1
"""How far resizing and warping blur the outline of the mask, in frame pixels."""
_VISIBLE_OPACITY = 0.5 / 255
"""Smaller opacities change a sample by less than half an 8-bit level: no step that one could see,
at any depth.
"""


def composite(frame: Picture, face: FittedFace, blend: Blend) -> Patch:
    """Returns the smallest rectangle with all changed pixels of a frame; 0×0 if none is inside it.

    Only the generated region replaces the frame, so that the skin around it stays sharp: the mask
    is warped back like the picture and fades inwards, so that no pixel outside the region changes.

    Args:
        frame: uint8 `(H, W, 3)` RGB.
        face: may lie partly outside.
    """
    size_px = face.levels.shape[1::-1]
    opacity = _mask_opacity(len(face.aligned.image), size_px)
    return paste(frame, face.levels, face.matrix, opacity, blend)


@lru_cache(maxsize=8)  # most faces are larger than the network's, and keep one size
def _mask_opacity(resolution_px: int, size_px: tuple[int, int]) -> Float32Array:
    """Returns how much of a crop of this size (width, height) shows, float32 `(h, w)` in [0, 1]."""
    generated = 1 - mouth_mask(resolution_px)
    resized = resize_antialiased(generated[..., None], size_px)
    return resized[..., 0].clip(0, 1)


def paste(
    frame: Picture,
    crop: Float32Array,
    matrix: Float64Array,
    opacity: Float32Array,
    blend: Blend,
) -> Patch:
    """Warps an upright crop into the frame with a soft edge.

    Args:
        frame: uint8 `(H, W, 3)` RGB.
        crop: float32 `(h, w, 3)` RGB, levels 0 to 255; clipped after interpolation.
        matrix: `(2, 3)` float64, frame pixels → crop pixels.
        opacity: float32 `(h, w)` in [0, 1], how much of the crop shows.
    """
    height, width = opacity.shape
    area = frame_rectangle(matrix, (width, height), frame.shape)
    to_crop = shifted(matrix, area.left, area.top)
    if area.is_empty:
        weight = np.zeros((0, 0), np.float32)
    else:
        weight = _weight(area, to_crop, opacity, blend)
    x, y, wide, high = cv2.boundingRect((weight != 0).view(np.uint8))
    visible = weight[y : y + high, x : x + wide]
    corner = (area.left + x, area.top + y)
    rgb = np.empty((high, wide, 3), np.uint16)
    if rgb.size:
        levels = warped(crop, shifted(to_crop, x, y), (wide, high))
        finish_patch(levels, blend.finish, corner, visible)
        # Clips and rounds, too.
        cv2.addWeighted(levels, 257, levels, 0, 0, dst=rgb, dtype=cv2.CV_16U)
    return Patch(*corner, rgb, visible)


def _weight(
    area: FrameRectangle, to_crop: Float64Array, opacity: Float32Array, blend: Blend
) -> Float32Array:
    """Returns how much of each pixel of the area the crop replaces: float32 `(h, w)` in [0, 1].

    Whatever should keep pixels of the frame lowers this weight.

    Args:
        to_crop: `(2, 3)`, pixels of the area → crop pixels.
    """
    weight = warped(np.ones_like(opacity), to_crop, area.size_px)
    _erode(weight, _BORDER_EROSION_PX, _BORDER_EROSION_PX)
    side_x, side_y = _sides_of_square(weight, to_crop)

    # The crop fades out before its border, except at the edges of the frame, where the face
    # continues.
    edge_x = side_x // _EDGE_DIVISOR
    edge_y = side_y // _EDGE_DIVISOR
    _erode(weight, 2 * edge_x, 2 * edge_y)
    _blur(weight, edge_x, edge_y)

    opaque = warped(opacity, to_crop, area.size_px)
    _limit(opaque, blend.outlines, area)
    # It fades inwards, so that pixels that were 0 before resizing and warping are 0 again.
    feather_x = int(side_x * FEATHER_PERCENT / 100)
    feather_y = int(side_y * FEATHER_PERCENT / 100)
    _erode(opaque, 2 * (feather_x + _SPREAD_PX) + 1, 2 * (feather_y + _SPREAD_PX) + 1)
    _blur(opaque, feather_x, feather_y)
    weight *= opaque
    _limit(weight, blend.limits, area)
    for mask in blend.kept:
        levels = np.divide(mask.levels, 255, dtype=np.float32)
        to_mask = shifted(mask.from_frame, area.left, area.top)
        weight *= 1 - warped(levels, to_mask, area.size_px)
    cv2.threshold(weight, _VISIBLE_OPACITY, 0, cv2.THRESH_TOZERO, dst=weight)
    return np.minimum(weight, np.float32(1), out=weight)


def _sides_of_square(weight: Float32Array, to_crop: Float64Array) -> tuple[int, int]:
    """Returns width and height of a square that covers as much of the frame as a weight; they
    differ where pixels are not square.
    """
    covered_px = cv2.sumElems(weight)[0]
    columns_per_px, rows_per_px = steps(to_crop)
    aspect = round(columns_per_px / rows_per_px, 6)  # exactly 1 for square pixels
    width = isqrt(int(covered_px / aspect))
    height = isqrt(int(covered_px * aspect))
    return width, height


def _limit(weight: Float32Array, shapes: Sequence[Float32Array], area: FrameRectangle) -> None:
    """Lowers a weight to 0 outside the union of shapes `(n, 2)` in frame pixels, if there are
    any.
    """
    if shapes:
        corner = np.array([area.left, area.top], np.float32)
        inside = drawn([shape - corner for shape in shapes], area.size_px)
        opacity = inside * np.float32(1 / 255)
        np.minimum(weight, opacity, out=weight)


def _erode(image: Float32Array, width_px: int, height_px: int) -> None:
    """Changes `image` to the minima over a rectangle; what is outside the image is ignored."""
    kernel = np.ones((max(height_px, 1), max(width_px, 1)), np.uint8)
    cv2.erode(image, kernel, dst=image)


def _blur(image: Float32Array, radius_x: int, radius_y: int) -> None:
    """Blurs `image` over 2·radius + 1 pixels in x and y, by a Gaussian with OpenCV's deviation for
    that size; its default differs for small kernels.
    """
    sigma_x = 0.3 * (radius_x - 1) + 0.8
    sigma_y = 0.3 * (radius_y - 1) + 0.8
    size_px = (2 * radius_x + 1, 2 * radius_y + 1)
    cv2.GaussianBlur(image, size_px, sigma_x, dst=image, sigmaY=sigma_y)
