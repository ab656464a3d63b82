"""Decodes BlazeFace's output to boxes: anchors, decoding, non-maximum suppression. Pure.

Coordinates are fractions of the network's square input, x then y. See Bazarevsky et al. 2019; MediaPipe's settings.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from latentsync_trt.types import Float32Array

_SAME_FACE_IOU = 0.3
_LOGIT_LIMIT = 80.0
"""Larger logits mean a probability of 0 or 1, and the exponential could overflow."""
_KEYPOINTS = 6


@dataclass(frozen=True, slots=True)
class BlazeModel:
    """A detector network. `grids`: `(stride, anchors per cell)` of each."""

    name: str
    side_px: int
    grids: tuple[tuple[int, int], ...]
    least_score: float


# Three of the short-range model's four levels share stride 16, so its cells there have 3 × 2 anchors.
SHORT_RANGE = BlazeModel("blaze_short", 128, ((8, 2), (16, 6)), 0.5)
FULL_RANGE = BlazeModel("blaze_full", 192, ((4, 1),), 0.6)


@lru_cache(maxsize=2)
def anchors(model: BlazeModel) -> Float32Array:
    """Centers of the anchors, float32 `(n, 2)`, row by row."""
    grids = []
    for stride, count in model.grids:
        side = model.side_px // stride
        centers = (np.arange(side) + 0.5) / side
        x, y = np.meshgrid(centers, centers)
        grids.append(np.repeat(np.stack([x, y], axis=-1).reshape(-1, 2), count, axis=0))
    return np.concatenate(grids).astype(np.float32)


def decode(model: BlazeModel, boxes: Float32Array, scores: Float32Array) -> Float32Array:
    """Faces in one image, best first: `(n, 4, 2)`, top left and bottom right of the box, left and right eye.

    Args:
        boxes: `(anchors, 16)` raw: center, size, then six key points, in input pixels relative to the anchor's center.
        scores: `(anchors,)` logits.
    """
    probabilities = sigmoid(scores)
    found = np.flatnonzero(probabilities >= model.least_score)
    found = found[np.argsort(-probabilities[found], kind="stable")]
    points = boxes[found].reshape(len(found), 2 + _KEYPOINTS, 2) / np.float32(model.side_px)
    middle = anchors(model)[found]
    center, half = points[:, 0] + middle, points[:, 1] / 2
    left_eye, right_eye = points[:, 2] + middle, points[:, 3] + middle
    return _merged(probabilities[found], np.stack([center - half, center + half, left_eye, right_eye], axis=1))


def sigmoid(logits: Float32Array) -> Float32Array:
    """Probabilities in [0, 1]."""
    return (1 / (1 + np.exp(-np.clip(logits, -_LOGIT_LIMIT, _LOGIT_LIMIT, dtype=np.float64)))).astype(np.float32)


def _merged(scores: Float32Array, faces: Float32Array) -> Float32Array:
    """`faces (n, 4, 2)` with overlapping ones replaced by their mean, weighted by score; `scores` descend."""
    boxes = faces[:, :2].reshape(-1, 4)
    means, left = [], np.arange(len(scores))
    while left.size:
        same = iou(boxes[left[0]], boxes[left]) > _SAME_FACE_IOU
        same[0] = True
        group = left[same]
        means.append(np.tensordot(scores[group] / scores[group].sum(), faces[group], 1))
        left = left[~same]
    return np.array(means, np.float32).reshape(-1, 4, 2)


def iou(box: Float32Array, boxes: Float32Array) -> Float32Array:
    """Intersection over union of `box (4,)` with each of `boxes (n, 4)`: float32 `(n,)`."""
    low = np.maximum(box[:2], boxes[:, :2])
    high = np.minimum(box[2:], boxes[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    area = np.prod(box[2:] - box[:2]) + np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) - shared
    return np.asarray(shared / np.maximum(area, np.finfo(np.float32).tiny), np.float32)
