"""Holds frames for half a second, until it is known what comes: gaps are bridged, and new faces followed back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from latentsync_trt.face.blaze import iou
from latentsync_trt.face.tracker import FaceTracker, Seen, Sighting
from latentsync_trt.types import Face, Float32Array, Picture

T = TypeVar("T")

_COVERED_IOU = 0.1
"""A bridged face that overlaps another face more is behind it."""


@dataclass(slots=True, eq=False)
class _Held(Generic[T]):
    item: T
    picture: Picture
    seen: Seen
    faces: dict[int, Sighting]

    def covers(self, face: Face) -> bool:
        boxes = [other.face.box for other in self.faces.values()]
        return bool(boxes) and bool((iou(face.box, np.stack(boxes)) > _COVERED_IOU).any())


class LookAhead(Generic[T]):
    """Gives each frame back with its faces, after at most half a second of others.

    Where a track has a gap, its face is interpolated, unless the picture there does not look like it. A face that was
    found by a search, which runs every half second only, is followed back to where it appears.
    """

    def __init__(self, tracker: FaceTracker) -> None:
        self._tracker = tracker
        self._held: deque[_Held[T]] = deque()

    def push(self, item: T, picture: Picture, seen: Seen) -> list[tuple[T, Seen]]:
        """Adds the next frame; returns those that need not wait any longer."""
        now = _Held(item, picture, seen, {})
        for sighting in seen.faces:
            self._fill(sighting, seen.shot)
            now.faces[sighting.track_id] = sighting
        self._held.append(now)
        return self._leave(self._tracker.patience_frames + 1)

    def finish(self) -> list[tuple[T, Seen]]:
        """All frames that still wait."""
        return self._leave(0)

    def _fill(self, sighting: Sighting, shot: int) -> None:
        gap: list[_Held[T]] = []
        for held in reversed(self._held):
            before = held.faces.get(sighting.track_id)
            if before is not None:
                self._bridge(before, gap[::-1], sighting)
                return
            gap.append(held)
        self._follow_back(sighting, [held for held in gap if held.seen.shot == shot])

    def _bridge(self, before: Sighting, gap: Sequence[_Held[T]], after: Sighting) -> None:
        for number, held in enumerate(gap, 1):
            face = _between(before.face, after.face, number / (len(gap) + 1))
            if not held.covers(face) and self._tracker.is_seen(held.picture, face, after.person):
                held.faces[after.track_id] = Sighting(after.track_id, after.person, face)

    def _follow_back(self, sighting: Sighting, earlier: Sequence[_Held[T]]) -> None:
        for held in earlier:
            found = self._tracker.near(held.picture, sighting)
            if found is None or held.covers(found.face):
                return
            held.faces[found.track_id] = sighting = found

    def _leave(self, keep: int) -> list[tuple[T, Seen]]:
        left = []
        while len(self._held) > keep:
            held = self._held.popleft()
            left.append((held.item, Seen(held.seen.shot, tuple(held.faces.values()), held.seen.why_none)))
        return left


def _between(one: Face, other: Face, part: float) -> Face:
    landmarks = None
    if one.landmarks is not None and other.landmarks is not None:
        landmarks = _mixed(one.landmarks, other.landmarks, part)
    score = (1 - part) * one.score + part * other.score
    return Face(_mixed(one.box, other.box, part), _mixed(one.points, other.points, part), score, landmarks)


def _mixed(one: Float32Array, other: Float32Array, part: float) -> Float32Array:
    return np.asarray((1 - part) * one + part * other, np.float32)
