"""Thin-plate-spline warps of an image from a few control points, evaluated on a coarse grid."""

import cv2
import numpy as np

from latentsync_trt.types import Float32Array, Float64Array, UInt8Array

_GRID_PX = 6
_REGULARIZATION = 1e-3
"""Regularization: keeps the system solvable where two points nearly coincide, at an error far below a pixel."""


class ThinPlateWarp:
    """The warp of a `(height, width)` image that moves what is at `sources` to `targets`."""

    def __init__(self, targets: Float64Array, sources: Float64Array, size_px: tuple[int, int]) -> None:
        """`targets`, `sources` `(n, 2)`: (x, y) in pixels. `size_px`: width and height."""
        width, height = size_px
        columns, rows = -(-width // _GRID_PX) + 1, -(-height // _GRID_PX) + 1
        grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2) * float(_GRID_PX)
        shift = _spline(targets, sources - targets, grid).reshape(rows, columns, 2)
        to_grid = np.eye(2, 3) / _GRID_PX
        dense = cv2.warpAffine(
            shift.astype(np.float32), to_grid, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        )
        self._x = dense[..., 0] + np.arange(width, dtype=np.float32)
        self._y = dense[..., 1] + np.arange(height, dtype=np.float32)[:, None]

    def __call__(self, picture: UInt8Array) -> Float32Array:
        """`picture (height, width, 3)` warped, float32."""
        warped = cv2.remap(picture, self._x, self._y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        return warped.astype(np.float32)


def _spline(centers: Float64Array, values: Float64Array, points: Float64Array) -> Float64Array:
    """The thin-plate spline through `values (n, 2)` at `centers (n, 2)`, evaluated at `points (m, 2)`: `(m, 2)`."""
    count = len(centers)
    affine = np.column_stack([np.ones(count), centers])
    system = np.zeros((count + 3, count + 3))
    system[:count, :count] = _kernel(centers, centers) + _REGULARIZATION * count**2 * np.eye(count)
    system[:count, count:], system[count:, :count] = affine, affine.T
    weights = np.linalg.solve(system, np.vstack([values, np.zeros((3, 2))]))
    return _kernel(points, centers) @ weights[:count] + weights[count] + points @ weights[count + 1 :]


def _kernel(a: Float64Array, b: Float64Array) -> Float64Array:
    squared = ((a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T).clip(1e-9)
    return squared * np.log(squared)
