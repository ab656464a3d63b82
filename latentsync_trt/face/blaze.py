"""Decodes what networks like BlazeFace return: boxes with points, relative to anchors. Pure."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from latentsync_trt.face.geometry import iou
from latentsync_trt.types import Float32Array

_SAME_BOX_IOU = 0.3
"""Candidates that overlap more are merged."""
_LOGIT_LIMIT = 80.0
"""Larger logits mean a probability of 0 or 1, and the exponential could overflow."""


@dataclass(frozen=True, slots=True)
class BlazeModel:
    """A detector network."""

    name: str
    side_px: int
    grids: tuple[tuple[int, int], ...]
    """Stride and anchors per cell of each grid."""
    points: int
    """Points that it returns beside each box."""
    least_score: float


def decoded(model: BlazeModel, boxes: Float32Array, scores: Float32Array) -> Float32Array:
    """Returns what is seen in one image, best first: `(n, 2 + model.points, 2)` float32, top left
    and bottom right of the box, then the points, as fractions of the square input.

    Args:
        boxes: `(anchors, 4 + 2 * model.points)`: center, size, then the points, in input pixels
            relative to the anchor's center.
        scores: `(anchors,)` logits.
    """
    logits = np.clip(scores.astype(np.float64), -_LOGIT_LIMIT, _LOGIT_LIMIT)
    probabilities = (1 / (1 + np.exp(-logits))).astype(np.float32)
    best_first = np.argsort(-probabilities, kind="stable")
    likely = best_first[probabilities[best_first] >= model.least_score]
    points = boxes[likely].reshape(-1, 2 + model.points, 2)
    points /= model.side_px
    half_size = points[:, 1] / 2
    points[:, 1] = points[:, 0]
    points += _anchors(model)[likely, None]
    points[:, 0] -= half_size
    points[:, 1] += half_size
    return _merged_candidates(probabilities[likely], points)


@lru_cache(maxsize=3)
def _anchors(model: BlazeModel) -> Float32Array:
    """Returns the centers of the anchors, as fractions of the square input: float32 `(n, 2)`, row
    by row.
    """
    grids = []
    for stride, count in model.grids:
        side = model.side_px // stride
        y, x = (np.mgrid[0:side, 0:side] + 0.5) / side
        centers = np.column_stack([x.ravel(), y.ravel()])
        grids.append(np.repeat(centers, count, axis=0))
    return np.concatenate(grids).astype(np.float32)


def _merged_candidates(scores: Float32Array, seen: Float32Array) -> Float32Array:
    """Returns `seen (n, points, 2)` with overlapping boxes replaced by their mean, weighted by
    score; `scores` descend.
    """
    boxes = seen[:, :2].reshape(-1, 4)
    means = []
    left = np.arange(len(scores))
    while left.size:
        best = boxes[left[0]]
        same = np.array([iou(best, box) > _SAME_BOX_IOU for box in boxes[left]])
        same[0] = True
        group = left[same]
        weights = scores[group] / scores[group].sum()
        means.append(np.tensordot(weights, seen[group], 1))
        left = left[~same]
    return np.array(means, np.float32).reshape(-1, *seen.shape[1:])
