"""Gives each frame back with its faces, when those of the next half second are known: bridges short
gaps.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from latentsync_trt.face.geometry import between, overlap
from latentsync_trt.face.tracker import LOST_TRACK_S, FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.types import Frame, Picture

_COVERED_IOU = 0.1
"""A bridged face that overlaps another face more is behind it."""


@dataclass(slots=True, eq=False)
class _Held:
    frame: Frame
    picture: Picture
    seen: FrameFaces
    faces: dict[int, TrackedDetection]

    def add(self, found: TrackedDetection) -> bool:
        """Adds a face unless it is behind another, or the person is seen elsewhere."""
        others = self.faces.values()
        is_elsewhere = any(other.person == found.person for other in others)
        if is_elsewhere or overlap(found.face, [other.face for other in others]) > _COVERED_IOU:
            return False
        self.faces[found.track_id] = found
        return True

    def revise(self, later: TrackedDetection) -> None:
        """Takes what is known of a face in a later frame of the track, unless the person is seen
        elsewhere here.
        """
        face = self.faces.pop(later.track_id, None)
        if face is not None and all(other.person != later.person for other in self.faces.values()):
            self.faces[face.track_id] = replace(later, face=face.face)


class LookAhead:
    """Gives each frame back with its faces, after at most half a second of others.

    Where a track has a gap, its face is interpolated, unless the picture there does not look like
    it. A face that was found by a search, which runs every half second only, is followed back to
    where it appears.
    """

    def __init__(self, tracker: FaceTracker) -> None:
        self._tracker = tracker
        self._held: deque[_Held] = deque()

    def push(
        self, frame: Frame, picture: Picture, seen: FrameFaces
    ) -> list[tuple[Frame, FrameFaces]]:
        """Adds the next frame, whose `picture` has square pixels; returns those that need not wait
        any longer.
        """
        now = _Held(frame, picture, seen, {})
        for sighting in seen.faces:
            for held in self._held:
                held.revise(sighting)
            gap: list[_Held] = []
            for held in reversed(self._held):
                if sighting.track_id in held.faces:
                    self._bridge(held, gap, now, sighting)
                    break
                gap.append(held)
            else:
                self._follow_back(sighting, [held for held in gap if held.seen.shot == seen.shot])
            now.faces[sighting.track_id] = sighting
        self._held.append(now)
        return self.finish(before_s=frame.time_s - LOST_TRACK_S)

    def finish(self, before_s: Fraction | None = None) -> list[tuple[Frame, FrameFaces]]:
        """All frames that still wait, or those before a time."""
        left = []
        while self._held and (before_s is None or self._held[0].frame.time_s < before_s):
            held = self._held.popleft()
            left.append((held.frame, replace(held.seen, faces=tuple(held.faces.values()))))
        return left

    def _bridge(
        self, last: _Held, gap: Sequence[_Held], now: _Held, after: TrackedDetection
    ) -> None:
        before = last.faces[after.track_id]
        start_s = last.frame.time_s
        end_s = now.frame.time_s
        for held in gap:
            face = between(
                before.face, after.face, float((held.frame.time_s - start_s) / (end_s - start_s))
            )
            if self._tracker.is_seen(held.picture, face, after.person):
                held.add(replace(after, face=face))

    def _follow_back(self, sighting: TrackedDetection, earlier: Sequence[_Held]) -> None:
        for held in earlier:
            face = self._tracker.near(held.picture, sighting.face, sighting.face)
            if face is None or not self._tracker.is_seen(held.picture, face, sighting.person):
                return
            sighting = replace(sighting, face=face)
            if not held.add(sighting):
                return
