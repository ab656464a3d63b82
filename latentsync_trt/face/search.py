"""Searches the faces of a frame, and follows them from one frame to the next."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np

from latentsync_trt.face.cuts import View
from latentsync_trt.face.geometry import (
    SAME_FACE_IOU,
    box_area,
    checked_faces,
    distance_moved,
    is_usable,
    overlap,
    roll_deg,
    turned_aside,
)
from latentsync_trt.face.identity import are_alike
from latentsync_trt.types import Face, FaceDetector, Picture, UInt8Array

SEARCH_EVERY_S = Fraction(1, 2)
"""Time between two searches for other faces, where none was lost."""
CONTINUES_IOU = 0.3
"""Least overlap of a face with the box of the previous frame."""
FARTHEST_MOVE = 1.0
"""How far a face moves at most while it is lost, in its own size."""
_MOST_FACES = 12
"""Faces followed at once, the largest: each takes as long as the only one of most clips."""
_MOST_TURNED_ASIDE = 0.5
"""A face that looks farther aside is about to be lost."""

ON_ITS_SIDE = "on its side"
"""Why a frame has no face to use that shows one on its side or upside down."""
TURNED_AWAY = "turned away"
"""Why a frame has no painted face that shows one nearly in profile."""


@runtime_checkable
class FollowingDetector(FaceDetector, Protocol):
    """A detector that also follows faces, which is faster and steadier than detection, and finds
    new ones without converting the whole picture; see `MediaPipeDetector`.
    """

    def follow(self, frame: Picture, previous: Face) -> Face | None: ...

    def search(
        self,
        picture: Picture,
        overview: UInt8Array,
        followed: Sequence[Face],
        *,
        small: bool = False,
    ) -> list[Face]: ...


class FaceSearch:
    """Finds the faces that can be aligned, and remembers when it has searched.

    Args:
        small: whether each search looks for small faces, too; else only those do that have no other
            face to follow.
    """

    def __init__(self, detector: FaceDetector, *, small: bool) -> None:
        self.why_none = "no face"
        """Why the last search that found no face to use found none."""
        self.turned_deg = 0
        """How far clockwise a face `ON_ITS_SIDE` was turned: 90, 180 or 270."""
        self._detector = detector
        self._following = detector if isinstance(detector, FollowingDetector) else None
        self._always_small = small
        self._searched_s: Fraction | None = None
        self._searched_small_s: Fraction | None = None

    @property
    def follows(self) -> bool:
        """Whether faces are followed; else all are searched in every frame."""
        return self._following is not None

    def restart(self) -> None:
        """Looks for small faces in the next frame, too."""
        self._searched_small_s = None

    def repeat(self) -> None:
        """Searches again in the next frame."""
        self._searched_s = None

    def is_due(self, time_s: Fraction) -> bool:
        return self._searched_s is None or time_s - self._searched_s >= SEARCH_EVERY_S

    def has_searched(self, time_s: Fraction) -> bool:
        """Whether the frame at this time was searched."""
        return self._searched_s == time_s

    def near(self, picture: Picture, expected: Face, last: Face) -> Face | None:
        """Returns the usable face near the place of `expected` that continues `last`."""
        if self._following is None:
            return None
        face = self._following.follow(picture, expected)
        if face and is_usable(face) and overlap(last, [face]) >= CONTINUES_IOU:
            return face
        return None

    def faces(
        self, view: View, time_s: Fraction, followed: Sequence[Face], tracked: Sequence[Face]
    ) -> list[Face]:
        """Returns usable faces other than those `followed`, largest first; raises as
        `checked_faces`.

        Args:
            tracked: the last places of all faces that are followed, or were lost shortly before.
        """
        self._searched_s = time_s
        faces = self._detected(view, time_s, followed)
        others = [face for face in faces if overlap(face, followed) <= SAME_FACE_IOU]
        fine = [face for face in others if is_usable(face)]
        if not fine and not followed:
            self._explain(faces, tracked)
        fine.sort(key=box_area, reverse=True)
        return fine[: max(0, _MOST_FACES - len(followed))]

    def _detected(self, view: View, time_s: Fraction, followed: Sequence[Face]) -> list[Face]:
        if self._following is None:
            faces = self._detector.detect(np.asarray(view.picture))
            return checked_faces(faces, self._detector)
        before_s = self._searched_small_s
        is_recent = before_s is not None and time_s - before_s < SEARCH_EVERY_S
        small = (self._always_small or not followed) and not is_recent
        if small:
            self._searched_small_s = time_s
        return self._following.search(view.picture, view.overview(), followed, small=small)

    def _explain(self, faces: Sequence[Face], tracked: Sequence[Face]) -> None:
        """Remembers why none of the detected faces can be used."""
        on_side = [face for face in faces if is_usable(face, turned=True)]
        if on_side:
            self.why_none = ON_ITS_SIDE
            largest = max(on_side, key=box_area)
            quarters = round(roll_deg(largest) / 90)
            self.turned_deg = quarters * 90 % 360
        elif faces:
            self.why_none = "too small"
        elif any(turned_aside(face.points) > _MOST_TURNED_ASIDE for face in tracked):
            self.why_none = TURNED_AWAY
        else:
            self.why_none = "no face"

    def earlier(self, before: View, view: View, face: Face, places: Sequence[Face]) -> Face | None:
        """Returns a face of the frame before that looks the same as `face` of this one, at about
        the same place; perhaps beside those at `places`, where it is now.
        """
        if self._following is None:
            return None

        def looks_the_same(earlier: Face) -> bool:
            is_near = distance_moved(earlier, face) <= FARTHEST_MOVE
            return is_near and are_alike(before.look(earlier), view.look(face))

        followed = self._following.follow(before.picture, face)
        if followed is not None and looks_the_same(followed):
            return followed
        others = self._following.search(before.picture, before.overview(), places)
        return next(filter(looks_the_same, others), None)
