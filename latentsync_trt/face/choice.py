"""Chooses whose mouth is painted among the faces of each frame. Pure, but for `MainFace`."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import align
from latentsync_trt.face.geometry import box_area
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.option_fields import FaceChoice
from latentsync_trt.types import Face, FaceDetector, Float64Array, Picture

LARGEST = FaceChoice("largest")
_PATIENCE_S = 1
_STILL = 0.02
_MOVING = 0.045
"""How much points of a face move at most in a picture of a face, also in noise and on a shaken
camera, and at least in one that speaks. Measured over half a second: up to 0.030, and from 0.019
on, of which 9 of 10 are above 0.030.
"""


def named_speakers(choice: FaceChoice | Mapping[int, int]) -> Mapping[int, int] | None:
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
        self._speakers = named_speakers(choice)
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
        return max(faces, key=lambda one: box_area(one.face), default=None)


class RunAligner:
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
        self._runs = RunAligner(resolution_px)

    def update(self, frame: Picture) -> TrackedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB of square pixels, or None."""
        self._frames += 1
        time_s = Fraction(self._frames, MODEL_FPS)
        chosen = self._chooser.choose(self._tracker.update(frame, time_s), time_s)
        placed = self._runs.advance({one.track_id: one.face for one, _ in chosen})
        for one, _ in chosen:
            return TrackedFace(one.face, *placed[one.track_id])
        return None
