"""Tracks of the faces of one clip, saved as JSON that people can edit.

A span is an unbroken run of one face in one shot. Its frames are rows of numbers: the time in the
source in seconds, the box (left, top, right, bottom), and the three points from which the face is
aligned (left brow, right brow, nose), x and y each, in pixels of the upright picture with square
pixels. Persons and spans can be deleted and renumbered, rows deleted; a span's rows outside
`from_s` to `to_s` are ignored. `speaks`: starts and ends of a person's speech in seconds of the
source; `unseen_speaks`: of voices whose face is not in the picture. They can be changed, too.
"""

import json
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from latentsync_trt.errors import InputError
from latentsync_trt.face.active_speaker import Turn
from latentsync_trt.face.tracker import FrameFaces, TrackedDetection
from latentsync_trt.files import whole_file
from latentsync_trt.option_fields import from_json
from latentsync_trt.paths import read_text
from latentsync_trt.types import Face, Float64Array, SpanSeconds, VideoInfo

COLUMNS = 11
"""Numbers of a row."""
_FORMAT = "latentsync-trt faces 1"
_NEAR_TIME_S = 0.002
"""Times that are nearer are equal: they are saved in microseconds, and pictures are never so near
to each other.
"""
_SAME_DURATION_S = 0.5
"""How much the durations of one clip may differ between two readers."""

_Number = Annotated[float, Meta(ge=-1e6, le=1e6)]
"""Seconds or pixels."""
_Row = Annotated[list[_Number], Meta(min_length=COLUMNS, max_length=COLUMNS)]
_Times = list[tuple[_Number, _Number]]
"""Begin and end of each span, in seconds."""


@dataclass(frozen=True, slots=True)
class ClipMark:
    """By what a clip is recognized, wherever it lies."""

    name: str
    size_bytes: int
    width_px: int
    height_px: int
    frames: int
    """Pictures in the clip, which are not compared."""
    duration_s: float

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.size_bytes} bytes, "
            f"{self.width_px}×{self.height_px} px, {self.duration_s:.2f} s)"
        )


def mark_of(video: Path, info: VideoInfo, frames: int = 0) -> ClipMark:
    """Returns by what the tracks of a clip are recognized."""
    size_bytes = video.stat().st_size if video.is_file() else 0
    duration_s = round(float(info.duration_s or 0), 3)
    return ClipMark(video.name, size_bytes, info.width_px, info.height_px, frames, duration_s)


@dataclass(frozen=True, slots=True, eq=False)
class FaceSpan:
    """An unbroken run of a person's face."""

    person: int
    rows: Float64Array
    """Frames as described above, by time: `(n, 11)`."""
    mouth: Float64Array | None = None
    """What `mouth_of` returns for each, where it was seen, which is not saved: `(n, 4)`."""
    covered: Float64Array | None = None
    """Part of the mouth that is behind something in each, 0 to 1, where that was looked for, which
    is not saved: `(n,)`.
    """

    @property
    def start_s(self) -> float:
        """The time of the first frame."""
        return float(self.rows[0, 0])

    @property
    def end_s(self) -> float:
        """The time of the last frame."""
        return float(self.rows[-1, 0])


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """Who is seen where and when in a clip."""

    clip: ClipMark
    shots_s: tuple[float, ...]
    """When its shots begin."""
    spans: tuple[FaceSpan, ...]
    """By their first time."""
    turns: tuple[Turn, ...] | None = None
    """Who speaks when, by time; None = not known."""

    @property
    def people(self) -> tuple[int, ...]:
        return tuple(sorted({span.person for span in self.spans}))

    def turns_of(self, person: int | None) -> tuple[SpanSeconds, ...]:
        """Returns start and end of each time at which a person speaks, None = somebody who is not
        seen.
        """
        turns = [turn for turn in self.turns or () if turn.person == person]
        return tuple((turn.start_s, turn.end_s) for turn in turns)

    def at(self, source_s: Fraction) -> FrameFaces:
        """Returns the faces in the picture at a time of the source; `TrackedDetection.track_id` is
        the number of the span.
        """
        earliest_s = float(source_s) - _NEAR_TIME_S
        latest_s = float(source_s) + _NEAR_TIME_S
        faces = []
        for number, span in enumerate(self.spans):
            row = int(np.searchsorted(span.rows[:, 0], earliest_s))
            if row < len(span.rows) and span.rows[row, 0] <= latest_s:
                values = span.rows[row].astype(np.float32)
                face = Face(values[1:5], values[5:].reshape(3, 2))
                faces.append(TrackedDetection(number, span.person, face))
        shot = bisect_left(self.shots_s, latest_s) - 1
        return FrameFaces(shot, tuple(faces))

    def check_clip(self, clip: ClipMark, path: Path) -> None:
        """Raises `InputError` unless these are the tracks of `clip`, whose `frames` and `name` do
        not count.
        """
        mark = self.clip
        expected = replace(clip, name=mark.name, frames=mark.frames, duration_s=mark.duration_s)
        is_as_long = abs(mark.duration_s - clip.duration_s) <= _SAME_DURATION_S
        if expected != mark or not is_as_long:
            raise InputError(f"{path}: has the tracks of {mark}, but the video is {clip}")


@dataclass(frozen=True, slots=True)
class _SpanFields:
    from_s: float
    to_s: float
    frames: list[_Row]


@dataclass(frozen=True, slots=True)
class _PersonFields:
    person: Annotated[int, Meta(ge=0)]
    spans: list[_SpanFields]
    speaks: _Times | None = None


@dataclass(frozen=True, slots=True)
class _FileFields:
    format: Literal["latentsync-trt faces 1"]
    clip: ClipMark
    shots_s: tuple[_Number, ...]
    people: list[_PersonFields]
    unseen_speaks: _Times | None = None


def save_tracks(tracks: Tracks, path: Path) -> Path:
    """Writes `path`, with a line for each frame, and returns it; raises OSError if it cannot be
    written.
    """
    head = {"format": _FORMAT, "clip": asdict(tracks.clip), "shots_s": tracks.shots_s}
    if tracks.turns is not None:
        head["unseen_speaks"] = tracks.turns_of(None)
    people = ",".join(_person_text(tracks, person) for person in tracks.people)
    text = f'{json.dumps(head)[:-1]},\n"people": [\n{people}\n]}}\n'
    with whole_file(path, keep=True) as part:
        part.write_text(text, "utf-8", newline="\n")
    return path


def _person_text(tracks: Tracks, person: int) -> str:
    speaks = ""
    if tracks.turns is not None:
        speaks = f', "speaks": {json.dumps(tracks.turns_of(person))}'
    texts = [_span_text(span.rows) for span in tracks.spans if span.person == person]
    spans = ",\n".join(texts)
    return f'{{"person": {person}{speaks}, "spans": [\n{spans}\n]}}'


def _span_text(rows: Float64Array) -> str:
    frames = []
    for time_s, *pixels in rows:
        # The shortest numbers that are the same in float32, so that alignment is the same.
        shortest = [float(str(np.float32(value))) for value in pixels]
        frames.append([round(float(time_s), 6), *shortest])
    span = {"from_s": frames[0][0], "to_s": frames[-1][0], "frames": frames}
    text = json.dumps(span)
    return text.replace("[[", "[\n[").replace("], [", "],\n[")


def read_tracks(path: Path) -> Tracks:
    """Returns the tracks saved in `path`; raises `InputError`, which names the place, if it holds
    something else.
    """
    text = read_text(path, "write it with latentsync-trt faces")
    try:
        file = from_json(_FileFields, text, path)
        _check_shots(file.shots_s)
        return Tracks(file.clip, file.shots_s, _spans(file), _turns(file))
    except ValueError as error:
        place = str(error).removeprefix(f"{path}: ")
        raise InputError(
            f"{path}: {place}; correct that, or write the file again: latentsync-trt faces"
        ) from error


def _check_shots(shots_s: tuple[float, ...]) -> None:
    """Raises `ValueError` if shots are not in order."""
    for number, (earlier, later) in enumerate(pairwise(shots_s), 1):
        if earlier >= later:
            raise ValueError(f"shots_s[{number}]: a shot does not begin after the one before")


def _spans(file: _FileFields) -> tuple[FaceSpan, ...]:
    """Returns all spans by time; raises `ValueError` that says where in the file, or who and
    when.
    """
    spans = []
    for place, person in enumerate(file.people):
        for number, fields in enumerate(person.spans):
            rows = _rows(fields, f"people[{place}].spans[{number}]")
            spans.append(FaceSpan(person.person, rows))
    if not spans:
        raise ValueError("people: nobody is left")
    spans.sort(key=attrgetter("start_s"))
    ends_s: dict[int, float] = {}
    for span in spans:
        if span.start_s <= ends_s.get(span.person, -np.inf):
            raise ValueError(f"person {span.person} is at two places after {span.start_s:.2f} s")
        ends_s[span.person] = span.end_s
    return tuple(spans)


def _turns(file: _FileFields) -> tuple[Turn, ...] | None:
    """Returns who speaks when, None if the file does not say it; raises `ValueError` that says
    where times are wrong.
    """
    if file.unseen_speaks is None and all(person.speaks is None for person in file.people):
        return None
    turns = _turns_of(None, file.unseen_speaks, "unseen_speaks")
    for place, person in enumerate(file.people):
        turns += _turns_of(person.person, person.speaks, f"people[{place}].speaks")
    turns.sort(key=attrgetter("start_s"))
    return tuple(turns)


def _turns_of(person: int | None, times_s: _Times | None, where: str) -> list[Turn]:
    turns = []
    for number, (start_s, end_s) in enumerate(times_s or ()):
        if start_s >= end_s:
            times = f"{start_s:g} to {end_s:g} s"
            raise ValueError(f"{where}[{number}]: {times} does not end after it starts")
        turns.append(Turn(person, start_s, end_s))
    return turns


def _rows(span: _SpanFields, where: str) -> Float64Array:
    """Returns the rows between `from_s` and `to_s`, at least one."""
    rows = np.array(span.frames, np.float64).reshape(-1, COLUMNS)
    times_s = rows[:, 0]
    points = rows[:, 5:].reshape(-1, 3, 2)
    problems = {
        "the box is not left, top, right, bottom": (rows[:, 3:5] < rows[:, 1:3]).any(axis=1),
        "the time is not after that of the row before": np.diff(times_s, prepend=-np.inf) <= 0,
        "the points coincide": np.ptp(points, axis=1).max(axis=1) < 1,
    }
    for problem, is_wrong in problems.items():
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise ValueError(f"{where}.frames[{row}], {times_s[row]:g} s: {problem}")
    is_inside = (times_s >= span.from_s - _NEAR_TIME_S) & (times_s <= span.to_s + _NEAR_TIME_S)
    if not is_inside.any():
        raise ValueError(f"{where}: has no frame between from_s and to_s")
    return rows[is_inside]
