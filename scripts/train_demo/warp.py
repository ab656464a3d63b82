"""Smooth warps of a picture that are given by a few points: thin plates, evaluated on a coarse grid."""

import cv2
import numpy as np

from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

_GRID_PX = 6
_STIFFNESS = 1e-3
"""Keeps the plate solvable where two points nearly meet; moves it by far less than a pixel."""


class ThinPlateWarp:
    """Where the pixels of a `(height, width)` rectangle come from, so that `targets` show what is at `sources`."""

    def __init__(self, targets: Float64Array, sources: Float64Array, size_px: tuple[int, int]) -> None:
        """`targets`, `sources` `(n, 2)` (x, y) in pixels of the rectangle. `size_px`: width and height."""
        width, height = size_px
        columns, rows = -(-width // _GRID_PX) + 1, -(-height // _GRID_PX) + 1
        grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2) * float(_GRID_PX)
        shift = _plate(targets, sources - targets, grid).reshape(rows, columns, 2)
        # Bilinear between grid points: pixel (x, y) lies at grid (x, y) / step.
        place = np.eye(2, 3) / _GRID_PX
        dense = cv2.warpAffine(
            shift.astype(np.float32), place, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        )
        self._x = dense[..., 0] + np.arange(width, dtype=np.float32)
        self._y = dense[..., 1] + np.arange(height, dtype=np.float32)[:, None]

    def __call__(self, picture: UInt8Array) -> Float32Array:
        """`picture (height, width, 3)` warped, float32."""
        warped = cv2.remap(picture, self._x, self._y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        return warped.astype(np.float32)


def _plate(centers: Float64Array, values: Float64Array, places: Float64Array) -> Float64Array:
    """The thin plate through `values (n, 2)` at `centers (n, 2)`, at `places (m, 2)`: `(m, 2)`."""
    count = len(centers)
    affine = np.column_stack([np.ones(count), centers])
    system = np.zeros((count + 3, count + 3))
    system[:count, :count] = _kernel(centers, centers) + _STIFFNESS * count**2 * np.eye(count)
    system[:count, count:], system[count:, :count] = affine, affine.T
    weights = np.linalg.solve(system, np.vstack([values, np.zeros((3, 2))]))
    return _kernel(places, centers) @ weights[:count] + weights[count] + places @ weights[count + 1 :]


def _kernel(a: Float64Array, b: Float64Array) -> Float64Array:
    squared = ((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T).clip(1e-9)
    return squared * np.log(squared)
