"""Follows all faces of a video from frame to frame, tells who each is, and bridges short gaps."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from latentsync_trt.face import identity
from latentsync_trt.face.geometry import area, checked, overlap, turn, usable
from latentsync_trt.face.identity import Change, Person, View
from latentsync_trt.types import Face, FaceDetector, Float32Array, Frame, Picture, UInt8Array, YuvPlanes

if TYPE_CHECKING:
    from latentsync_trt.face.detector import MediaPipeDetector

_CONTINUES_IOU = 0.3
"""Least overlap with the box of the previous frame."""
_SAME_FACE_IOU = 0.4
"""Two tracks that overlap more show the same face."""
HALF_S = Fraction(1, 2)
"""So long a lost face can continue its track, and after so long others are searched."""
_FARTHEST = 1.0
"""How far a face moves at most while it is lost, in its own size."""
_MOST_FACES = 12
"""Followed at once, the largest: each takes as long as the only one of most clips."""
_MOTION = 0.5
"""Part of the last movement by which the next is predicted. Heads stop: with all of it, the mesh runs more often."""
_MOST_TURN = 0.5
"""A face that looks farther aside is about to be lost."""
_COVERED_IOU = 0.1
"""A bridged face that overlaps another face more is behind it."""


@dataclass(frozen=True, slots=True, eq=False)
class TrackedDetection:
    """A face in one frame. `track_id`: of its run in one shot; `person`: whose it is."""

    track_id: int
    person: int
    face: Face


ON_ITS_SIDE = "on its side"
"""`FrameFaces.why_none` of a frame that shows a face on its side or upside down."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaces:
    """The faces of one frame. `shot`: its number; `why_none`: what is known if no face can be used."""

    shot: int
    faces: tuple[TrackedDetection, ...]
    why_none: str = "no face"


@dataclass(slots=True, eq=False)
class _Track:
    track_id: int
    person: Person
    face: Face
    shot: deque[identity.Surroundings] = field(default_factory=lambda: deque(maxlen=identity.MOST_COMPARED))
    before: Face | None = None
    lost_s: Fraction | None = None

    def predicted(self) -> Face:
        """Where the face should be in the next frame."""
        if self.before is None:
            return self.face
        box = self.face.box + np.float32(_MOTION) * (self.face.box - self.before.box)
        return Face(box, self.face.points + np.float32(_MOTION) * (self.face.points - self.before.points))


class FaceTracker:
    """Follows every usable face; searches for others every half second, and where one was lost or the shot changed.

    A face that is found again within half a second continues its track; a cut to another picture or
    another person ends it. People keep their number throughout.

    Args:
        detector: one with methods `follow` and `search`, as those of `MediaPipeDetector`, also follows faces, which is
            faster and steadier than detection, and finds new ones without converting the whole picture.
        small: whether each search looks for small faces, too; else only those do that have no other face to follow.
    """

    def __init__(self, detector: FaceDetector, *, small: bool = False) -> None:
        self._detector, self._small = detector, small
        self._own = cast("MediaPipeDetector", detector) if hasattr(detector, "search") else None
        self._people: list[Person] = []
        self._tracks: list[_Track] = []
        self._next_id, self._shot, self._now_s = 0, -1, Fraction(0)
        self._searched_s = self._searched_small_s = -HALF_S
        self._scene: Float32Array | None = None
        self._in_shot: set[Person] = set()
        self._why_none = "no face"

    def restart(self) -> None:
        """Begins a new shot with the next frame."""
        self._tracks, self._scene = [], None

    def update(
        self,
        picture: Picture,
        time_s: Fraction,
        planes: YuvPlanes | None = None,
        overview: Callable[[], UInt8Array] | None = None,
    ) -> FrameFaces:
        """Returns the faces in the next frame, uint8 `(H, W, 3)` RGB of square pixels; raises as `checked`.

        Args:
            time_s: ascending. planes: of the same picture, perhaps with other pixels; its luma is compared, if given.
            overview: gives the picture as uint8 `(h, w, 3)` RGB of at least 192 px, for the search; None = `picture`.
        """
        view, self._now_s = View(picture, planes, overview), time_s
        self._tracks = [one for one in self._tracks if one.lost_s is None or self._now_s - one.lost_s <= HALF_S]
        live = [track for track in self._tracks if track.lost_s is None]
        found = self._usable(view, ()) if self._own is None else None
        kept, changes = self._continued(view, live, found)
        elsewhere = self._scene is None or identity.is_elsewhere(self._scene, view.scene)
        is_cut = sum((elsewhere, "scene" in changes, not kept)) >= 2
        if is_cut:  # a face that is like one before and at its place is a coincidence
            self._begin_shot()
            kept = []
        if found is None:
            lost = not kept or changes or len(self._tracks) > len(kept)
            due = lost or self._now_s - self._searched_s >= HALF_S
            found = self._usable(view, [track.face for track in kept], small=not kept) if due else []
        new = [face for face in found if all(face is not track.face for track in kept)]
        if new and live and not kept and not is_cut and not any(self._lost(view, face, kept) for face in new):
            self._begin_shot()  # all faces are others
        self._admit(view, new, kept)
        for track in self._tracks:
            if track not in kept and track.lost_s is None:
                track.before, track.lost_s = None, self._now_s
        self._scene = view.scene
        order = sorted(kept, key=lambda track: track.track_id)
        faces = tuple(TrackedDetection(track.track_id, track.person.number, track.face) for track in order)
        return FrameFaces(self._shot, faces, self._why_none)

    def near(self, picture: Picture, expected: Face, last: Face) -> Face | None:
        """The usable face near the place of `expected` that continues `last`."""
        face = None if self._own is None else self._own.follow(picture, expected)
        return face if face and usable(face) and overlap(last, [face]) >= _CONTINUES_IOU else None

    def is_seen(self, picture: Picture, face: Face, person: int) -> bool:
        """Whether the picture looks like `person` at the place of `face`, so nothing covers it."""
        return self._people[person].is_likely(face, identity.look_of(picture, face))

    def _begin_shot(self) -> None:
        self._shot += 1
        self._tracks, self._in_shot = [], set()

    def _continued(self, view: View, live: list[_Track], found: list[Face] | None) -> tuple[list[_Track], list[Change]]:
        """The tracks that go on, moved to their new places, and what ended others of which something is seen."""
        kept: list[_Track] = []
        changes: list[Change] = []
        for track, face in self._at_their_places(view, live, found):
            around = view.around(face)
            change = identity.change_of(track.shot, around)
            track.shot.append(around)
            if change == "none":
                track.before, track.face = track.face, face
                kept.append(track)
            else:
                changes.append(change)
                self._tracks.remove(track)
        for track in kept[:]:
            if any(self._is_worse(view, track, other) for other in kept if other is not track):
                kept.remove(track)
                track.face = track.before or track.face
        return kept, changes

    def _at_their_places(self, view: View, live: list[_Track], found: list[Face] | None) -> list[tuple[_Track, Face]]:
        """Tracks with the faces that continue them, among those `found`, or by following."""
        if found is None:
            near = [(track, self.near(view.picture, track.predicted(), track.face)) for track in live]
            return [(track, face) for track, face in near if face is not None]
        pairs = [(overlap(track.face, [face]), t, f) for t, track in enumerate(live) for f, face in enumerate(found)]
        matched: dict[int, int] = {}
        for shared, t, f in sorted(pairs, reverse=True):
            if shared >= _CONTINUES_IOU and t not in matched and f not in matched.values():
                matched[t] = f
        return [(live[t], found[f]) for t, f in matched.items()]

    def _is_worse(self, view: View, track: _Track, other: _Track) -> bool:
        """Whether two tracks show one face, and it looks more like the other's: someone passed in front."""
        if overlap(track.face, [other.face]) <= _SAME_FACE_IOU:
            return False
        mine, its = (one.person.distance(view.look(other.face)) for one in (track, other))
        return (mine, track.track_id) > (its, other.track_id)

    def _usable(self, view: View, known: Sequence[Face], *, small: bool = False) -> list[Face]:
        """Usable faces of a search, largest first; `small`: look for small ones, too, if that was not just done."""
        self._searched_s = self._now_s
        if self._own is None:
            faces = checked(self._detector.detect(np.asarray(view.picture)), self._detector)
        else:
            is_recent = self._scene is not None and self._now_s - self._searched_small_s < HALF_S
            small = (small or self._small) and not is_recent
            if small:
                self._searched_small_s = self._now_s
            faces = self._own.search(view.picture, view.overview(), known, small=small)
        fine = [face for face in faces if usable(face) and overlap(face, known) <= _SAME_FACE_IOU]
        if not fine and not known:
            if any(usable(face, turned=True) for face in faces):
                self._why_none = ON_ITS_SIDE
            elif faces:
                self._why_none = "too small"
            else:
                is_turned_away = any(turn(track.face.points) > _MOST_TURN for track in self._tracks)
                self._why_none = "turned away" if is_turned_away else "no face"
        return sorted(fine, key=area, reverse=True)[: max(0, _MOST_FACES - len(known))]

    def _admit(self, view: View, new: list[Face], kept: list[_Track]) -> None:
        """Continues lost tracks or begins new ones; where a search was made, learns how the others look."""
        if self._searched_s == self._now_s:
            for known in kept:
                known.person.learn(known.face, view.look(known.face))
        for face in new:
            track = self._lost(view, face, kept) or self._begun(view, face, kept)
            if track is None:
                continue
            track.face, track.lost_s = face, None
            track.shot.clear()
            track.shot.append(view.around(face))
            self._in_shot.add(track.person)
            track.person.learn(face, view.look(face))
            kept.append(track)

    def _lost(self, view: View, face: Face, kept: list[_Track]) -> _Track | None:
        look = view.look(face)
        near = [
            track
            for track in self._tracks
            if track not in kept and _moved(track.face, face) <= _FARTHEST
            if track.person.is_likely(face, look)
        ]
        return min(near, key=lambda track: track.person.distance(look), default=None)

    def _begun(self, view: View, face: Face, kept: list[_Track]) -> _Track | None:
        """A new track; None for an unknown face that may be half of someone of this shot who is missing."""
        visible, look = {other.person for other in kept}, view.look(face)
        likely = (person for person in self._people if person not in visible and person.is_likely(face, look))
        person = min(likely, key=lambda person: person.distance(look), default=None)
        if person is None:
            if self._in_shot - visible and _is_half_hidden(face, [one.face for one in kept], view.picture.shape[1]):
                self._searched_s = self._now_s - HALF_S  # looks again in the next frame
                return None
            person = Person(len(self._people), face)
            self._people.append(person)
        track = _Track(self._next_id, person, face)
        self._next_id += 1
        self._tracks = [*(other for other in self._tracks if other.person != person), track]
        return track


def _is_half_hidden(face: Face, others: Iterable[Face], width_px: int) -> bool:
    """Whether hair and ears reach beyond a side of the picture or the box of another face."""
    margin = (face.box[2:] - face.box[:2]) / 4
    low, high = face.box[:2] - margin, face.box[2:] + margin
    beyond = low[0] < 0 or high[0] > width_px
    return bool(beyond) or any((low < one.box[2:]).all() and (high > one.box[:2]).all() for one in others)


def _moved(last: Face, face: Face) -> float:
    shift = (face.box[:2] + face.box[2:] - last.box[:2] - last.box[2:]) / 2
    return float(np.hypot(*shift) / max(float((last.box[2:] - last.box[:2]).max()), 1.0))


@dataclass(slots=True, eq=False)
class _Held:
    frame: Frame
    picture: Picture
    seen: FrameFaces
    faces: dict[int, TrackedDetection]

    def add(self, found: TrackedDetection) -> bool:
        """Adds a face unless it is behind another."""
        if overlap(found.face, [other.face for other in self.faces.values()]) > _COVERED_IOU:
            return False
        self.faces[found.track_id] = found
        return True


class LookAhead:
    """Gives each frame back with its faces, after at most half a second of others.

    Where a track has a gap, its face is interpolated, unless the picture there does not look like it. A face that was
    found by a search, which runs every half second only, is followed back to where it appears.
    """

    def __init__(self, tracker: FaceTracker) -> None:
        self._tracker = tracker
        self._held: deque[_Held] = deque()

    def push(self, frame: Frame, picture: Picture, seen: FrameFaces) -> list[tuple[Frame, FrameFaces]]:
        """Adds the next frame, whose `picture` has square pixels; returns those that need not wait any longer."""
        now = _Held(frame, picture, seen, {})
        for sighting in seen.faces:
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
        return self.finish(before_s=frame.time_s - HALF_S)

    def finish(self, before_s: Fraction | None = None) -> list[tuple[Frame, FrameFaces]]:
        """All frames that still wait, or those before a time."""
        left = []
        while self._held and (before_s is None or self._held[0].frame.time_s < before_s):
            held = self._held.popleft()
            left.append((held.frame, replace(held.seen, faces=tuple(held.faces.values()))))
        return left

    def _bridge(self, last: _Held, gap: Sequence[_Held], now: _Held, after: TrackedDetection) -> None:
        before, start_s, end_s = last.faces[after.track_id], last.frame.time_s, now.frame.time_s
        for held in gap:
            face = _between(before.face, after.face, float((held.frame.time_s - start_s) / (end_s - start_s)))
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


def _between(one: Face, other: Face, part: float) -> Face:
    pairs = [(one.box, other.box), (one.points, other.points)]
    if one.landmarks is not None and other.landmarks is not None:
        pairs.append((one.landmarks, other.landmarks))
    box, points, *landmarks = (np.asarray((1 - part) * a + part * b, np.float32) for a, b in pairs)
    return Face(box, points, other.score, *landmarks)
