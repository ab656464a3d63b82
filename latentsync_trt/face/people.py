"""The people of a clip: their numbers, portraits, what is known of each, and what was seen of
faces.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.active_speaker import MOUTH_VALUES, mouth_of
from latentsync_trt.face.geometry import LEAST_HEIGHT_PX, LEAST_WIDTH_PX, turned_aside
from latentsync_trt.face.search import ON_ITS_SIDE
from latentsync_trt.face.track_file import COLUMNS, ClipMark, FaceSpan, Tracks
from latentsync_trt.face.tracker import FrameFaces
from latentsync_trt.types import Face, Float64Array, Frame, Interval, Picture, UInt8Array

PORTRAIT_PX = 256
"""Side of a portrait."""
_PORTRAIT_SCALE = 1.7
_BETTER = 1.1
"""A portrait is replaced by one that is better by this factor; else every frame of a zoom would be
cut out.
"""
_LEAST_SEEN_S = 0.2
"""Someone who is seen for less in the whole clip is a passer-by at its edge, or no person."""
_FRONTAL_TURN = 0.25
"""About 25°."""
_MOST_TURNED = 0.25
"""Share of the frames from which on a picture seems to be turned: a person who lies down for a
while is not.
"""
_TURNS = {
    90: ("by 90° counterclockwise", "transpose=2"),
    180: ("by 180°", "hflip,vflip"),
    270: ("by 90° clockwise", "transpose=1"),
}
"""What turns faces upright that are turned clockwise by so much, in words and as FFmpeg's
filters.
"""


@dataclass(frozen=True, slots=True)
class PersonSummary:
    """One person of a clip, by `number`. `times_s`, `speaks`: begin and end of each time it is
    seen, and speaks.

    `seen_s`: sum of the former. `height_px`: of the face, the median. `frontal`: share of the time
    in which the face looks into the camera, or less than about 25° aside.
    """

    number: int
    times_s: tuple[tuple[float, float], ...]
    seen_s: float
    height_px: int
    frontal: float
    speaks: tuple[tuple[float, float], ...] = ()


def summaries(tracks: Tracks) -> list[PersonSummary]:
    """What is known of each person, by number."""
    found = []
    for number in tracks.people:
        spans = [span.rows for span in tracks.spans if span.person == number]
        times_s = tuple((float(rows[0, 0]), float(rows[-1, 0])) for rows in spans)
        rows = np.concatenate(spans)
        frontal = float((turned_aside(rows[:, 5:].reshape(-1, 3, 2)) < _FRONTAL_TURN).mean())
        height_px = round(float(np.median(rows[:, 4] - rows[:, 2])))
        seen_s = sum(end - start for start, end in times_s)
        speaks = tracks.turns_of(number)
        found.append(PersonSummary(number, times_s, seen_s, height_px, frontal, speaks))
    return found


class PeopleCollector:
    """Collects the faces of a clip, by track, and the best picture of each person: a large, frontal
    one; needs 120 bytes for each face in each frame.
    """

    def __init__(self) -> None:
        self.tracks: dict[int, tuple[int, array[float]]] = {}
        self._portraits: dict[int, tuple[float, UInt8Array]] = {}
        self._shots_s: dict[int, float] = {}

    def add(self, source_s: Fraction, seen: FrameFaces, picture: Callable[[], Picture]) -> None:
        """The faces of the next picture of the source, which `picture` makes with square pixels."""
        time_s = round(float(source_s), 6)
        self._shots_s.setdefault(seen.shot, time_s)
        for one in seen.faces:
            face = one.face
            person = one.person
            row = (
                time_s,
                *face.box.tolist(),
                *face.points.ravel().tolist(),
                *mouth_of(face.landmarks),
            )
            _, rows = self.tracks.get(one.track_id, (person, array("d")))
            rows.extend(row)
            self.tracks[one.track_id] = person, rows
            score = float(face.box[3] - face.box[1]) / (1 + 4 * float(turned_aside(face.points)))
            if person not in self._portraits or score > _BETTER * self._portraits[person][0]:
                self._portraits[person] = score, _portrait(picture(), face)

    def result(self, clip: ClipMark) -> tuple[Tracks, dict[int, UInt8Array]]:
        """All tracks, and a picture of each person by number, uint8 `(256, 256, 3)` RGB, but of
        those hardly seen.
        """
        found = self._apart()
        seen_s = dict.fromkeys((person for person, _ in found), 0.0)
        for person, rows in found:
            seen_s[person] += float(rows[-1, 0] - rows[0, 0])
        lasting = [
            person
            for person, time_s in seen_s.items()
            if time_s >= min(_LEAST_SEEN_S, max(seen_s.values()))
        ]
        numbers = {person: number for number, person in enumerate(lasting)}
        spans = tuple(
            FaceSpan(numbers[person], rows[:, :COLUMNS], rows[:, COLUMNS:])
            for person, rows in found
            if person in numbers
        )
        portraits = {number: self._portraits[person][1] for person, number in numbers.items()}
        return Tracks(clip, tuple(self._shots_s.values()), spans), portraits

    def _apart(self) -> list[tuple[int, Float64Array]]:
        """Person and rows of each track, by their first time; no person is at two places, even
        where a face was only later recognized as that of somebody who was seen elsewhere before.
        """
        all_rows = [
            (person, np.array(rows).reshape(-1, COLUMNS + MOUTH_VALUES))
            for person, rows in self.tracks.values()
        ]
        all_rows.sort(key=lambda one: float(one[1][0, 0]))
        ends_s: dict[int, float] = {}
        found = []
        for person, rows in all_rows:
            left = rows[rows[:, 0] > ends_s.get(person, -np.inf)]
            if len(left):
                ends_s[person] = float(left[-1, 0])
                found.append((person, left))
        return found


def _portrait(picture: Picture, face: Face) -> UInt8Array:
    """The face and what is around it, white beyond the picture."""
    side = float((face.box[2:] - face.box[:2]).max()) * _PORTRAIT_SCALE
    left, top = ((face.box[:2] + face.box[2:]) / 2 - side / 2).tolist()
    (y0, y1), (x0, x1) = ((max(0, int(start)), int(start + side)) for start in (top, left))
    part = np.asarray(picture[y0:y1, x0:x1])
    scale = PORTRAIT_PX / side
    size = max(1, round(part.shape[1] * scale)), max(1, round(part.shape[0] * scale))
    small = cv2.resize(part, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    canvas = np.full((PORTRAIT_PX, PORTRAIT_PX, 3), 255, np.uint8)
    canvas[: small.shape[0], : small.shape[1]] = small[:PORTRAIT_PX, :PORTRAIT_PX]
    return canvas


@dataclass(slots=True, eq=False)
class FaceStats:
    """What was seen of faces in all frames that were added, in their order. `turned`: how many
    frames only show faces that are turned, by the angle. `untouched`: the times at which faces were
    wanted, but none was chosen.
    """

    frames: int = 0
    frames_with_face: int = 0
    searched: int = 0
    turned: Counter[int] = field(default_factory=Counter)
    most_faces: int = 0
    untouched: list[Interval] = field(default_factory=list)

    def add(self, frame: Frame, seen: FrameFaces | None, *, has_face: bool) -> None:
        """Adds the next frame."""
        self.frames += 1
        self.frames_with_face += has_face
        if seen is None:
            return
        self.searched += 1
        self.most_faces = max(self.most_faces, len(seen.faces))
        if not seen.faces and seen.why_none == ON_ITS_SIDE:
            self.turned[seen.turned_deg] += 1
        if has_face:
            return
        reason = "other faces" if seen.faces else seen.why_none
        start_s = float(frame.time_s)
        end_s = float(frame.time_s + frame.duration_s)
        if self.untouched and (self.untouched[-1].reason, self.untouched[-1].end_s) == (
            reason,
            start_s,
        ):
            start_s = self.untouched.pop().start_s
        self.untouched.append(Interval(start_s, end_s, reason))

    def turned_notice(self, video: Path) -> str | None:
        """What to say about a `video` that seems to lie on its side, although a tilted head looks
        upright at times.
        """
        count = self.turned.total()
        if count <= _MOST_TURNED * self.searched:
            return None
        shown = (
            f"{count} of the {self.searched} frames searched "
            "show only faces on their side or upside down"
        )
        return f"{video.name}: {shown}; {self._cure(video)}"

    def _cure(self, video: Path) -> str:
        """How to turn the picture upright."""
        ((turned_deg, _),) = self.turned.most_common(1)
        how, filters = _TURNS[turned_deg]
        command = f"ffmpeg -i {video.name} -vf {filters} -c:a copy turned{video.suffix}"
        return f"probably its rotation tag is wrong or missing; turn the picture {how}: {command}"

    def no_face(self, video: Path) -> NoFaceError:
        """The error for a `video`, none of whose frames shows a usable face that was chosen."""
        if not self.searched:
            part = "is in the part that is synced; give another --start or --end"
            return NoFaceError(f"{video}: none of its {self.frames} frames {part}", usage=True)
        if self.most_faces:
            return NoFaceError(
                f"{video}: shows faces, but never the chosen "
                "one; latentsync-trt faces shows them all"
            )
        searched = f"any of the {self.searched} frames searched"
        if self.turned:
            none = (
                f"no upright face in {searched}, but "
                f"{self.turned.total()} with one on its side or upside down"
            )
            return NoFaceError(f"{video}: {none}; {self._cure(video)}")
        least = f"be at least {LEAST_WIDTH_PX} px wide and {LEAST_HEIGHT_PX} px high"
        return NoFaceError(
            f"{video}: no face in {searched}; a face must look at the camera, and {least}"
        )
