"""Follows all faces of a video from frame to frame, and tells who each is."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from latentsync_trt.face import identity
from latentsync_trt.face.geometry import (
    between,
    box_area,
    checked_faces,
    distance_moved,
    is_usable,
    overlap,
    roll_deg,
    turn,
)
from latentsync_trt.face.identity import Change, Person, Steady, View
from latentsync_trt.types import (
    Complex128Array,
    Face,
    FaceDetector,
    Float32Array,
    Picture,
    UInt8Array,
    YuvPlanes,
)

if TYPE_CHECKING:
    from latentsync_trt.face.detector import MediaPipeDetector

_CONTINUES_IOU = 0.3
"""Least overlap with the box of the previous frame."""
_JUMP_IOU = 0.5
"""A face that overlaps its place in the frame before less moves fast."""
_SAME_FACE_IOU = 0.4
"""Two tracks that overlap more show the same face."""
LOST_TRACK_S = Fraction(1, 2)
"""So long a lost face can continue its track, and after so long others are searched."""
_FARTHEST = 1.0
"""How far a face moves at most while it is lost, in its own size."""
_MOST_FACES = 12
"""Followed at once, the largest: each takes as long as the only one of most clips."""
_MOTION = 0.5
"""Part of the last movement by which the next is predicted. Heads stop: with all of it, the mesh
runs more often.
"""
_MOST_TURN = 0.5
"""A face that looks farther aside is about to be lost."""
_DECIDED_S = Fraction(1, 10)
"""So long a whole face must look the same before it is decided who it is."""


@dataclass(frozen=True, slots=True, eq=False)
class TrackedDetection:
    """A face in one frame. `track_id`: of its run in one shot; `person`: whose it is, as far as is
    known: in a later frame of the track it can be another number, which then holds for all of it.
    `motion`: how far its points have moved within the face since its track began, likewise; 1 = not
    known.
    """

    track_id: int
    person: int
    face: Face
    motion: float = 1.0


ON_ITS_SIDE = "on its side"
"""`FrameFaces.why_none` of a frame that shows a face on its side or upside down."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaces:
    """The faces of one frame. `shot`: its number; `why_none`: what is known if no face can be used.
    `turned_deg`: how far a face `ON_ITS_SIDE` is turned clockwise: 90, 180 or 270.
    """

    shot: int
    faces: tuple[TrackedDetection, ...]
    why_none: str = "no face"
    turned_deg: int = 0


@dataclass(slots=True, eq=False)
class _Track:
    """`person`: a guess, until `is_decided`. `beside`: who was seen elsewhere meanwhile."""

    track_id: int
    person: Person
    face: Face
    beside: set[Person]
    shot: deque[identity.Surroundings] = field(
        default_factory=lambda: deque(maxlen=identity.MOST_COMPARED)
    )
    steady: Steady = field(default_factory=Steady)
    is_decided: bool = False
    before: Face | None = None
    lost_s: Fraction | None = None
    first_shape: Complex128Array | None = None
    motion: float = 0.0

    def move(self, shape: Complex128Array | None) -> None:
        """Adds the points of the next frame."""
        if self.first_shape is None:
            self.first_shape = shape
        self.motion = max(self.motion, identity.shape_change(self.first_shape, shape))

    def predicted(self) -> Face:
        """Where the face should be in the next frame."""
        if self.before is None:
            return self.face
        box = self.face.box + np.float32(_MOTION) * (self.face.box - self.before.box)
        return Face(
            box, self.face.points + np.float32(_MOTION) * (self.face.points - self.before.points)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Trace:
    """A new face in the frame before, where it was seen `earlier`, None = it was not, as after a
    cut: it is that of a `track`, or was seen `beside` people.
    """

    earlier: Face | None = None
    track: _Track | None = None
    beside: set[Person] = field(default_factory=set)


class FaceTracker:
    """Follows every usable face; searches for others every half second, and where one was lost or
    the shot changed.

    A face that is found again within half a second continues its track; a cut or dissolve to
    another picture or another person ends it. People keep their number throughout. Whose a face is,
    is decided when all of it has looked the same for a moment: not while it comes in at an edge, or
    in a flash.

    Args:
        detector: one with methods `follow` and `search`, as those of `MediaPipeDetector`, also
            follows faces, which is faster and steadier than detection, and finds new ones without
            converting the whole picture.
        small: whether each search looks for small faces, too; else only those do that have no other
            face to follow.
    """

    def __init__(self, detector: FaceDetector, *, small: bool = False) -> None:
        self._detector = detector
        self._small = small
        self._own = cast("MediaPipeDetector", detector) if hasattr(detector, "search") else None
        self._people: dict[int, Person] = {}
        self._tracks: list[_Track] = []
        self._next_id = 0
        self._next_number = 0
        self._shot = -1
        self._now_s = Fraction(0)
        self._searched_s = self._searched_small_s = -LOST_TRACK_S
        self._scene: Float32Array | None = None
        self._last_view: View | None = None
        self._past = identity.Past()
        self._in_shot: set[Person] = set()
        self._why_none = "no face"
        self._turned_deg = 0

    def restart(self) -> None:
        """Begins a new shot with the next frame."""
        self._tracks = []
        self._scene = None
        self._last_view = None
        self._past = identity.Past()

    def update(
        self,
        picture: Picture,
        time_s: Fraction,
        planes: YuvPlanes | None = None,
        overview: Callable[[], UInt8Array] | None = None,
    ) -> FrameFaces:
        """Returns the faces in the next frame, uint8 `(H, W, 3)` RGB of square pixels; raises as
        `checked_faces`.

        Args:
            time_s: ascending. planes: of the same picture, perhaps with other pixels; its luma is
                compared, if given.
            overview: gives the picture as uint8 `(h, w, 3)` RGB of at least 192 px, for the search;
                None = `picture`.
        """
        view = View(picture, planes, overview)
        self._now_s = time_s
        self._tracks = [
            one
            for one in self._tracks
            if one.lost_s is None or self._now_s - one.lost_s <= LOST_TRACK_S
        ]
        live = [track for track in self._tracks if track.lost_s is None]
        places = [(track, track.face) for track in live]
        found = self._usable(view, ()) if self._own is None else None
        elsewhere = self._scene is None or identity.is_elsewhere(self._scene, view.scene)
        kept, changes = self._continued(view, live, found, elsewhere=elsewhere)
        is_cut = elsewhere and "scene" in changes
        if is_cut:  # a face that is like one before and at its place is a coincidence
            self._begin_shot()
            kept = []
        if found is None:
            lost = not kept or changes or len(self._tracks) > len(kept)
            due = lost or self._now_s - self._searched_s >= LOST_TRACK_S
            if due:
                found = self._usable(view, [track.face for track in kept], small=not kept)
            else:
                found = []
        new = [face for face in found if all(face is not track.face for track in kept)]
        traced = [(face, self._traced(view, face, places, elsewhere=elsewhere)) for face in new]
        if not kept and not is_cut and not any(trace.earlier for _, trace in traced):
            is_other = bool(live) and ("scene" in changes or self._are_others(view, new))
            if elsewhere or is_other:
                self._begin_shot()
        self._admit(view, traced, kept)
        for track in kept:
            self._learn(view, track, [other for other in kept if other is not track])
            track.move(track.shot[-1].shape)
        for track in self._tracks:
            if track not in kept and track.lost_s is None:
                track.before = None
                track.lost_s = self._now_s
        self._scene = view.scene
        self._last_view = view
        self._past.add(view.scene, self._now_s)
        order = sorted(kept, key=lambda track: track.track_id)
        faces = tuple(
            TrackedDetection(one.track_id, one.person.number, one.face, one.motion) for one in order
        )
        return FrameFaces(self._shot, faces, self._why_none, self._turned_deg)

    def near(self, picture: Picture, expected: Face, last: Face) -> Face | None:
        """The usable face near the place of `expected` that continues `last`."""
        face = None if self._own is None else self._own.follow(picture, expected)
        if face and is_usable(face) and overlap(last, [face]) >= _CONTINUES_IOU:
            return face
        return None

    def is_seen(self, picture: Picture, face: Face, person: int) -> bool:
        """Whether the picture looks like `person` at the place of `face`, so nothing covers it."""
        return self._people[person].is_likely(face, identity.look_of(picture, face))

    def _begin_shot(self) -> None:
        self._shot += 1
        self._tracks = []
        self._past = identity.Past()
        self._in_shot = set()

    def _continued(
        self, view: View, live: list[_Track], found: list[Face] | None, *, elsewhere: bool
    ) -> tuple[list[_Track], list[Change]]:
        """The tracks that go on, moved to their new places, and what ended others of which
        something is seen.

        `elsewhere`: whether the scene is another one; else points of a face that is partly outside
        say nothing.
        """
        kept: list[_Track] = []
        changes: list[Change] = []
        for track, face in self._at_their_places(view, live, found):
            around = view.around(face)
            if not elsewhere and not _is_inside(face, view.picture):
                track.shot.clear()
            change = identity.change_of(track.shot, around) if track.shot else "none"
            if change == "none" and self._has_become_another(view, track, face):
                change = "scene"
            track.shot.append(around)
            if change == "none":
                track.before = track.face
                track.face = face
                kept.append(track)
            else:
                changes.append(change)
                self._tracks.remove(track)
        for track in kept[:]:
            if any(self._is_worse(view, track, other) for other in kept if other is not track):
                kept.remove(track)
                track.face = track.before or track.face
        return kept, changes

    def _has_become_another(self, view: View, track: _Track, face: Face) -> bool:
        """Whether the face has changed into another one little by little, as the picture has, in a
        dissolve.
        """
        if not track.is_decided or not self._past.is_dissolved(view.scene, self._now_s):
            return False
        return _is_inside(face, view.picture) and not track.person.is_likely(face, view.look(face))

    def _at_their_places(
        self, view: View, live: list[_Track], found: list[Face] | None
    ) -> list[tuple[_Track, Face]]:
        """Tracks with the faces that continue them, among those `found`, or by following."""
        if found is None:
            near = [
                (track, self.near(view.picture, track.predicted(), track.face)) for track in live
            ]
            return [(track, face) for track, face in near if face is not None]
        pairs = [
            (overlap(track.face, [face]), t, f)
            for t, track in enumerate(live)
            for f, face in enumerate(found)
        ]
        matched: dict[int, int] = {}
        for shared, t, f in sorted(pairs, reverse=True):
            if shared >= _CONTINUES_IOU and t not in matched and f not in matched.values():
                matched[t] = f
        return [(live[t], found[f]) for t, f in matched.items()]

    def _is_worse(self, view: View, track: _Track, other: _Track) -> bool:
        """Whether two tracks show one face, and it looks more like the other's: someone passed in
        front.
        """
        if overlap(track.face, [other.face]) <= _SAME_FACE_IOU:
            return False
        mine, its = (one.person.distance(view.look(other.face)) for one in (track, other))
        return (mine, track.track_id) > (its, other.track_id)

    def _usable(self, view: View, known: Sequence[Face], *, small: bool = False) -> list[Face]:
        """Usable faces of a search, largest first; `small`: look for small ones, too, if that was
        not just done.
        """
        self._searched_s = self._now_s
        if self._own is None:
            faces = checked_faces(self._detector.detect(np.asarray(view.picture)), self._detector)
        else:
            is_recent = (
                self._scene is not None and self._now_s - self._searched_small_s < LOST_TRACK_S
            )
            small = (small or self._small) and not is_recent
            if small:
                self._searched_small_s = self._now_s
            faces = self._own.search(view.picture, view.overview(), known, small=small)
        fine = [
            face for face in faces if is_usable(face) and overlap(face, known) <= _SAME_FACE_IOU
        ]
        if not fine and not known:
            turned = [face for face in faces if is_usable(face, turned=True)]
            if turned:
                self._why_none = ON_ITS_SIDE
                self._turned_deg = round(roll_deg(max(turned, key=box_area)) / 90) * 90 % 360
            elif faces:
                self._why_none = "too small"
            else:
                is_turned_away = any(turn(track.face.points) > _MOST_TURN for track in self._tracks)
                self._why_none = "turned away" if is_turned_away else "no face"
        return sorted(fine, key=box_area, reverse=True)[: max(0, _MOST_FACES - len(known))]

    def _are_others(self, view: View, new: list[Face]) -> bool:
        """Whether none of the new faces, of which there is one, is that of a lost track."""
        return bool(new) and not any(self._lost(view, face, []) for face in new)

    def _traced(
        self, view: View, face: Face, places: Sequence[tuple[_Track, Face]], *, elsewhere: bool
    ) -> _Trace:
        """What the frame before tells of a face. `places`: where tracks were in it; `elsewhere`:
        perhaps of a shot.
        """
        earlier = self._earlier(view, face, [place for _, place in places]) if places else None
        if earlier is None:
            return _Trace()
        for track, place in places:
            if overlap(earlier, [place]) > _SAME_FACE_IOU:
                # A track ends where its face changes; but one that jumps was not followed there.
                is_same = track in self._tracks or overlap(face, [place]) < _JUMP_IOU
                moves_on = (
                    track.before is not None
                    and overlap(face, [between(track.before, place, 2)]) > _JUMP_IOU
                )
                if is_same and (moves_on or not elsewhere):
                    return _Trace(earlier, track)
                return _Trace()
        return _Trace(earlier, beside={track.person for track, _ in places})

    def _earlier(self, view: View, face: Face, places: Sequence[Face]) -> Face | None:
        """A face that looks the same, in the frame before, at about the same place; perhaps beside
        those at `places`, where it is now.
        """
        last = self._last_view
        if last is None or self._own is None:
            return None

        def looks_the_same(earlier: Face) -> bool:
            is_near = distance_moved(earlier, face) <= _FARTHEST
            return is_near and identity.are_alike(last.look(earlier), view.look(face))

        followed = self._own.follow(last.picture, face)
        if followed is not None and looks_the_same(followed):
            return followed
        return next(
            filter(looks_the_same, self._own.search(last.picture, last.overview(), places)), None
        )

    def _admit(self, view: View, traced: list[tuple[Face, _Trace]], kept: list[_Track]) -> None:
        """Continues lost tracks or begins new ones."""
        for face, trace in traced:
            visible = {other.person for other in kept}
            track = trace.track
            if track is None or track.person in visible:
                track = self._lost(view, face, kept) or self._begun(
                    view, face, trace.beside | visible, kept
                )
            if track is None:
                continue
            if track not in self._tracks:
                self._tracks.append(track)
            track.face = face
            track.before = trace.earlier
            track.lost_s = None
            track.shot.clear()
            track.shot.append(view.around(face))
            kept.append(track)

    def _lost(self, view: View, face: Face, kept: list[_Track]) -> _Track | None:
        look = view.look(face)
        near = [
            track
            for track in self._tracks
            if track not in kept and distance_moved(track.face, face) <= _FARTHEST
            if track.person.is_likely(face, look)
        ]
        return min(near, key=lambda track: track.person.distance(look), default=None)

    def _begun(
        self, view: View, face: Face, beside: set[Person], kept: list[_Track]
    ) -> _Track | None:
        """A new track of the likeliest person who is not seen elsewhere, or of somebody new: a
        guess. None for an unknown face behind another, which may be half of someone of this shot
        who is missing.
        """
        person = self._likeliest(view, face, beside)
        if person is None:
            is_missing = self._in_shot - {track.person for track in kept}
            if is_missing and _is_behind(face, [track.face for track in kept]):
                self._searched_s = self._now_s - LOST_TRACK_S  # looks again in the next frame
                return None
            person = self._somebody(face)
        track = _Track(self._next_id, person, face, beside)
        self._next_id += 1
        self._tracks = [*(other for other in self._tracks if other.person != person), track]
        return track

    def _likeliest(self, view: View, face: Face, excluded: set[Person]) -> Person | None:
        look = view.look(face)
        likely = [
            one
            for one in self._people.values()
            if one not in excluded and one.is_likely(face, look)
        ]
        return min(likely, key=lambda person: person.distance(look), default=None)

    def _somebody(self, face: Face) -> Person:
        person = Person(self._next_number, face)
        self._next_number += 1
        self._people[person.number] = person
        return person

    def _learn(self, view: View, track: _Track, others: list[_Track]) -> None:
        """Decides whose face it is, and remembers how it looks, if all of it is seen and looks as
        it did before.
        """
        track.beside.update(other.person for other in others)
        if track.is_decided:
            self._in_shot.add(track.person)
        if track.is_decided and self._searched_s != self._now_s:
            return
        face = track.face
        is_whole = _is_inside(face, view.picture) and not _is_behind(
            face, [one.face for one in others]
        )
        look = view.look(face) if is_whole else None
        lasts_s = track.steady.lasts_s(look, self._now_s)
        is_certain = look is not None and lasts_s >= (
            LOST_TRACK_S if track.is_decided else _DECIDED_S
        )
        if is_certain and not track.is_decided:
            self._decide(view, track)
        if is_certain or self._searched_s == self._now_s:
            is_best = is_whole or not track.person.is_certain
            track.person.learn(face, view.look(face) if is_best else None, is_certain=is_certain)

    def _decide(self, view: View, track: _Track) -> None:
        """Who it is, now that it can be seen: the likeliest of those who were not seen elsewhere
        meanwhile.
        """
        guess = track.person
        person = self._likeliest(
            view, track.face, track.beside if guess.is_certain else {guess, *track.beside}
        )
        if person is None:
            person = self._somebody(track.face) if guess.is_certain else guess
        elif not guess.is_certain:
            del self._people[guess.number]
        track.person = person
        track.is_decided = True
        self._tracks = [
            other for other in self._tracks if other is track or other.person is not person
        ]


def _reach(face: Face) -> tuple[Float32Array, Float32Array]:
    """Upper left and lower right corner of face and hair."""
    middle = (face.box[:2] + face.box[2:]) / 2
    reach = float((face.box[2:] - face.box[:2]).max()) * np.array(identity.LOOK_REACH, np.float32)
    return middle - reach, middle + reach


def _is_inside(face: Face, picture: Picture) -> bool:
    """Whether face and hair are inside the picture."""
    low, high = _reach(face)
    return bool((low >= 0).all() and (high <= picture.shape[1::-1]).all())


def _is_behind(face: Face, others: Sequence[Face]) -> bool:
    """Whether face or hair reach into the box of another face."""
    low, high = _reach(face)
    return any((low < one.box[2:]).all() and (high > one.box[:2]).all() for one in others)
