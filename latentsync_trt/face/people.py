"""The people of a clip: their numbers, portraits, what is known of each, and what was seen of
faces.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.errors import NoFaceError
from latentsync_trt.face.active_speaker import MOUTH_VALUES, mouth_of
from latentsync_trt.face.geometry import (
    LEAST_HEIGHT_PX,
    LEAST_WIDTH_PX,
    box_middle,
    longer_side,
    turned_aside,
)
from latentsync_trt.face.search import ON_ITS_SIDE
from latentsync_trt.face.track_file import COLUMNS, ClipMark, FaceSpan, Tracks
from latentsync_trt.face.tracker import FrameFaces
from latentsync_trt.measures import Interval, add_interval, person_name
from latentsync_trt.types import Face, Frame, Front, Picture, SpanSeconds, UInt8Array

PORTRAIT_PX = 256
"""Side of a portrait."""
_PORTRAIT_SCALE = 1.7
"""Side of a portrait in lengths of the longer side of the face."""
_BETTER = 1.1
"""A portrait is replaced by one that is better by this factor; else every frame of a zoom would be
cut out.
"""
_LEAST_SEEN_S = 0.2
"""Someone who is seen for less in the whole clip is a passer-by at its edge, or no person."""
LEAST_COVERED = 0.02
"""Part of a mouth, and what moves with it, from which on it is told that something is in front."""
_FRONTAL_TURN = 0.25
"""How far a face turns aside that still looks into the camera: about 25°."""
_MOST_TURNED = 0.25
"""Share of the frames from which on a picture seems to be turned: a person who lies down for a
while is not.
"""
_CURES = {
    90: ("by 90° counterclockwise", "transpose=2"),
    180: ("by 180°", "hflip,vflip"),
    270: ("by 90° clockwise", "transpose=1"),
}
"""What turns faces upright that are turned clockwise by so many degrees, in words and as FFmpeg's
filters.
"""


@dataclass(frozen=True, slots=True)
class PersonSummary:
    """What is known of one person of a clip."""

    number: int
    times_s: tuple[SpanSeconds, ...]
    """Begin and end of each time in which the person is seen."""
    seen_s: float
    """The sum of these times."""
    height_px: int
    """The median height of the face."""
    frontal: float
    """Share of the time in which the face looks into the camera, or less than about 25° aside."""
    covered_s: float
    """How long something is in front of the mouth."""
    speaks: tuple[SpanSeconds, ...] = ()
    """Begin and end of each time in which the person speaks."""


def summaries(tracks: Tracks) -> list[PersonSummary]:
    """Returns what is known of each person, by number."""
    return [_summary(tracks, number) for number in tracks.people]


def _summary(tracks: Tracks, number: int) -> PersonSummary:
    spans = [span for span in tracks.spans if span.person == number]
    times_s = tuple((span.start_s, span.end_s) for span in spans)
    seen_s = sum(end_s - start_s for start_s, end_s in times_s)
    covered_s = 0.0
    covered = [span.covered for span in spans if span.covered is not None]
    if covered:
        is_covered = np.concatenate(covered) >= LEAST_COVERED
        covered_s = float(is_covered.mean()) * seen_s
    rows = np.concatenate([span.rows for span in spans])
    height_px = round(float(np.median(rows[:, 4] - rows[:, 2])))
    is_frontal = turned_aside(rows[:, 5:].reshape(-1, 3, 2)) < _FRONTAL_TURN
    frontal = float(is_frontal.mean())
    speaks = tracks.turns_of(number)
    return PersonSummary(number, times_s, seen_s, height_px, frontal, covered_s, speaks)


class PeopleCollector:
    """Collects the faces of a clip, by track, and the best picture of each person: a large, frontal
    one; needs 128 bytes for each face in each frame.
    """

    def __init__(self) -> None:
        # The person of each track, as its last frame has it, which knows best; and its frames: rows
        # of `FaceSpan`, each followed by what `mouth_of` returns, and by how much is covered.
        self._people: dict[int, int] = {}
        self._rows: dict[int, array[float]] = {}
        self._portraits: dict[int, UInt8Array] = {}
        self._scores: dict[int, float] = {}
        self._shots_s: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no face was seen."""
        return not self._people

    def add(
        self,
        source_s: Fraction,
        seen: FrameFaces,
        picture: Callable[[], Picture],
        covered: Mapping[int, float],
    ) -> None:
        """Adds the faces of the next picture of the source.

        Args:
            picture: makes it with square pixels.
            covered: part of the mouth that is behind something, by track, where that is known.
        """
        time_s = round(float(source_s), 6)
        self._shots_s.setdefault(seen.shot, time_s)
        for detection in seen.faces:
            face = detection.face
            person = detection.person
            self._people[detection.track_id] = person
            rows = self._rows.setdefault(detection.track_id, array("d"))
            rows.append(time_s)
            rows.extend(face.box.tolist())
            rows.extend(face.points.ravel().tolist())
            rows.extend(mouth_of(face.landmarks))
            rows.append(covered.get(detection.track_id, 0.0))
            height = float(face.box[3] - face.box[1])
            score = height / (1 + 4 * float(turned_aside(face.points)))
            if person not in self._scores or score > _BETTER * self._scores[person]:
                self._scores[person] = score
                self._portraits[person] = _portrait(picture(), face)

    def result(self, clip: ClipMark) -> tuple[Tracks, dict[int, UInt8Array]]:
        """Returns all tracks, and a picture of each person by number, uint8 `(256, 256, 3)` RGB,
        but of those hardly seen.
        """
        spans = self._spans()
        seen_s = defaultdict[int, float](float)
        for span in spans:
            seen_s[span.person] += span.end_s - span.start_s
        least_s = min(_LEAST_SEEN_S, max(seen_s.values()))
        lasting = [person for person in seen_s if seen_s[person] >= least_s]
        portraits = {number: self._portraits[person] for number, person in enumerate(lasting)}
        lasting_spans = []
        for span in spans:
            if span.person in lasting:
                numbered = replace(span, person=lasting.index(span.person))
                lasting_spans.append(numbered)
        shots_s = tuple(self._shots_s.values())
        return Tracks(clip, shots_s, tuple(lasting_spans)), portraits

    def _spans(self) -> list[FaceSpan]:
        """Returns all tracks by their first time; no person is at two places, even where a face was
        only later recognized as that of somebody who was seen elsewhere before.
        """
        ends_s: dict[int, float] = {}
        spans = []
        for track_id, values in sorted(self._rows.items(), key=lambda track: track[1][0]):
            person = self._people[track_id]
            rows = np.array(values).reshape(-1, COLUMNS + MOUTH_VALUES + 1)
            rows = rows[rows[:, 0] > ends_s.get(person, -np.inf)]
            if len(rows):
                mouth = rows[:, COLUMNS:-1]
                span = FaceSpan(person, rows[:, :COLUMNS], mouth, rows[:, -1])
                ends_s[person] = span.end_s
                spans.append(span)
        return spans


def _portrait(picture: Picture, face: Face) -> UInt8Array:
    """Returns the face and what is around it, white beyond the picture."""
    side = longer_side(face) * _PORTRAIT_SCALE
    left, top = (box_middle(face) - side / 2).tolist()
    rows = slice(max(0, int(top)), int(top + side))
    columns = slice(max(0, int(left)), int(left + side))
    part = np.asarray(picture[rows, columns])
    scale = PORTRAIT_PX / side
    height, width = (max(1, round(length * scale)) for length in part.shape[:2])
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    small = cv2.resize(part, (width, height), interpolation=interpolation)
    canvas = np.full((PORTRAIT_PX, PORTRAIT_PX, 3), 255, np.uint8)
    canvas[:height, :width] = small[:PORTRAIT_PX, :PORTRAIT_PX]
    return canvas


def _extend(intervals: list[Interval], frame: Frame, reason: str) -> None:
    """Adds a frame to intervals, of which the last one grows where it goes on."""
    end_s = float(frame.time_s + frame.duration_s)
    add_interval(intervals, Interval(float(frame.time_s), end_s, reason))


@dataclass(slots=True, eq=False)
class FaceStats:
    """What was seen of faces in all frames that were added, in their order."""

    frames: int = 0
    frames_with_face: int = 0
    searched: int = 0
    """Frames in which faces were searched."""
    turned: Counter[int] = field(default_factory=Counter)
    """How many frames only show faces that are turned, by the angle."""
    most_faces: int = 0
    """The most faces in one frame."""
    untouched: list[Interval] = field(default_factory=list)
    """The times at which faces were wanted, but none was painted."""
    in_front: list[Interval] = field(default_factory=list)
    """The times at which something was in front of a mouth: "kept" or "covered"."""
    painted: dict[int, list[Interval]] = field(default_factory=dict)
    """The times at which each person was painted, by number."""

    def add(
        self,
        frame: Frame,
        seen: FrameFaces | None,
        *,
        has_face: bool,
        front: Front = "free",
        why_unpainted: str = "",
        painted: Iterable[int] = (),
    ) -> None:
        """Adds the next frame.

        Args:
            seen: None where no face was searched.
            has_face: whether one was chosen.
            why_unpainted: why none of those that were chosen shows painted; empty if one does.
            painted: numbers of the people who are painted.
        """
        self.frames += 1
        self.frames_with_face += has_face
        if seen is None:
            return
        self.searched += 1
        self.most_faces = max(self.most_faces, len(seen.faces))
        if not seen.faces and seen.why_none == ON_ITS_SIDE:
            self.turned[seen.turned_deg] += 1
        for person in painted:
            _extend(self.painted.setdefault(person, []), frame, person_name(person))
        if front != "free":
            _extend(self.in_front, frame, front)
        if not has_face:
            reason = "other faces" if seen.faces else seen.why_none
            _extend(self.untouched, frame, reason)
        elif why_unpainted:
            _extend(self.untouched, frame, why_unpainted)

    def painted_times(self) -> tuple[Interval, ...]:
        """Returns the times at which people were painted, by person."""
        ordered = sorted(self.painted.items())
        return tuple(chain.from_iterable(intervals for _, intervals in ordered))

    def turned_notice(self, video: Path) -> str | None:
        """Returns what to say about a `video` that seems to lie on its side, although a tilted head
        looks upright at times.
        """
        count = self.turned.total()
        if count <= _MOST_TURNED * self.searched:
            return None
        return (
            f"{video.name}: {count} of the {self.searched} frames searched "
            f"show only faces on their side or upside down; {self._cure(video)}"
        )

    def _cure(self, video: Path) -> str:
        """Returns how to turn the picture upright."""
        ((turned_deg, _),) = self.turned.most_common(1)
        how, filters = _CURES[turned_deg]
        command = f"ffmpeg -i {video.name} -vf {filters} -c:a copy turned{video.suffix}"
        return f"probably its rotation tag is wrong or missing; turn the picture {how}: {command}"

    def no_face(self, video: Path) -> NoFaceError:
        """Returns the error for a `video`, none of whose frames shows a usable face that was
        chosen.
        """
        if not self.searched:
            part = "is in the part that is synced; give another --start or --end"
            return NoFaceError(f"{video}: none of its {self.frames} frames {part}", usage=True)
        searched = f"any of the {self.searched} frames searched"
        if self.most_faces:
            problem = "shows faces, but never the chosen one; latentsync-trt faces shows them all"
        elif self.turned:
            turned = f"{self.turned.total()} with one on its side or upside down"
            problem = f"no upright face in {searched}, but {turned}; {self._cure(video)}"
        else:
            least = f"be at least {LEAST_WIDTH_PX} px wide and {LEAST_HEIGHT_PX} px high"
            problem = f"no face in {searched}; a face must look at the camera, and {least}"
        return NoFaceError(f"{video}: {problem}")
