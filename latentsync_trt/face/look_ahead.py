"""Yields frames only when the faces of the next half second are known, which bridges short gaps."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from latentsync_trt.face.geometry import between, overlap
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.types import Frame, Picture

LOOK_AHEAD_S = Fraction(1, 2)
"""Time between a frame and the last one whose faces are known when it is given back."""
_COVERED_IOU = 0.1
"""A bridged face that overlaps another face more is behind it."""


@dataclass(slots=True, eq=False)
class _WaitingFrame:
    frame: Frame
    picture: Picture
    seen: FrameFaces
    faces: dict[int, TrackedDetection] = field(default_factory=dict)
    """By the numbers of their tracks; those that are found later, too."""

    def add(self, face: TrackedDetection) -> bool:
        """Adds a face unless it is behind another, or the person is seen elsewhere."""
        others = self.faces.values()
        is_elsewhere = any(other.person == face.person for other in others)
        if is_elsewhere or overlap(face.face, [other.face for other in others]) > _COVERED_IOU:
            return False
        self.faces[face.track_id] = face
        return True

    def revise(self, later: TrackedDetection) -> None:
        """Takes what is known of a face in a later frame of the track, unless the person is seen
        elsewhere here.
        """
        face = self.faces.pop(later.track_id, None)
        people = {other.person for other in self.faces.values()}
        if face is not None and later.person not in people:
            self.faces[face.track_id] = replace(later, face=face.face)


class LookAhead:
    """Gives each frame back with its faces, after at most half a second of others.

    Where a track has a gap, its face is interpolated, unless the picture there does not look like
    it. A face that a search has found, which runs every half second only, is followed back to where
    it appears.
    """

    def __init__(self, tracker: FaceTracker) -> None:
        self._tracker = tracker
        self._waiting: deque[_WaitingFrame] = deque()

    def push(
        self, frame: Frame, picture: Picture, seen: FrameFaces
    ) -> list[tuple[Frame, FrameFaces]]:
        """Adds the next frame, whose `picture` has square pixels; returns those that need not wait
        any longer.
        """
        now = _WaitingFrame(frame, picture, seen)
        for face in seen.faces:
            for waiting in self._waiting:
                waiting.revise(face)
            gap: list[_WaitingFrame] = []
            for waiting in reversed(self._waiting):
                if face.track_id in waiting.faces:
                    self._bridge(waiting, gap, now, face)
                    break
                gap.append(waiting)
            else:
                shot = [waiting for waiting in gap if waiting.seen.shot == seen.shot]
                self._follow_back(face, shot)
            now.faces[face.track_id] = face
        self._waiting.append(now)
        return self.finish(before_s=frame.time_s - LOOK_AHEAD_S)

    def finish(self, before_s: Fraction | None = None) -> list[tuple[Frame, FrameFaces]]:
        """Returns all frames that still wait, or those before a time."""
        ready = []
        while self._waiting and (before_s is None or self._waiting[0].frame.time_s < before_s):
            waiting = self._waiting.popleft()
            faces = tuple(waiting.faces.values())
            ready.append((waiting.frame, replace(waiting.seen, faces=faces)))
        return ready

    def _bridge(
        self,
        last: _WaitingFrame,
        gap: Sequence[_WaitingFrame],
        now: _WaitingFrame,
        after: TrackedDetection,
    ) -> None:
        """Adds a face that was in the frame `last`, and is there again, to the frames between."""
        before = last.faces[after.track_id]
        start_s = last.frame.time_s
        end_s = now.frame.time_s
        for waiting in gap:
            part = float((waiting.frame.time_s - start_s) / (end_s - start_s))
            face = between(before.face, after.face, part)
            if self._tracker.is_seen(waiting.picture, face, after.person):
                waiting.add(replace(after, face=face))

    def _follow_back(self, detection: TrackedDetection, earlier: Sequence[_WaitingFrame]) -> None:
        """Adds a new face to frames before, latest first, as far back as it is seen."""
        for waiting in earlier:
            face = self._tracker.near(waiting.picture, detection.face)
            if face is None or not self._tracker.is_seen(waiting.picture, face, detection.person):
                return
            detection = replace(detection, face=face)
            if not waiting.add(detection):
                return
