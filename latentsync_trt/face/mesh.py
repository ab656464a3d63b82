"""FaceMesh's input region and the meaning of its points. Pure."""

from dataclasses import dataclass
from math import cos, hypot, pi, radians, remainder, sin

import cv2
import numpy as np

from latentsync_trt.types import Face, Float32Array, Float64Array, Picture, UInt8Array

SIDE_PX = 192
POINTS = 468

_LEFT_BROW, _RIGHT_BROW = np.array([70, 63, 105, 66, 107]), np.array([300, 293, 334, 296, 336])
_NOSE = np.array([5, 64, 294, 1])
_REGION_SCALE = 1.5
"""Side of the square region, relative to the face's longer side."""

_CONVERGED_SHIFT = 0.02
"""Fraction of its side by which a region may still move; talking heads move less per frame."""
_CONVERGED_TURN = radians(3)


@dataclass(frozen=True, slots=True)
class Region:
    """A rotated square of a frame: center and side in pixels, clockwise rotation of the face in radians."""

    x_px: float
    y_px: float
    side_px: float
    angle: float

    def to_frame(self) -> Float64Array:
        """`(2, 3)`: network input pixels → frame pixels."""
        scale = self.side_px / SIDE_PX
        along, across = cos(self.angle) * scale, sin(self.angle) * scale
        middle = (SIDE_PX - 1) / 2
        x = self.x_px - along * middle + across * middle
        y = self.y_px - across * middle - along * middle
        return np.array([[along, -across, x], [across, along, y]])


def region_of(box: Float32Array, left: Float32Array, right: Float32Array) -> Region:
    """The region of a face with `box (4,)`, rotated so that the line from `left` to `right (2,)` is level."""
    angle = float(np.arctan2(right[1] - left[1], right[0] - left[0]))
    side = float(max(box[2] - box[0], box[3] - box[1])) * _REGION_SCALE
    return Region(float(box[0] + box[2]) / 2, float(box[1] + box[3]) / 2, side, angle)


def region_around(face: Face) -> Region:
    """The region around `face`, to find it in the next frame."""
    return region_of(face.box, face.points[0], face.points[1])


def converged(seen: Region, own: Region) -> bool:
    """Whether the face found in the region `seen` has nearly the same `own` region: then its points are exact."""
    shift_px = hypot(own.x_px - seen.x_px, own.y_px - seen.y_px)
    turn = abs(remainder(own.angle - seen.angle, 2 * pi))
    return shift_px < _CONVERGED_SHIFT * seen.side_px and turn < _CONVERGED_TURN


def cut(frame: Picture, region: Region) -> Float32Array:
    """The region as the network's input: float32 `(1, 3, 192, 192)` in [0, 1], black outside the frame."""
    part, matrix = _around(frame, region)
    if 0 in part.shape:
        return np.zeros((1, 3, SIDE_PX, SIDE_PX), np.float32)
    shrink = int(region.side_px // SIDE_PX)
    if 2 <= shrink <= min(part.shape[:2]):  # bilinear warping would skip pixels: average them first
        size = (part.shape[1] // shrink, part.shape[0] // shrink)
        whole = part[: size[1] * shrink, : size[0] * shrink]
        part = np.asarray(cv2.resize(whole, size, interpolation=cv2.INTER_AREA), np.uint8)
        matrix[:, :2] /= shrink
        matrix[:, 2] = (matrix[:, 2] + 0.5) / shrink - 0.5
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    image = cv2.warpAffine(part, matrix, (SIDE_PX, SIDE_PX), flags=flags, borderMode=cv2.BORDER_CONSTANT)
    return np.ascontiguousarray(image.transpose(2, 0, 1)[None], np.float32) / np.float32(255)


def _around(frame: Picture, region: Region) -> tuple[UInt8Array, Float64Array]:
    """The part of the frame around the region, perhaps empty, and `Region.to_frame` relative to that part."""
    # Half the diagonal plus a margin, which contains the neighbors of bilinear samples even for small squares.
    reach = max(0.75 * region.side_px, 0.71 * region.side_px + 3)
    left, top, right, bottom = (
        int(max(center + end, 0)) for end in (-reach, reach) for center in (region.x_px, region.y_px)
    )
    matrix = region.to_frame()
    matrix[:, 2] -= left, top
    return frame[top:bottom, left:right], matrix


def to_frame(landmarks: Float32Array, region: Region) -> Float32Array:
    """The network's `(1, 1404, 1, 1)` output as the mesh `(468, 3)` float32: x, y, depth in frame pixels."""
    mesh = landmarks.reshape(POINTS, 3).astype(np.float64)
    matrix = region.to_frame()
    # The network's origin is the corner of its image, not the center of the first pixel: only then are the points of a
    # mirrored picture the mirrored points. MediaPipe's own are half a network pixel further right and down.
    planar = (mesh[:, :2] - 0.5) @ matrix[:, :2].T + matrix[:, 2]
    depth = mesh[:, 2:] * (region.side_px / SIDE_PX)
    return np.concatenate([planar, depth], axis=1).astype(np.float32)


def face_of(mesh: Float32Array, score: float) -> Face:
    """Box and the three alignment points of a mesh `(468, 3)` in frame pixels."""
    planar = mesh[:, :2]
    box = np.concatenate([planar.min(axis=0), planar.max(axis=0)])
    points = np.stack([planar[group].mean(axis=0) for group in (_LEFT_BROW, _RIGHT_BROW, _NOSE)])
    return Face(box.astype(np.float32), points.astype(np.float32), score, planar)
