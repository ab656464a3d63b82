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
from latentsync_trt.types import Face, Float64Array, VideoInfo

COLUMNS = 11
_FORMAT = "latentsync-trt faces 1"
_SAME_TIME_S = 0.002
"""Times are saved in microseconds, and pictures are never nearer than this to each other."""
_SAME_DURATION_S = 0.5

_Number = Annotated[float, Meta(ge=-1e6, le=1e6)]
"""Seconds or pixels."""
_Row = Annotated[list[_Number], Meta(min_length=COLUMNS, max_length=COLUMNS)]


@dataclass(frozen=True, slots=True)
class ClipMark:
    """By what a clip is recognized, wherever it lies. `frames`: pictures in it."""

    name: str
    size_bytes: int
    width_px: int
    height_px: int
    frames: int
    duration_s: float

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.size_bytes} bytes, "
            f"{self.width_px}×{self.height_px} px, {self.duration_s:.2f} s)"
        )


def mark_of(video: Path, info: VideoInfo, frames: int = 0) -> ClipMark:
    """By what the tracks of a clip are recognized; `frames` are not compared."""
    size_bytes = video.stat().st_size if video.is_file() else 0
    if info.duration_s is None:
        duration_s = 0.0
    else:
        duration_s = round(float(info.duration_s), 3)
    return ClipMark(video.name, size_bytes, info.width_px, info.height_px, frames, duration_s)


@dataclass(frozen=True, slots=True, eq=False)
class FaceSpan:
    """An unbroken run of a person's face: `rows (n, 11)` float64 as described above, by time.
    `mouth (n, 4)`: as `mouth_of` has it, where it was seen, which is not saved.
    """

    person: int
    rows: Float64Array
    mouth: Float64Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """Who is seen where and when in a clip. `shots_s`: when its shots begin. `spans`: by their
    first time. `speaks`: who speaks when, by time; None = not known.
    """

    clip: ClipMark
    shots_s: tuple[float, ...]
    spans: tuple[FaceSpan, ...]
    turns: tuple[Turn, ...] | None = None

    @property
    def people(self) -> tuple[int, ...]:
        return tuple(sorted({span.person for span in self.spans}))

    def turns_of(self, person: int | None) -> tuple[tuple[float, float], ...]:
        """Start and end of each time at which a person speaks, None = somebody who is not seen."""
        return tuple((one.start_s, one.end_s) for one in self.turns or () if one.person == person)

    def at(self, source_s: Fraction) -> FrameFaces:
        """The faces in the picture at a time of the source; `TrackedDetection.track_id` is the
        number of the span.
        """
        earliest_s = float(source_s) - _SAME_TIME_S
        latest_s = float(source_s) + _SAME_TIME_S
        faces = []
        for number, span in enumerate(self.spans):
            row = int(np.searchsorted(span.rows[:, 0], earliest_s))
            if row < len(span.rows) and span.rows[row, 0] <= latest_s:
                values = span.rows[row].astype(np.float32)
                face = Face(values[1:5], values[5:].reshape(3, 2))
                faces.append(TrackedDetection(number, span.person, face))
        return FrameFaces(bisect_left(self.shots_s, latest_s) - 1, tuple(faces))

    def check_clip(self, clip: ClipMark, path: Path) -> None:
        """Raises `InputError` unless these are the tracks of `clip`, whose `frames` and `name` do
        not count.
        """
        same = (
            replace(self.clip, frames=clip.frames, name=clip.name, duration_s=clip.duration_s)
            == clip
        )
        if not same or abs(self.clip.duration_s - clip.duration_s) > _SAME_DURATION_S:
            raise InputError(f"{path}: has the tracks of {self.clip}, but the video is {clip}")


@dataclass(frozen=True, slots=True)
class _Span:
    from_s: float
    to_s: float
    frames: list[_Row]


@dataclass(frozen=True, slots=True)
class _Person:
    person: Annotated[int, Meta(ge=0)]
    spans: list[_Span]
    speaks: list[tuple[_Number, _Number]] | None = None


@dataclass(frozen=True, slots=True)
class _File:
    format: Literal["latentsync-trt faces 1"]
    clip: ClipMark
    shots_s: tuple[_Number, ...]
    people: list[_Person]
    unseen_speaks: list[tuple[_Number, _Number]] | None = None


def save_tracks(tracks: Tracks, path: Path) -> Path:
    """Writes `path`, with a line for each frame, and returns it; raises OSError if it cannot be
    written.
    """
    head = {"format": _FORMAT, "clip": asdict(tracks.clip), "shots_s": tracks.shots_s}
    if tracks.turns is not None:
        head["unseen_speaks"] = tracks.turns_of(None)
    people = []
    for person in tracks.people:
        spans = ",\n".join(_span_text(span.rows) for span in tracks.spans if span.person == person)
        if tracks.turns is None:
            speaks = ""
        else:
            speaks = f', "speaks": {json.dumps(tracks.turns_of(person))}'
        people.append(f'{{"person": {person}{speaks}, "spans": [\n{spans}\n]}}')
    with whole_file(path, keep=True) as part:
        part.write_text(
            f'{json.dumps(head)[:-1]},\n"people": [\n{",".join(people)}\n]}}\n',
            "utf-8",
            newline="\n",
        )
    return path


def _span_text(rows: Float64Array) -> str:
    """Its coordinates are the shortest numbers that are the same in float32, so alignment is the
    same.
    """
    frames = [
        [round(float(row[0]), 6), *map(float, map(str, row[1:].astype(np.float32)))] for row in rows
    ]
    text = json.dumps({"from_s": frames[0][0], "to_s": frames[-1][0], "frames": frames})
    return text.replace("[[", "[\n[").replace("], [", "],\n[")


def read_tracks(path: Path) -> Tracks:
    """The tracks saved in `path`; raises `InputError`, which names the place, if it holds something
    else.
    """
    text = read_text(path, "write it with latentsync-trt faces")
    try:
        file = from_json(_File, text, path)
        return Tracks(file.clip, _shots_s(file), _spans(file), _speaks(file))
    except ValueError as error:
        place = str(error).removeprefix(f"{path}: ")
        raise InputError(
            f"{path}: {place}; correct that, or write the file again: latentsync-trt faces"
        ) from error


def _shots_s(file: _File) -> tuple[float, ...]:
    """When shots begin; raises `ValueError` if they are not in order."""
    for number, (earlier, later) in enumerate(pairwise(file.shots_s), 1):
        if earlier >= later:
            raise ValueError(f"shots_s[{number}]: a shot does not begin after the one before")
    return file.shots_s


def _spans(file: _File) -> tuple[FaceSpan, ...]:
    """Raises `ValueError` that says where in the file, or who and when."""
    found = [
        FaceSpan(person.person, _rows(span, f"people[{place}].spans[{number}]"))
        for place, person in enumerate(file.people)
        for number, span in enumerate(person.spans)
    ]
    if not found:
        raise ValueError("people: nobody is left")
    found.sort(key=lambda span: float(span.rows[0, 0]))
    ends_s: dict[int, float] = {}
    for span in found:
        start_s = float(span.rows[0, 0])
        if start_s <= ends_s.get(span.person, -np.inf):
            raise ValueError(f"person {span.person} is at two places after {start_s:.2f} s")
        ends_s[span.person] = float(span.rows[-1, 0])
    return tuple(found)


def _speaks(file: _File) -> tuple[Turn, ...] | None:
    """Who speaks when, None if the file does not say it; raises `ValueError` that says where times
    are wrong.
    """
    if file.unseen_speaks is None and all(each.speaks is None for each in file.people):
        return None
    speaks = _times(None, file.unseen_speaks, "unseen_speaks")
    for place, each in enumerate(file.people):
        speaks += _times(each.person, each.speaks, f"people[{place}].speaks")
    return tuple(sorted(speaks, key=lambda one: one.start_s))


def _times(person: int | None, times_s: list[tuple[float, float]] | None, where: str) -> list[Turn]:
    for number, (start_s, end_s) in enumerate(times_s or ()):
        if start_s >= end_s:
            raise ValueError(
                f"{where}[{number}]: {start_s:g} to {end_s:g} s does not end after it starts"
            )
    return [Turn(person, *time_s) for time_s in times_s or ()]


def _rows(span: _Span, where: str) -> Float64Array:
    """The rows between `from_s` and `to_s`, at least one."""
    rows = np.array(span.frames, np.float64).reshape(-1, COLUMNS)
    for problem, wrong in (
        ("the box is not left, top, right, bottom", (rows[:, 3:5] < rows[:, 1:3]).any(axis=1)),
        ("the time is not after that of the row before", np.diff(rows[:, 0], prepend=-np.inf) <= 0),
        ("the points coincide", np.ptp(rows[:, 5:].reshape(-1, 3, 2), axis=1).max(axis=1) < 1),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(f"{where}.frames[{row}], {rows[row, 0]:g} s: {problem}")
    rows = rows[
        (rows[:, 0] >= span.from_s - _SAME_TIME_S) & (rows[:, 0] <= span.to_s + _SAME_TIME_S)
    ]
    if not len(rows):
        raise ValueError(f"{where}: has no frame between from_s and to_s")
    return rows
