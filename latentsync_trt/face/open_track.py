"""A track that may go on, and the shot that it belongs to."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from latentsync_trt.face.cuts import MOST_COMPARED, SceneHistory, Surroundings, View, shape_change
from latentsync_trt.face.geometry import (
    SAME_FACE_IOU,
    box_middle,
    distance_moved,
    longer_side,
    overlap,
)
from latentsync_trt.face.identity import LOOK_REACH, Person, SteadyLook
from latentsync_trt.face.search import FARTHEST_MOVE
from latentsync_trt.types import Complex128Array, Face, Float32Array, Picture

LOST_TRACK_S = Fraction(1)
"""How long a lost face can continue its track, as behind a hand."""
_MOTION = 0.5
"""Part of the last movement by which the next is predicted. Heads stop: with all of it, the mesh
runs more often.
"""


@dataclass(slots=True, eq=False)
class OpenTrack:
    """A track that may go on."""

    track_id: int
    person: Person
    """Whose track it is: a guess, until `is_decided`."""
    face: Face
    """The last detection."""
    beside: set[Person]
    """Who was seen elsewhere meanwhile."""
    recent: deque[Surroundings] = field(default_factory=lambda: deque(maxlen=MOST_COMPARED))
    """The last frames, with which the next is compared."""
    steady: SteadyLook = field(default_factory=SteadyLook)
    is_decided: bool = False
    before: Face | None = None
    """The detection before the last one, if it was in the frame before."""
    lost_s: Fraction | None = None
    """The first frame without the face; None where the track is in the last frame."""
    first_shape: Complex128Array | None = None
    motion: float = 0.0

    def add_shape(self, shape: Complex128Array | None) -> None:
        """Compares the points of the next frame with the first ones."""
        if self.first_shape is None:
            self.first_shape = shape
        self.motion = max(self.motion, shape_change(self.first_shape, shape))

    def predicted(self) -> Face:
        """Returns where the face should be in the next frame."""
        if self.before is None:
            return self.face
        part = np.float32(_MOTION)
        box = self.face.box + part * (self.face.box - self.before.box)
        points = self.face.points + part * (self.face.points - self.before.points)
        return Face(box, points)

    def resume(self, face: Face, before: Face | None, around: Surroundings) -> None:
        """Goes on at another place."""
        self.face = face
        self.before = before
        self.lost_s = None
        self.recent.clear()
        self.recent.append(around)


@dataclass(slots=True, eq=False)
class Shot:
    """What is known of the current shot."""

    number: int
    tracks: list[OpenTrack] = field(default_factory=list)
    """Those in the last frame, and those lost for at most `LOST_TRACK_S`."""
    scenes: SceneHistory = field(default_factory=SceneHistory)
    people: set[Person] = field(default_factory=set)
    """Those who are decided."""

    def faces(self) -> list[Face]:
        """Returns the last detections of all tracks."""
        return [track.face for track in self.tracks]

    def drop_lost(self, time_s: Fraction) -> None:
        """Ends tracks that were lost too long ago."""
        for track in self.tracks[:]:
            if track.lost_s is not None and time_s - track.lost_s > LOST_TRACK_S:
                self.tracks.remove(track)

    def mark_lost(self, kept: Sequence[OpenTrack], time_s: Fraction) -> None:
        """Marks those as lost that are not among the tracks `kept` in a frame."""
        for track in self.tracks:
            if track not in kept and track.lost_s is None:
                track.before = None
                track.lost_s = time_s

    def give(self, track: OpenTrack, person: Person) -> None:
        """Ends other tracks of a person whose track this one is now."""
        track.person = person
        self.tracks = [
            other for other in self.tracks if other is track or other.person is not person
        ]

    def has_dissolved(self, view: View, time_s: Fraction, track: OpenTrack, face: Face) -> bool:
        """Whether a face has changed into another one little by little, as the picture has, in a
        dissolve.
        """
        if not track.is_decided or not self.scenes.is_dissolved(view.scene, time_s):
            return False
        return not track.person.is_likely(face, view.look(face))

    def lost_track(self, view: View, face: Face, kept: Sequence[OpenTrack]) -> OpenTrack | None:
        """Returns the lost track that a face most likely continues."""
        look = view.look(face)
        near = []
        for track in self.tracks:
            is_near = track not in kept and distance_moved(track.face, face) <= FARTHEST_MOVE
            if is_near and track.person.is_likely(face, look):
                near.append(track)
        return min(near, key=lambda track: track.person.distance(look), default=None)


def is_worse(view: View, track: OpenTrack, other: OpenTrack) -> bool:
    """Whether two tracks show one face, and it looks more like the other's: someone passed in
    front.
    """
    if overlap(track.face, [other.face]) <= SAME_FACE_IOU:
        return False
    look = view.look(other.face)
    distance = track.person.distance(look)
    other_distance = other.person.distance(look)
    return (distance, track.track_id) > (other_distance, other.track_id)


def _reach(face: Face) -> tuple[Float32Array, Float32Array]:
    """Returns the upper left and lower right corner of face and hair."""
    middle = box_middle(face)
    reach = longer_side(face) * np.array(LOOK_REACH, np.float32)
    return middle - reach, middle + reach


def is_whole(face: Face, picture: Picture) -> bool:
    """Whether face and hair are inside the picture."""
    low, high = _reach(face)
    return bool((low >= 0).all() and (high <= picture.shape[1::-1]).all())


def is_behind(face: Face, others: Sequence[OpenTrack]) -> bool:
    """Whether face or hair reach into the box of another face."""
    low, high = _reach(face)
    for other in others:
        box = other.face.box
        if (low < box[2:]).all() and (high > box[:2]).all():
            return True
    return False
