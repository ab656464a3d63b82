"""How well a mouth follows speech, measured from pictures and sound alone: no network is needed that knows speech.

The gap between the lips comes from FaceMesh, frame by frame. It is compared with the mouth that made the clip, where
that is known, or with the loudness of the sound, which every clip has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mesh import region_around
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, UInt8Array

CLOSED_GAP = 0.042
"""Lips nearer than this touch. FaceMesh gives 0.02 to 0.041 for lips that do, and 0.043 or more for 19 of 20 gaps of a
tenth of the widest."""

MOST_LAG_FRAMES = 8
QUIET_DB = -40.0
"""A frame this much softer than the loudest one is silent."""

# Pairs of points on the inner edges of the upper and the lower lip, and the outer corners of the eyes.
_LIPS = ((82, 87), (312, 317), (81, 178), (311, 402), (80, 88), (310, 318))
_EYES = (33, 263)

_LEAST_FRAMES = 3
"""Below three frames every correlation is 1."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike two curves are.

    `correlation`: of frames at the same time, in [−1, 1]; 0 where one of the curves is flat. `lag_frames`: how much
    later than the other the first curve is where they agree best; `best_correlation` is what they reach there.
    """

    correlation: float
    lag_frames: int
    best_correlation: float


def mouth_gaps(frames: Iterable[UInt8Array], detector: MediaPipeDetector | None = None) -> Float32Array:
    """The gap between the lips of the tracked face, in distances between the outer corners of the eyes.

    Args:
        frames: uint8 `(H, W, 3)` RGB each, consecutive.
        detector: finds the face and its mesh; a new one if None.

    Returns:
        float32 `(n,)`, one value a frame; NaN where there is no face.
    """
    detector = detector or MediaPipeDetector()
    tracker = FaceTracker(detector)
    return np.array([_gap(frame, tracker, detector) for frame in frames], np.float32)


def lip_gap(mesh: Float32Array) -> float:
    """The gap between the lips of FaceMesh's points `(468, 3)`, in distances between the eyes' outer corners."""
    points = mesh[:, :2].astype(np.float64)
    gaps = [np.linalg.norm(points[lower] - points[upper]) for upper, lower in _LIPS]
    return float(np.mean(gaps) / np.linalg.norm(points[_EYES[1]] - points[_EYES[0]]))


def agreement(measured: Float32Array, driven: Float32Array, most_lag_frames: int = MOST_LAG_FRAMES) -> Agreement:
    """How well `measured` follows `driven`, both `(n,)`; frames in which either is NaN are left out.

    Raises:
        InputError: the curves differ in length, or fewer than three frames can be compared.
    """
    if measured.shape != driven.shape or measured.ndim != 1:
        raise InputError(f"curves of shapes {measured.shape} and {driven.shape}: two of one length are compared")
    reach = min(most_lag_frames, max(len(measured) - 1, 0))
    lags = range(-reach, reach + 1)
    found = {lag: _correlation(*_shifted(measured, driven, lag)) for lag in lags}
    if found[0] is None:
        raise InputError(f"{len(measured)} frames, of which too few show a face: nothing to compare")
    best = max((lag for lag in lags if found[lag] is not None), key=lambda lag: (found[lag] or 0.0, -abs(lag)))
    return Agreement(found[0], best, found[best] or 0.0)


def closure_recall(gaps: Float32Array, shut: BoolArray) -> float:
    """Share of the times that the lips must touch (runs of True in `shut (n,)`) in which they do; NaN without any."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], shut, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    closed = [bool((gaps[start:end] < CLOSED_GAP).any()) for start, end in runs]
    return float(np.mean(closed)) if closed else float("nan")


def closed_rate(gaps: Float32Array, silent: BoolArray) -> float:
    """Share of the `silent (n,)` frames in which the lips touch; frames without a face do not count; NaN without any.

    Two frames after the sound ends, and before it begins, the mouth may still be moving: leave them out of `silent`.
    """
    counted = gaps[silent & ~np.isnan(gaps)]
    return float((counted < CLOSED_GAP).mean()) if counted.size else float("nan")


def loudness(blocks: Iterable[Float32Array], rate_hz: int) -> Float32Array:
    """The loudness of each frame's 40 ms, centerd on it, in dB below the loudest frame, float32 `(n,)`, at least −100.

    Args:
        blocks: float32 `(samples,)` each, mono, one after the other. rate_hz: samples a second.
    """
    halves = _energies(blocks, Fraction(rate_hz, 2 * MODEL_FPS))
    count = ceil(halves.shape[1] / 2)
    # Frame i lies between the halves 2i − 1 and 2i; before the first and after the last one there is nothing.
    padded = np.pad(halves, ((0, 0), (1, 1)))[:, : 2 * count]
    energy, samples = padded.reshape(2, count, 2).sum(axis=2)
    power = energy / np.maximum(samples, 1)
    peak = float(power.max(initial=0.0)) or 1.0
    return np.asarray(10 * np.log10(np.maximum(power / peak, 1e-10)), np.float32)


def silences(level_db: Float32Array, margin_frames: int = 3) -> BoolArray:
    """Frames `(n,)` of `loudness` that are silent, as are all within `margin_frames` of them."""
    loud = (level_db > QUIET_DB).astype(np.int64)
    reach = np.convolve(loud, np.ones(2 * margin_frames + 1, np.int64), "same") if len(loud) else loud
    return np.asarray(reach[: len(loud)] == 0, np.bool_)


def _energies(blocks: Iterable[Float32Array], length: Fraction) -> Float64Array:
    """Energy and samples of consecutive stretches of `length` samples, the last one short: `(2, stretches)`."""
    done = [np.zeros((2, 0))]
    open_one, first, position = np.zeros(2), 0, 0
    for block in filter(len, blocks):
        index = (position + np.arange(len(block))) * length.denominator // length.numerator
        counts = [np.bincount(index - first, weights) for weights in (block.astype(np.float64) ** 2, None)]
        found = np.stack(counts).astype(np.float64)
        found[:, 0] += open_one
        done.append(found[:, :-1])
        open_one, first, position = found[:, -1], int(index[-1]), position + len(block)
    return np.concatenate([*done, open_one[:, None]] if position else done, axis=1)


def _gap(frame: UInt8Array, tracker: FaceTracker, detector: MediaPipeDetector) -> float:
    tracked = tracker.update(frame)
    found = detector.mesh(frame, region_around(tracked.face)) if tracked is not None else None
    return lip_gap(found[0]) if found is not None else float("nan")


def _shifted(measured: Float32Array, driven: Float32Array, lag: int) -> tuple[Float32Array, Float32Array]:
    """The frames of both that face each other if `measured` is `lag` frames late."""
    if lag >= 0:
        return measured[lag:], driven[: len(driven) - lag]
    return measured[:lag], driven[-lag:]


def _correlation(a: Float32Array, b: Float32Array) -> float | None:
    """Pearson's, over frames in which both are numbers; None if there are too few."""
    known: NDArray[np.bool_] = ~(np.isnan(a) | np.isnan(b))
    if known.sum() < _LEAST_FRAMES:
        return None
    x, y = a[known].astype(np.float64), b[known].astype(np.float64)
    x, y = x - x.mean(), y - y.mean()
    spread = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / spread) if spread > 0 else 0.0
