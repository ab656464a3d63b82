"""The parts of faces in which two bundles are compared, and the sums that likeness is made of. Pure."""

import numpy as np

from latentsync_trt.bench.material import generated_part
from latentsync_trt.bench.pictures import ssim
from latentsync_trt.bench.quality.results import Area, AreaLikeness, decibels
from latentsync_trt.errors import InputError
from latentsync_trt.types import Float32Array, UInt8Array

Part = tuple[slice, slice]

PEAK = 2.0
"""Of faces in [−1, 1]."""

# In 1/256 of an aligned face. On four clips of real faces the lips' outline, wide open or shut, stays within x = 70 to
# 189 and y = 135 to 193.
_MOUTH_ROWS, _MOUTH_COLUMNS = (124, 204), (64, 196)
_UNIT = 256


def parts_of(resolution_px: int) -> dict[Area, Part]:
    """Rows and columns of an aligned face: all of it; the part that reaches the video; the lips with some room."""
    whole = slice(0, resolution_px)
    rows, columns = (
        slice(start * resolution_px // _UNIT, end * resolution_px // _UNIT)
        for start, end in (_MOUTH_ROWS, _MOUTH_COLUMNS)
    )
    return {"face": (whole, whole), "generated": generated_part(resolution_px), "mouth": (rows, columns)}


class Tally:
    """How near faces are to those of a reference, face by face.

    Args:
        resolution_px: sides of the faces.
    """

    def __init__(self, resolution_px: int) -> None:
        self._parts = parts_of(resolution_px)
        self._squares = dict.fromkeys(self._parts, 0.0)
        self._ssim = dict.fromkeys(self._parts, 0.0)
        self._frames = 0

    def add(self, reference: Float32Array, faces: Float32Array) -> None:
        """Counts faces `(n, H, W, 3)` in [−1, 1].

        Raises:
            InputError: the shapes differ.
        """
        if reference.shape != faces.shape:
            raise InputError(f"faces of shapes {reference.shape} and {faces.shape}: two of one shape are compared")
        for one, other in zip(reference, faces, strict=True):
            self._frames += 1
            levels = as_levels(one), as_levels(other)
            for area, part in self._parts.items():
                difference = one[part].astype(np.float64) - other[part]
                self._squares[area] += float(np.mean(difference**2))
                self._ssim[area] += ssim(levels[0][part], levels[1][part])

    def result(self) -> tuple[AreaLikeness, ...]:
        """A line for each area; raises `InputError` where no face was counted."""
        if not self._frames:
            raise InputError("no face was generated: nothing to compare")
        return tuple(
            AreaLikeness(
                area,
                decibels(PEAK**2, self._squares[area] / self._frames),
                self._ssim[area] / self._frames,
                self._frames,
            )
            for area in self._parts
        )


def as_levels(face: Float32Array) -> UInt8Array:
    """A face in [−1, 1] as a picture."""
    return np.rint((face + np.float32(1)) * np.float32(127.5)).astype(np.uint8)


def as_face(levels: UInt8Array) -> Float32Array:
    """A picture as a face in [−1, 1]."""
    return levels.astype(np.float32) / np.float32(127.5) - np.float32(1)
