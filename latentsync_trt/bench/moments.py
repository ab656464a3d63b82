"""Faces of a clip, cut out of the source and of results at the same place, and the moments that show most."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from latentsync_trt.bench.sync_measure import Curves
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import crop
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.tracker import AligningTracker
from latentsync_trt.types import BoolArray, Float64Array, UInt8Array

COUNT = 6
SHOWN_PX = 256
"""Side of the faces that people look at."""

Faces = tuple[UInt8Array, ...]
"""The same face in the source and in each result, uint8 `(side, side, 3)` RGB."""

_NEVER = -np.inf


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame and what it shows."""

    index: int
    shows: str


def face_views(
    clips: Sequence[Iterable[UInt8Array]], side_px: int, detector: MediaPipeDetector | None = None
) -> Iterator[Faces | None]:
    """The face of each frame in every clip, cut out where the first clip's face is; None where that has none.

    Args:
        clips: the source, then results of it; frames uint8 `(H, W, 3)` RGB.

    Raises:
        InputError: the pictures differ in size.
    """
    follower = AligningTracker(detector or MediaPipeDetector(), side_px)
    for frames in zip(*clips, strict=False):
        if len({frame.shape for frame in frames}) > 1:
            sizes = ", ".join(f"{frame.shape[1]}×{frame.shape[0]}" for frame in frames)
            raise InputError(f"pictures of {sizes} px, source first; give videos of one size")
        followed = follower.update(frames[0])
        yield None if followed is None else tuple(crop(frame, followed.matrix, side_px).image for frame in frames)


def shown(face: UInt8Array) -> UInt8Array:
    """A face at the size that people look at."""
    return np.asarray(cv2.resize(face, (SHOWN_PX, SHOWN_PX), interpolation=cv2.INTER_AREA), np.uint8)


def masked(face: UInt8Array, resolution_px: int) -> UInt8Array:
    """What a network of that resolution is given of a face: gray where it generates; as large as `face`."""
    small = cv2.resize(face, (resolution_px, resolution_px), interpolation=cv2.INTER_AREA).astype(np.float32)
    gray = np.rint((small - 127.5) * mouth_mask(resolution_px)[..., None] + 127.5).astype(np.uint8)
    return np.asarray(cv2.resize(gray, face.shape[1::-1], interpolation=cv2.INTER_CUBIC), np.uint8)


def choose_moments(curves: Curves, count: int = COUNT) -> list[Moment]:
    """Up to `count` frames with a face, in order, spread over the clip: the mouth wide, shut, between and at rest.

    Where the mouth is known, they are chosen by what it should do; else by what it does.
    """
    fitness = _fitness(curves)
    apart = len(curves) // (2 * count)
    chosen: list[Moment] = []
    for shows in ("widest", "shut", "widest", "shut", "half open", "silence", *["half open"] * count):
        fit = fitness[shows].copy()
        fit[np.isnan(curves.gaps)] = _NEVER
        for moment in chosen:
            fit[max(moment.index - apart, 0) : moment.index + apart + 1] = _NEVER
        if len(chosen) < count and fit.max(initial=_NEVER) > _NEVER:
            chosen.append(Moment(int(fit.argmax()), shows))
    named = {"shut": "m, b or p" if curves.mouth else "narrowest"}
    return sorted((Moment(m.index, named.get(m.shows, m.shows)) for m in chosen), key=lambda m: m.index)


def _fitness(curves: Curves) -> dict[str, Float64Array]:
    """How well each frame `(n,)` shows something; minus infinity where it does not."""
    opening = np.nan_to_num((curves.mouth.opening if curves.mouth else curves.gaps).astype(np.float64))
    return {
        "widest": opening,
        "shut": _depth(curves.mouth.shut) if curves.mouth else np.where(curves.silent, _NEVER, -opening),
        "half open": -np.abs(opening - opening.max(initial=0.0) / 2),
        "silence": _depth(curves.silent),
    }


def _depth(inside: BoolArray) -> Float64Array:
    """How many frames each frame of a run of True is from the run's nearer end, from 1; minus infinity outside."""
    distance = cv2.distanceTransform(np.pad(inside, 1).astype(np.uint8)[None], cv2.DIST_L1, 3)[0, 1:-1]
    return np.where(inside, distance, _NEVER).astype(np.float64)
