"""Chooses whose mouth is painted among the faces of each frame, and how much of it shows. Pure, but
for `MainFace`.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import align
from latentsync_trt.face.geometry import area
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.option_fields import FaceChoice
from latentsync_trt.types import Face, FaceDetector, Float64Array, Picture

T = TypeVar("T")

FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""
FADE_HELD_S = 2 * FADE_S
"""So long frames wait until it is known whether they fade."""
Shares = dict[int, Fraction]
"""How much of each person's painted face shows, in ]0, 1]."""
PaintedPeople = tuple[Fraction, set[int], int | None]
"""Time of a frame, whose faces are painted in it, and the number of its shot, None where no face
was searched.
"""
LARGEST = FaceChoice("largest")
_PATIENCE_S = 1
_STILL = 0.02
_MOVING = 0.045
"""How much points of a face move at most in a picture of a face, also in noise and on a shaken
camera, and at least in one that speaks. Measured over half a second: up to 0.030, and from 0.019
on, of which 9 of 10 are above 0.030.
"""


def speakers_of(choice: FaceChoice | Mapping[int, int]) -> Mapping[int, int] | None:
    """The speaker of each person that `choice` names by number; None if it names none."""
    if isinstance(choice, FaceChoice):
        if choice.kind == "index":
            return {choice.number: 0}
        return None
    return choice


def check_people(wanted: Collection[int], people: Collection[int], where: str) -> None:
    """Raises `InputError` if a number in `wanted` is not one of `people`, those seen in `where`."""
    for person in sorted(set(wanted) - set(people)):
        known = ", ".join(map(str, sorted(people)))
        cure = f"it has only {known}; see who they are with `latentsync-trt faces`"
        raise InputError(f"person {person}: is not in {where}; {cure}")


class Chooser:
    """Follows a choice through a clip: the largest, leftmost or rightmost face of a shot's first
    frame with faces stays chosen in that shot; while its person is away for longer than a second,
    another is chosen in the same way. The one at a place is chosen once, and kept in all shots.
    Where one face moves, the largest is not one that never does.
    """

    def __init__(self, choice: FaceChoice | Mapping[int, int]) -> None:
        self._speakers = speakers_of(choice)
        self._choice = choice if isinstance(choice, FaceChoice) else LARGEST
        self._chosen: list[int] = []
        self._last: TrackedDetection | None = None
        self._shot = -1
        self._present_s = Fraction(0)

    def choose(self, seen: FrameFaces, time_s: Fraction) -> list[tuple[TrackedDetection, int]]:
        if self._speakers is not None:
            return [
                (face, self._speakers[face.person])
                for face in seen.faces
                if face.person in self._speakers
            ]
        if seen.shot != self._shot and self._choice.kind != "at":
            self._chosen = []
            self._shot = seen.shot
        for face in seen.faces:
            # of whom more is known now, perhaps
            if self._last is not None and face.track_id == self._last.track_id:
                self._chosen = [
                    face.person if one == self._last.person else one for one in self._chosen
                ]
        visible = {face.person: face for face in seen.faces}
        present = [person for person in self._chosen if person in visible]
        is_lasting = self._choice.kind == "at" or time_s - self._present_s <= _PATIENCE_S
        if not present and not (self._chosen and is_lasting):
            best = self._best(seen.faces)
            if best is not None:
                self._chosen.append(best.person)
                present = [best.person]
        if present:
            self._present_s = time_s
            self._last = visible[present[0]]
        return [(visible[person], 0) for person in present[:1]]

    def _best(self, faces: Iterable[TrackedDetection]) -> TrackedDetection | None:
        if self._choice.kind == "at":
            place = np.array([self._choice.x_px, self._choice.y_px], np.float32)
            faces = [
                one
                for one in faces
                if (one.face.box[:2] <= place).all() and (place <= one.face.box[2:]).all()
            ]
        if side := {"left": -1, "right": 1}.get(self._choice.kind):
            return max(
                faces, key=lambda one: side * float(one.face.box[0] + one.face.box[2]), default=None
            )
        faces = list(faces)
        if self._choice.kind == "largest" and any(one.motion > _MOVING for one in faces):
            # others are on posters and screens
            faces = [one for one in faces if one.motion > _STILL]
        return max(faces, key=lambda one: area(one.face), default=None)


class Runs:
    """Numbers the unbroken runs of faces, and aligns each from its own start."""

    def __init__(self, resolution_px: int) -> None:
        self._resolution_px = resolution_px
        self._runs: dict[object, tuple[int, complex]] = {}
        self._next = 0

    def advance(self, faces: Mapping[object, Face]) -> dict[object, tuple[int, Float64Array]]:
        """Number and matrix `(2, 3)` of each face of the next frame; a key that was not in the last
        one begins a run.

        Unlike in training the points are not rounded to whole pixels: the mouth would jitter by as
        much.
        """
        before = self._runs
        self._runs = {}
        placed = {}
        for key, face in faces.items():
            number, bias = before.get(key, (self._next, None))
            self._next = max(self._next, number + 1)
            matrix, new_bias = align(face.points, bias, self._resolution_px)
            self._runs[key], placed[key] = (number, new_bias), (number, matrix)
        return placed


@dataclass(frozen=True, slots=True, eq=False)
class TrackedFace:
    """The face in one frame. `track_id` changes where it is not that of the previous frame, or its
    shot ended. `matrix (2, 3)` float64: frame pixels → crop pixels.
    """

    face: Face
    track_id: int
    matrix: Float64Array


class MainFace:
    """Tracks all faces and aligns the largest, frame by frame, for measurements; gaps are not
    bridged.
    """

    def __init__(self, detector: FaceDetector, resolution_px: int = 256) -> None:
        self._tracker = FaceTracker(detector)
        self._chooser = Chooser(LARGEST)
        self._frames = 0
        self._runs = Runs(resolution_px)

    def update(self, frame: Picture) -> TrackedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB of square pixels, or None."""
        self._frames += 1
        time_s = Fraction(self._frames, MODEL_FPS)
        chosen = self._chooser.choose(self._tracker.update(frame, time_s), time_s)
        placed = self._runs.advance({one.track_id: one.face for one, _ in chosen})
        for one, _ in chosen:
            return TrackedFace(one.face, *placed[one.track_id])
        return None


@dataclass(slots=True, eq=False)
class _Fading:
    """Of one person. `begins_s`: last frame before those in which it is painted; None = none,
    nothing fades in. `last_s`: the last in which it is. `lost_s`: the first in which it is not any
    more.
    """

    begins_s: Fraction | None
    last_s: Fraction
    lost_s: Fraction | None = None


def faded(
    items: Generator[T, None, None], painted_in: Callable[[T], PaintedPeople]
) -> Generator[tuple[T, Shares], None, None]:
    """Every item, one for each frame, in order with the shares of its faces; holds back those of
    `FADE_HELD_S`.

    At cuts, and at both ends of the clip, nothing fades; nor around a loss that is over within
    `FADE_S`, as in a flash.
    """
    held: deque[tuple[T, Fraction, Shares]] = deque()
    people: dict[int, _Fading] = {}
    last_s: Fraction | None = None
    last_shot: int | None = None
    with closing(items):
        for item in items:
            time_s, painted, shot = painted_in(item)
            if None not in (last_shot, shot) and last_shot != shot:
                people = {}
                last_s = None
            for person, fading in list(people.items()):
                if person in painted:
                    continue
                fading.lost_s = fading.lost_s or time_s
                if shot is None or time_s - fading.last_s >= FADE_S:
                    _fade_out(held, person, people.pop(person))
            for person in painted:
                fading = people.setdefault(person, _Fading(last_s, time_s))
                fading.last_s = time_s
                fading.lost_s = None
            shares = {person: _share(people[person].begins_s, time_s) for person in painted}
            held.append((item, time_s, shares))
            while held[0][1] <= time_s - FADE_HELD_S:
                item, _, shares = held.popleft()
                yield item, shares
            last_s = time_s
            last_shot = shot
    for person, fading in people.items():
        _fade_out(held, person, fading)
    yield from ((item, shares) for item, _, shares in held)


def _fade_out(held: deque[tuple[T, Fraction, Shares]], person: int, fading: _Fading) -> None:
    """Lowers the shares of a person who was lost, in the frames that wait."""
    for _, time_s, shares in held:
        if fading.lost_s is not None and person in shares:
            shares[person] = min(shares[person], _share(time_s, fading.lost_s))


def _share(start_s: Fraction | None, end_s: Fraction) -> Fraction:
    if start_s is None:
        return Fraction(1)
    return min(Fraction(1), (end_s - start_s) / FADE_S)
