"""Putting the painted face back: only the face's rectangle is touched, and in it only what was generated. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

from latentsync_trt.face.align import resize, scale_of
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.types import AlignedFace, Float32Array, Float64Array, Patch, UInt8Array

EDGE_ERODED_PX = 2
EDGE_SHARE = 20
"""The soft edge of the crop is 1/20 of the side of a square of its area."""

FEATHER = 1 / 128
"""Standard deviation of the mouth mask's soft outline, as a share of the face; it hides the step in the VAE's colours."""

_LEAST_WEIGHT = 0.5 / 255
"""A pixel with less of the new colour than this cannot change."""


@dataclass(frozen=True, slots=True)
class _Rectangle:
    """A rectangle of the frame in pixels, perhaps partly outside it; right and bottom exclusive."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.right - self.left, self.bottom - self.top


def compose(frame: UInt8Array, face: AlignedFace, painted: Float32Array) -> Patch:
    """The painted mouth as new pixels of `frame`.

    Only the generated region replaces the frame, softly at its outline and at the edge of the crop; the rest of the
    face keeps the frame's own pixels, which LatentSync resamples twice.

    Args:
        frame: uint8 `(H, W, 3)` RGB, whole. face: as cut from it. painted: float32 `(R, R, 3)`, [−1, 1] (clipped).
    """
    shrink = max(scale_of(face.matrix), 1.0)
    # Where the face is smaller in the frame than in the crop, bilinear warping would alias; shrink it properly first.
    size = (max(1, round(face.crop_size_px[0] / shrink)), max(1, round(face.crop_size_px[1] / shrink)))
    colours = (np.clip(painted, -1, 1) + 1) * np.float32(127.5)
    layers = np.dstack([resize(colours, size), _generated_share(painted.shape[0], size)])
    return _paste(frame, layers, _rescaled(face, size))


def paste_face(frame: UInt8Array, matrix: Float64Array, upright: Float32Array) -> Patch:
    """The whole upright crop pasted as LatentSync does it: `upright (h, w, 3)` float32 in [0, 255], at crop size."""
    whole = np.ones((*upright.shape[:2], 1), np.float32)
    return _paste(frame, np.dstack([upright.astype(np.float32), whole]), matrix)


def _paste(frame: UInt8Array, layers: Float32Array, matrix: Float64Array) -> Patch:
    """Warps colours and weight `(h, w, 4)` of the upright crop into the frame and blends them."""
    height, width = layers.shape[:2]
    inverse = np.asarray(cv2.invertAffineTransform(matrix), np.float64)
    place = _bounds(inverse, (width, height))
    weight = _soft_edge(inverse, (width, height), place)
    warped = _warp(layers, inverse, place, cv2.BORDER_REPLICATE)
    weight = weight * warped[..., 3]
    inside = _Rectangle(
        max(place.left, 0), max(place.top, 0), min(place.right, frame.shape[1]), min(place.bottom, frame.shape[0])
    )
    if inside.right <= inside.left or inside.bottom <= inside.top:
        return Patch(0, 0, np.zeros((0, 0, 3), np.uint8), np.zeros((0, 0), np.bool_))
    rows = slice(inside.top - place.top, inside.bottom - place.top)
    columns = slice(inside.left - place.left, inside.right - place.left)
    weight, colours = weight[rows, columns, None], warped[rows, columns, :3]
    own = frame[inside.top : inside.bottom, inside.left : inside.right].astype(np.float32)
    blended = np.clip(np.rint(own + weight * (colours - own)), 0, 255).astype(np.uint8)
    return Patch(inside.left, inside.top, blended, weight[..., 0] >= _LEAST_WEIGHT)


@lru_cache(maxsize=8)
def _generated_share(resolution: int, size: tuple[int, int]) -> Float32Array:
    """Share of the painted face at each pixel, `(h, w)` float32 in [0, 1]: the mask's inside, with a soft outline."""
    generated = np.ascontiguousarray(1 - mouth_mask(resolution))
    soft = np.asarray(cv2.GaussianBlur(generated, (0, 0), resolution * FEATHER), np.float32)
    return np.clip(resize(soft[..., None], size)[..., 0], 0, 1)


def _rescaled(face: AlignedFace, size: tuple[int, int]) -> Float64Array:
    """The face's matrix for a crop of another size; pixel centres stay in proportion."""
    factor = np.array(size) / np.array(face.crop_size_px)
    matrix: Float64Array = face.matrix * factor[:, None]
    matrix[:, 2] += (factor - 1) / 2
    return matrix


def _bounds(inverse: Float64Array, size: tuple[int, int]) -> _Rectangle:
    """What the crop covers of the frame, and a margin in which its edge can be eroded and blurred."""
    width, height = size
    corners = np.array([[0, 0, 1], [width, 0, 1], [0, height, 1], [width, height, 1]], np.float64)
    (xs, ys) = inverse @ corners.T
    margin = EDGE_ERODED_PX
    return _Rectangle(
        int(np.floor(xs.min())) - margin,
        int(np.floor(ys.min())) - margin,
        int(np.ceil(xs.max())) + margin,
        int(np.ceil(ys.max())) + margin,
    )


def _soft_edge(inverse: Float64Array, size: tuple[int, int], place: _Rectangle) -> Float32Array:
    """1 in the middle of the crop, falling to 0 at its outline: float32, as large as `place`."""
    solid = np.ones((size[1], size[0]), np.float32)
    mask = _eroded(_warp(solid, inverse, place, cv2.BORDER_CONSTANT), EDGE_ERODED_PX)
    edge_px = int(np.sqrt(mask.sum())) // EDGE_SHARE
    if edge_px == 0:
        return mask
    blur_px = 2 * edge_px + 1
    sigma = 0.3 * ((blur_px - 1) / 2 - 1) + 0.8
    core = _eroded(mask, 2 * edge_px)
    return mask * np.asarray(cv2.GaussianBlur(core, (blur_px, blur_px), sigma), np.float32)


def _eroded(mask: Float32Array, side_px: int) -> Float32Array:
    return np.asarray(cv2.erode(mask, np.ones((side_px, side_px), np.uint8)), np.float32)


def _warp(image: Float32Array, inverse: Float64Array, place: _Rectangle, border: int) -> Float32Array:
    """`image` of the crop as it appears in the frame's rectangle `place`, bilinear."""
    shifted = inverse.copy()
    shifted[:, 2] -= (place.left, place.top)
    warped = cv2.warpAffine(image, shifted, place.size, flags=cv2.INTER_LINEAR, borderMode=border)
    return np.asarray(warped, np.float32)
