"""Chooses whose mouth is painted among the faces of each frame. Pure, but for `MainFace`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.face.align import align
from latentsync_trt.face.geometry import box_area
from latentsync_trt.face.tracker import FaceTracker, FrameFaces, TrackedDetection
from latentsync_trt.option_fields import FaceChoice
from latentsync_trt.types import Face, FaceDetector, Float64Array, Picture

LARGEST = FaceChoice("largest")
_PERSON_AWAY_S = 1
"""How long a chosen person may be away before another is chosen."""
_PICTURE_MOTION = 0.02
"""How much points of a face move at most in a picture of a face, also in noise and on a shaken
camera. Measured over half a second of faces that speak: from 0.019 on, 9 of 10 above 0.030.
"""
_LIVING_MOTION = 0.045
"""How much they move at least in somebody who certainly is no picture: pictures reach 0.030."""


def named_speakers(choice: FaceChoice | Mapping[int, int]) -> Mapping[int, int] | None:
    """Returns the speaker of each person that `choice` names by number; None if it names none."""
    if not isinstance(choice, FaceChoice):
        return choice
    return {choice.number: 0} if choice.kind == "index" else None


def check_people(wanted: Collection[int], people: Collection[int], where: str) -> None:
    """Raises `InputError` if a number in `wanted` is not one of `people`, those seen in `where`."""
    for person in sorted(set(wanted) - set(people)):
        numbers = ", ".join(map(str, sorted(people)))
        cure = f"choose from {numbers}; see who they are with `latentsync-trt faces`"
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
        """Returns the faces of the next frame that are painted, each with the number of its
        speaker.
        """
        if self._speakers is None:
            face = self._chosen_face(seen, time_s)
            return [] if face is None else [(face, 0)]
        chosen = [face for face in seen.faces if face.person in self._speakers]
        return [(face, self._speakers[face.person]) for face in chosen]

    def _chosen_face(self, seen: FrameFaces, time_s: Fraction) -> TrackedDetection | None:
        is_at_place = self._choice.kind == "at"
        if seen.shot != self._shot and not is_at_place:
            self._chosen = []
            self._shot = seen.shot
        self._correct_person(seen.faces)
        visible = {face.person: face for face in seen.faces}
        face = next(filter(None, map(visible.get, self._chosen)), None)
        is_lasting = is_at_place or time_s - self._present_s <= _PERSON_AWAY_S
        if face is None and not (self._chosen and is_lasting):
            face = self._best(seen.faces)
            if face is not None:
                self._chosen.append(face.person)
        if face is not None:
            self._present_s = time_s
            self._last = face
        return face

    def _correct_person(self, faces: Iterable[TrackedDetection]) -> None:
        """Takes the person whom the last chosen track is known to show now."""
        last = self._last
        for face in faces:
            if last is not None and face.track_id == last.track_id:
                corrected = {last.person: face.person}
                self._chosen = [corrected.get(person, person) for person in self._chosen]

    def _best(self, faces: Sequence[TrackedDetection]) -> TrackedDetection | None:
        choice = self._choice
        if choice.kind == "left":
            return min(faces, key=_middle_x, default=None)
        if choice.kind == "right":
            return max(faces, key=_middle_x, default=None)
        if choice.kind == "at":
            faces = [face for face in faces if _is_at(face, choice.x_px, choice.y_px)]
        elif choice.kind == "largest" and any(face.motion > _LIVING_MOTION for face in faces):
            # others are on posters and screens
            faces = [face for face in faces if face.motion > _PICTURE_MOTION]
        return max(faces, key=lambda face: box_area(face.face), default=None)


def _middle_x(face: TrackedDetection) -> float:
    """Returns twice the middle of a face."""
    return float(face.face.box[0] + face.face.box[2])


def _is_at(face: TrackedDetection, x_px: float, y_px: float) -> bool:
    """Whether a place is in the box of a face."""
    left, top, right, bottom = face.face.box.tolist()
    return left <= x_px <= right and top <= y_px <= bottom


@dataclass(frozen=True, slots=True, eq=False)
class TrackedFace:
    """The face of one frame, aligned."""

    face: Face
    track_id: int
    """Another one where it is not the face of the previous frame, or its shot ended."""
    matrix: Float64Array
    """Shape `(2, 3)`: frame pixels → crop pixels."""
    bias: complex
    """See `align`."""


class RunAligner:
    """Numbers the unbroken runs of faces, and aligns each from its own start."""

    def __init__(self, resolution_px: int) -> None:
        self._resolution_px = resolution_px
        self._last: dict[object, TrackedFace] = {}
        self._next_id = 0

    def advance(self, faces: Mapping[object, Face]) -> Mapping[object, TrackedFace]:
        """Returns each face of the next frame aligned; a key that was not in the last one begins a
        run.

        Unlike in training the points are not rounded to whole pixels: the mouth would jitter by as
        much.
        """
        aligned = {}
        for key, face in faces.items():
            before = self._last.get(key)
            bias = None
            if before is None:
                track_id = self._next_id
                self._next_id += 1
            else:
                track_id = before.track_id
                bias = before.bias
            matrix, bias = align(face.points, bias, self._resolution_px)
            aligned[key] = TrackedFace(face, track_id, matrix, bias)
        self._last = aligned
        return aligned


class MainFace:
    """Tracks all faces and aligns the largest, frame by frame, for measurements; gaps are not
    bridged.
    """

    def __init__(self, detector: FaceDetector, resolution_px: int = 256) -> None:
        self._tracker = FaceTracker(detector)
        self._chooser = Chooser(LARGEST)
        self._frames = 0
        self._aligner = RunAligner(resolution_px)

    def update(self, frame: Picture) -> TrackedFace | None:
        """Returns the face in the next frame, uint8 `(H, W, 3)` RGB of square pixels, or None."""
        self._frames += 1
        time_s = Fraction(self._frames, MODEL_FPS)
        seen = self._tracker.update(frame, time_s)
        chosen = self._chooser.choose(seen, time_s)
        aligned = self._aligner.advance({face.track_id: face.face for face, _ in chosen})
        return next(iter(aligned.values()), None)
