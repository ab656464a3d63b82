"""Follows all faces of a video from frame to frame, and tells who each is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter

from latentsync_trt.face.cuts import Change, View, change_of, is_elsewhere
from latentsync_trt.face.geometry import SAME_FACE_IOU, between, overlap
from latentsync_trt.face.identity import People, Person, look_of
from latentsync_trt.face.open_track import OpenTrack, Shot, is_behind, is_whole, is_worse
from latentsync_trt.face.search import CONTINUES_IOU, FaceSearch
from latentsync_trt.types import Face, FaceDetector, Picture, UInt8Array, YuvPlanes

_JUMP_IOU = 0.5
"""A face that overlaps its place in the frame before less moves fast."""
_DECIDED_S = Fraction(1, 10)
"""How long a whole face must look the same before it is decided who it is."""
_LEARNED_S = Fraction(1, 2)
"""How long it must look the same before more is learned about somebody who is decided."""


@dataclass(frozen=True, slots=True, eq=False)
class TrackedDetection:
    """A face in one frame."""

    track_id: int
    """The number of its unbroken run in one shot."""
    person: int
    """Whose face it is, as far as is known: in a later frame of the track it can be another number,
    which then holds for all of it.
    """
    face: Face
    motion: float = 1.0
    """How far its points have moved within the face since its track began; 1 = not known."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameFaces:
    """The faces of one frame."""

    shot: int
    """The number of the shot."""
    faces: tuple[TrackedDetection, ...]
    why_none: str = "no face"
    """The reason where no face can be used."""
    turned_deg: int = 0
    """How far a face `ON_ITS_SIDE` is turned clockwise: 90, 180 or 270."""


@dataclass(frozen=True, slots=True, eq=False)
class _TrackPlace:
    """Where the face of a track was in the frame before."""

    track: OpenTrack
    face: Face


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """The frame that is added, compared with the one before."""

    view: View
    before: View | None
    """The frame before; None after a restart."""
    time_s: Fraction
    is_elsewhere: bool
    """Whether its scene is another one, as far as the picture tells."""
    places: list[_TrackPlace]


@dataclass(frozen=True, slots=True, eq=False)
class _Newcomer:
    """A face that continues no track at its place."""

    face: Face
    earlier: Face | None = None
    """Where it was in the frame before; None where it was not seen, as after a cut."""
    track: OpenTrack | None = None
    """The track that it had there."""
    beside: set[Person] = field(default_factory=set)
    """Who was seen there, too, where it had no track."""


class FaceTracker:
    """Follows every usable face; searches for others every half second, and where one was lost or
    the shot changed.

    A face that is found again within a second continues its track; a cut or dissolve to
    another picture or another person ends it. People keep their number throughout. Whose a face is,
    is decided when all of it has looked the same for a moment: not while it comes in at an edge, or
    in a flash.

    Args:
        detector: a `FollowingDetector` is faster.
        small: whether each search looks for small faces, too; else only those do that have no other
            face to follow.
    """

    def __init__(self, detector: FaceDetector, *, small: bool = False) -> None:
        self._search = FaceSearch(detector, small=small)
        self._people = People()
        self._shot = Shot(-1)
        self._last_view: View | None = None
        self._next_id = 0

    def restart(self) -> None:
        """Begins a new shot with the next frame."""
        self._shot = Shot(self._shot.number)
        self._search.restart()
        self._last_view = None

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
            time_s: ascending.
            planes: of the same picture, perhaps with other pixels; their luma is compared, if there
                are any.
            overview: gives the picture as uint8 `(h, w, 3)` RGB of at least 192 px, for the search;
                None = `picture`.
        """
        step = self._begin_step(View(picture, planes, overview), time_s)
        view = step.view
        detected = None
        if not self._search.follows:
            detected = self._search.faces(view, time_s, (), self._shot.faces())
        kept, changes = self._continued(step, detected)
        is_cut = step.is_elsewhere and "scene" in changes
        if is_cut:  # a face that is like one before and at its place is a coincidence
            self._shot = Shot(self._shot.number + 1)
            kept = []
        newcomers = self._newcomers(step, kept, detected, has_changed=bool(changes))
        if not is_cut and not kept and _is_other_shot(self._shot, step, newcomers, changes):
            self._shot = Shot(self._shot.number + 1)
        for newcomer in newcomers:
            self._admit(view, newcomer, kept)
        for track in kept:
            self._learn(step, track, [other for other in kept if other is not track])
            track.add_shape(track.recent[-1].shape)
        self._shot.mark_lost(kept, time_s)
        self._shot.scenes.add(view.scene, time_s)
        self._last_view = view
        kept.sort(key=attrgetter("track_id"))
        faces = [
            TrackedDetection(track.track_id, track.person.number, track.face, track.motion)
            for track in kept
        ]
        search = self._search
        return FrameFaces(self._shot.number, tuple(faces), search.why_none, search.turned_deg)

    def near(self, picture: Picture, face: Face) -> Face | None:
        """Returns the usable face near the place of `face` in another picture that continues it."""
        return self._search.near(picture, face, face)

    def is_seen(self, picture: Picture, face: Face, person: int) -> bool:
        """Whether the picture looks like `person` at the place of `face`, so nothing covers it."""
        return self._people[person].is_likely(face, look_of(picture, face))

    def _begin_step(self, view: View, time_s: Fraction) -> _Step:
        self._shot.drop_lost(time_s)
        places = [
            _TrackPlace(track, track.face) for track in self._shot.tracks if track.lost_s is None
        ]
        before = self._last_view
        elsewhere = before is None or is_elsewhere(before.scene, view.scene)
        return _Step(view, before, time_s, elsewhere, places)

    def _continued(
        self, step: _Step, detected: Sequence[Face] | None
    ) -> tuple[list[OpenTrack], set[Change]]:
        """Returns the tracks that go on, moved to their new places, and what ended others of which
        something is seen.
        """
        view = step.view
        kept: list[OpenTrack] = []
        changes = set[Change]()
        if detected is None:
            matches = _followed(self._search, step)
        else:
            matches = _matched(step.places, detected)
        for track, face in matches:
            around = view.around(face)
            whole = is_whole(face, view.picture)
            if not step.is_elsewhere and not whole:
                # Points of a face that is partly outside say nothing.
                track.recent.clear()
            change = change_of(track.recent, around) if track.recent else "none"
            if (
                change == "none"
                and whole
                and self._shot.has_dissolved(view, step.time_s, track, face)
            ):
                change = "scene"
            track.recent.append(around)
            if change == "none":
                track.before = track.face
                track.face = face
                kept.append(track)
            else:
                changes.add(change)
                self._shot.tracks.remove(track)
        for track in kept[:]:
            if any(is_worse(view, track, other) for other in kept):
                kept.remove(track)
                track.face = track.before or track.face
        return kept, changes

    def _newcomers(
        self,
        step: _Step,
        kept: Sequence[OpenTrack],
        detected: Sequence[Face] | None,
        *,
        has_changed: bool,
    ) -> list[_Newcomer]:
        """Returns the faces of a search that continue no track, as those `kept` do; None detected =
        searches where that is due, or a track was lost.
        """
        followed = [track.face for track in kept]
        if detected is None:
            is_lost = not kept or has_changed or len(self._shot.tracks) > len(kept)
            if not is_lost and not self._search.is_due(step.time_s):
                return []
            detected = self._search.faces(step.view, step.time_s, followed, self._shot.faces())
        others = [face for face in detected if all(face is not other for other in followed)]
        return [self._traced(step, face) for face in others]

    def _traced(self, step: _Step, face: Face) -> _Newcomer:
        """Looks for a new face in the frame before."""
        if step.before is None or not step.places:
            return _Newcomer(face)
        places = [place.face for place in step.places]
        earlier = self._search.earlier(step.before, step.view, face, places)
        if earlier is None:
            return _Newcomer(face)
        for place in step.places:
            if overlap(earlier, [place.face]) <= SAME_FACE_IOU:
                continue
            track = place.track
            # A track ends where its face changes; but one that jumps was not followed there.
            is_same = track in self._shot.tracks or overlap(face, [place.face]) < _JUMP_IOU
            if is_same and (not step.is_elsewhere or _moves_on(place, face)):
                return _Newcomer(face, earlier, track)
            return _Newcomer(face)
        return _Newcomer(face, earlier, beside={place.track.person for place in step.places})

    def _admit(self, view: View, newcomer: _Newcomer, kept: list[OpenTrack]) -> None:
        """Adds the track that a new face continues, or a new one, to those `kept`."""
        face = newcomer.face
        visible = {other.person for other in kept}
        track = newcomer.track
        if track is None or track.person in visible:
            track = self._shot.lost_track(view, face, kept)
        if track is None:
            track = self._begun(view, face, newcomer.beside | visible, kept)
        if track is None:
            return
        if track not in self._shot.tracks:
            self._shot.tracks.append(track)
        track.resume(face, newcomer.earlier, view.around(face))
        kept.append(track)

    def _begun(
        self, view: View, face: Face, beside: set[Person], kept: Sequence[OpenTrack]
    ) -> OpenTrack | None:
        """Returns a new track of the likeliest person who is not seen elsewhere, or of somebody
        new: a guess. None for an unknown face behind another, which may be half of someone of this
        shot who is missing.
        """
        person = self._people.likeliest(face, view.look(face), beside)
        if person is None:
            is_missing = self._shot.people - {track.person for track in kept}
            if is_missing and is_behind(face, kept):
                self._search.repeat()
                return None
            person = self._people.add(face)
        track = OpenTrack(self._next_id, person, face, beside)
        self._next_id += 1
        self._shot.give(track, person)
        return track

    def _learn(self, step: _Step, track: OpenTrack, others: Sequence[OpenTrack]) -> None:
        """Decides whose face it is, and remembers how it looks, if all of it is seen and looks as
        it did before.
        """
        track.beside.update(other.person for other in others)
        if track.is_decided:
            self._shot.people.add(track.person)
        was_searched = self._search.has_searched(step.time_s)
        if track.is_decided and not was_searched:
            return
        view = step.view
        face = track.face
        fully_seen = is_whole(face, view.picture) and not is_behind(face, others)
        look = view.look(face) if fully_seen else None
        lasts_s = track.steady.add(look, step.time_s)
        least_s = _LEARNED_S if track.is_decided else _DECIDED_S
        is_certain = look is not None and lasts_s >= least_s
        if is_certain and not track.is_decided:
            person = self._people.decide(track.person, face, look, track.beside)
            self._shot.give(track, person)
            track.is_decided = True
        if is_certain or was_searched:
            if not track.person.is_certain:
                look = view.look(face)
            track.person.learn(face, look, is_certain=is_certain)


def _followed(search: FaceSearch, step: _Step) -> list[tuple[OpenTrack, Face]]:
    """Returns tracks with the faces that are near their places."""
    matches = []
    for place in step.places:
        track = place.track
        face = search.near(step.view.picture, track.predicted(), track.face)
        if face is not None:
            matches.append((track, face))
    return matches


def _matched(
    places: Sequence[_TrackPlace], detected: Sequence[Face]
) -> list[tuple[OpenTrack, Face]]:
    """Returns tracks with the detections that overlap their places most."""
    pairs = []
    for place_index, place in enumerate(places):
        for face_index, face in enumerate(detected):
            shared = overlap(place.face, [face])
            if shared >= CONTINUES_IOU:
                pairs.append((shared, place_index, face_index))
    matched: dict[int, int] = {}
    for _, place_index, face_index in sorted(pairs, reverse=True):
        if place_index not in matched and face_index not in matched.values():
            matched[place_index] = face_index
    return [(places[place].track, detected[face]) for place, face in matched.items()]


def _is_other_shot(
    shot: Shot, step: _Step, newcomers: Sequence[_Newcomer], changes: set[Change]
) -> bool:
    """Whether a frame in which no track of a shot goes on shows another scene, or other faces than
    before, which were not seen in the frame before.
    """
    if any(newcomer.earlier for newcomer in newcomers):
        return False
    if step.is_elsewhere:
        return True
    if not step.places or not (newcomers or "scene" in changes):
        return False
    lost = [shot.lost_track(step.view, newcomer.face, ()) for newcomer in newcomers]
    return "scene" in changes or not any(lost)


def _moves_on(place: _TrackPlace, face: Face) -> bool:
    """Whether a face is where its track went."""
    before = place.track.before
    if before is None:
        return False
    expected = between(before, place.face, 2)
    return overlap(face, [expected]) > _JUMP_IOU
