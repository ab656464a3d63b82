"""Moves points of a picture by thin-plate splines, for many pictures at once."""

import torch
from torch import Tensor
from torch.nn import functional as F

_GRID_PX = 6
"""The splines are evaluated at every sixth pixel, and linearly between."""
_SMOOTHING = 5e-4
"""Keeps a spline solvable where two points nearly coincide, at an error far below a pixel."""
_LEAST_DISTANCE = 1e-9
"""Keeps the logarithm finite at the points themselves."""


def warped(picture: Tensor, targets: Tensor, sources: Tensor) -> Tensor:
    """Returns `picture` once for each row of `targets`, with what is at `sources` moved there:
    `(N, 3, H, W)`.

    Args:
        picture: `(3, H, W)` float32.
        targets: `(N, n, 2)` float64, (x, y) in pixels.
        sources: `(n, 2)` float64.
    """
    height, width = picture.shape[1:]
    columns = torch.arange(-(-width // _GRID_PX) + 1, device=picture.device)
    rows = torch.arange(-(-height // _GRID_PX) + 1, device=picture.device)
    places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1) * float(_GRID_PX)
    shift = _spline(targets, sources - targets, places.flatten(0, 1).double())
    shift = shift.unflatten(1, (len(rows), len(columns))).permute(0, 3, 1, 2)
    size = ((len(rows) - 1) * _GRID_PX + 1, (len(columns) - 1) * _GRID_PX + 1)
    dense = F.interpolate(shift, size, mode="bilinear", align_corners=True)[..., :height, :width]
    x = torch.arange(width, device=picture.device) + dense[:, 0]
    y = torch.arange(height, device=picture.device)[:, None] + dense[:, 1]
    return sampled(picture.expand(len(targets), -1, -1, -1), x, y, mode="bicubic")


def sampled(pictures: Tensor, x: Tensor, y: Tensor, mode: str = "bilinear") -> Tensor:
    """Returns what `pictures (N, C, H, W)` show at the pixels `x`, `y` `(N, h, w)`; beyond their
    edges they are mirrored: `(N, C, h, w)`.
    """
    height, width = pictures.shape[2:]
    places = torch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    return F.grid_sample(pictures, places, mode, "reflection", align_corners=False)


def _spline(points: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """Returns the thin-plate splines through `values (N, n, 2)` at `points (N, n, 2)`, evaluated at
    `places (m, 2)`: `(N, m, 2)` float32.
    """
    count = points.shape[1]
    center = points.mean(1, keepdim=True)
    scale = (points - center).abs().amax((1, 2), keepdim=True)
    points = (points - center) / scale
    places = (places - center) / scale
    system = points.new_zeros(len(points), count + 3, count + 3)
    system[:, :count, :count] = _kernel(points, points)
    system.diagonal(dim1=1, dim2=2)[:, :count] += _SMOOTHING
    system[:, :count, count:] = _affine(points)
    system[:, count:, :count] = _affine(points).transpose(1, 2)
    solved = torch.linalg.solve(system, F.pad(values, (0, 0, 0, 3)))
    # Their values are pixels: float32 tells them apart.
    solved = solved.float()
    smooth = _kernel(places.float(), points.float()) @ solved[:, :count]
    return smooth + _affine(places.float()) @ solved[:, count:]


def _kernel(places: Tensor, points: Tensor) -> Tensor:
    """Returns r² log r of all distances: `(N, m, n)`."""
    squared = ((places[:, :, None] - points[:, None]) ** 2).sum(-1)
    return squared * (squared + _LEAST_DISTANCE).log() / 2


def _affine(places: Tensor) -> Tensor:
    """Returns a one beside each place: `(N, m, 3)`."""
    return F.pad(places, (1, 0), value=1.0)
