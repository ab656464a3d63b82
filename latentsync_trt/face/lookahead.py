"""Holds frames for half a second, until it is known what comes: gaps are bridged, and new faces followed back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np

from latentsync_trt.face.geometry import overlap
from latentsync_trt.face.tracker import HALF_S, FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.types import Face, Float32Array, Picture

T = TypeVar("T")

_COVERED_IOU = 0.1
"""A bridged face that overlaps another face more is behind it."""


@dataclass(slots=True, eq=False)
class _Held(Generic[T]):
    item: T
    time_s: Fraction
    picture: Picture
    seen: FrameFaces
    faces: dict[int, TrackedDetection]

    def covers(self, face: Face) -> bool:
        return overlap(face, [other.face for other in self.faces.values()]) > _COVERED_IOU


class LookAhead(Generic[T]):
    """Gives each frame back with its faces, after at most half a second of others.

    Where a track has a gap, its face is interpolated, unless the picture there does not look like it. A face that was
    found by a search, which runs every half second only, is followed back to where it appears.
    """

    def __init__(self, tracker: FaceTracker) -> None:
        self._tracker = tracker
        self._held: deque[_Held[T]] = deque()

    def push(self, item: T, time_s: Fraction, picture: Picture, seen: FrameFaces) -> list[tuple[T, FrameFaces]]:
        """Adds the next frame; returns those that need not wait any longer."""
        now = _Held(item, time_s, picture, seen, {})
        for sighting in seen.faces:
            self._fill(now, sighting)
            now.faces[sighting.track_id] = sighting
        self._held.append(now)
        return self._leave(before_s=time_s - HALF_S)

    def finish(self) -> list[tuple[T, FrameFaces]]:
        """All frames that still wait."""
        return self._leave(before_s=None)

    def _fill(self, now: _Held[T], sighting: TrackedDetection) -> None:
        gap: list[_Held[T]] = []
        for held in reversed(self._held):
            if sighting.track_id in held.faces:
                self._bridge(held, gap, now, sighting)
                return
            gap.append(held)
        self._follow_back(sighting, [held for held in gap if held.seen.shot == now.seen.shot])

    def _bridge(self, last: _Held[T], gap: Sequence[_Held[T]], now: _Held[T], after: TrackedDetection) -> None:
        before = last.faces[after.track_id]
        for held in gap:
            face = _between(before.face, after.face, float((held.time_s - last.time_s) / (now.time_s - last.time_s)))
            if not held.covers(face) and self._tracker.is_seen(held.picture, face, after.person):
                held.faces[after.track_id] = TrackedDetection(after.track_id, after.person, face)

    def _follow_back(self, sighting: TrackedDetection, earlier: Sequence[_Held[T]]) -> None:
        for held in earlier:
            found = self._tracker.near(held.picture, sighting)
            if found is None or held.covers(found.face):
                return
            held.faces[found.track_id] = sighting = found

    def _leave(self, before_s: Fraction | None) -> list[tuple[T, FrameFaces]]:
        left = []
        while self._held and (before_s is None or self._held[0].time_s < before_s):
            held = self._held.popleft()
            left.append((held.item, replace(held.seen, faces=tuple(held.faces.values()))))
        return left


def _between(one: Face, other: Face, part: float) -> Face:
    landmarks = None
    if one.landmarks is not None and other.landmarks is not None:
        landmarks = _mixed(one.landmarks, other.landmarks, part)
    score = (1 - part) * one.score + part * other.score
    return Face(_mixed(one.box, other.box, part), _mixed(one.points, other.points, part), score, landmarks)


def _mixed(one: Float32Array, other: Float32Array, part: float) -> Float32Array:
    return np.asarray((1 - part) * one + part * other, np.float32)
