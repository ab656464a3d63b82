"""Tracks of the faces of one clip, saved as JSON that people can edit.

A span is an unbroken run of one face in one shot. Its frames are rows of numbers: the time in the source in seconds,
the box (left, top, right, bottom), and the three points from which the face is aligned (left brow, right brow, nose), x
and y each, in pixels of the upright picture with square pixels. Persons and spans can be deleted and renumbered, rows
deleted; a span's rows outside `from_s` to `to_s` are ignored.
"""

import gzip
import json
import zlib
from bisect import bisect_left
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from latentsync_trt.bundle.checks import parsed
from latentsync_trt.errors import InputError
from latentsync_trt.face.tracker import Seen, Sighting
from latentsync_trt.files import whole_file
from latentsync_trt.types import Face, Float64Array

_FORMAT = "latentsync-trt faces 1"
COLUMNS = 11
_GZIP = b"\x1f\x8b"
_LARGE_BYTES = 20_000_000
"""What an editor still opens without delay."""
_SAME_TIME_S = 0.002
"""Times are saved in microseconds, and pictures are never nearer than this to each other."""
_SAME_DURATION_S = 0.5
_LARGEST = 1e6
"""Seconds or pixels."""


@dataclass(frozen=True, slots=True)
class ClipMark:
    """By what a clip is recognized, wherever it lies. `frames`: pictures in it."""

    name: str
    size_bytes: int
    width_px: int
    height_px: int
    frames: int
    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class FaceSpan:
    """An unbroken run of a person's face: `rows (n, 11)` float64 as described above, by time."""

    person: int
    rows: Float64Array

    def face(self, row: int) -> Face:
        """The face in one row."""
        values = self.rows[row].astype(np.float32)
        return Face(values[1:5], values[5:].reshape(3, 2))


@dataclass(frozen=True, eq=False)
class Tracks:
    """Who is seen where and when in a clip. `shots_s`: when its shots begin. `spans`: by their first time."""

    clip: ClipMark
    shots_s: tuple[float, ...]
    spans: tuple[FaceSpan, ...]

    @property
    def people(self) -> tuple[int, ...]:
        """The numbers of all persons."""
        return tuple(sorted({span.person for span in self.spans}))

    def at(self, source_s: Fraction) -> Seen:
        """The faces in the picture at a time of the source; `Sighting.track_id` is the number of the span."""
        earliest_s, latest_s = float(source_s) - _SAME_TIME_S, float(source_s) + _SAME_TIME_S
        starts_s, ends_s = self._times_s
        faces = []
        for number in np.flatnonzero((starts_s <= latest_s) & (ends_s >= earliest_s)).tolist():
            span = self.spans[number]
            row = int(np.searchsorted(span.rows[:, 0], earliest_s))
            if span.rows[row, 0] <= latest_s:
                faces.append(Sighting(number, span.person, span.face(row)))
        return Seen(bisect_left(self.shots_s, latest_s) - 1, tuple(faces))

    @cached_property
    def _times_s(self) -> Float64Array:
        """`(2, n)`: when each span begins and ends."""
        return np.array([(span.rows[0, 0], span.rows[-1, 0]) for span in self.spans]).reshape(-1, 2).T

    def check_clip(self, clip: ClipMark, path: Path) -> None:
        """Raises `InputError` unless these are the tracks of `clip`, whose `frames` and `name` do not count."""
        same = replace(self.clip, frames=clip.frames, name=clip.name, duration_s=clip.duration_s) == clip
        if not same or abs(self.clip.duration_s - clip.duration_s) > _SAME_DURATION_S:
            raise InputError(f"{path}: has the tracks of {_described(self.clip)}, but the video is {_described(clip)}")


def save_tracks(tracks: Tracks, path: Path) -> Path:
    """Writes `path`; where that would be larger than 20 MB, it is compressed and named .json.gz. Returns its path.

    Raises:
        OSError: it cannot be written.
    """
    data = _text(tracks).encode()
    if len(data) > _LARGE_BYTES and path.suffix != ".gz":
        path = path.with_name(f"{path.name}.gz")
    with whole_file(path) as part:
        part.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def read_tracks(path: Path) -> Tracks:
    """The tracks saved in `path`.

    Raises:
        InputError: the file cannot be read, or holds something else; names the place.
    """
    try:
        data = path.read_bytes()
        content = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data, object_hook=_compact)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; write it with latentsync-trt faces") from error
    except (ValueError, EOFError, RecursionError, zlib.error) as error:
        raise InputError(f"{path}: is no file of face tracks: {error}") from error
    try:
        return _checked(parsed(content, _File))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class _FileSpan:
    from_s: float
    to_s: float
    frames: Any


@dataclass(frozen=True, slots=True)
class _Person:
    person: int
    spans: tuple[_FileSpan, ...]


@dataclass(frozen=True, slots=True)
class _File:
    format: str
    clip: ClipMark
    shots_s: tuple[float, ...]
    people: tuple[_Person, ...]


def _compact(item: dict[str, Any]) -> dict[str, Any]:
    """Makes an array of a span's rows as soon as they are read: as lists they take five times the memory."""
    if isinstance(item.get("frames"), list):
        with suppress(ValueError, OverflowError):
            rows = np.array(item["frames"])
            if rows.dtype.kind in "fi" and rows.ndim == 2:
                item["frames"] = rows
    return item


def _checked(file: _File) -> Tracks:
    """Raises ValueError that begins with the place in the file."""
    if file.format != _FORMAT:
        raise ValueError(f"format: {file.format!r} is not {_FORMAT!r}; write it again with latentsync-trt faces")
    if not abs(file.clip.duration_s) <= _LARGEST:
        raise ValueError("clip.duration_s: is no time")
    if not all(earlier < later for earlier, later in pairwise((-_LARGEST, *file.shots_s, _LARGEST))):
        raise ValueError("shots_s: the times do not ascend")
    named: list[tuple[str, FaceSpan]] = []
    for place, person in enumerate(file.people):
        if person.person < 0:
            raise ValueError(f"people.{place}.person: {person.person} is negative")
        for number, span in enumerate(person.spans):
            where = f"people.{place}.spans.{number}"
            rows = _rows(span.frames, f"{where}.frames")
            from_s, to_s = (min(max(time_s, -_LARGEST), _LARGEST) for time_s in (span.from_s, span.to_s))
            used = rows[(rows[:, 0] >= from_s - _SAME_TIME_S) & (rows[:, 0] <= to_s + _SAME_TIME_S)]
            if not len(used):
                raise ValueError(f"{where}: has no frame between from_s and to_s")
            named.append((where, FaceSpan(person.person, used)))
    if not named:
        raise ValueError("people: nobody is left")
    named.sort(key=lambda one: float(one[1].rows[0, 0]))
    for number, spans in groupby(sorted(named, key=lambda one: one[1].person), key=lambda one: one[1].person):
        for (_, before), (where, after) in pairwise(spans):
            if after.rows[0, 0] <= before.rows[-1, 0]:
                raise ValueError(f"{where}: person {number} is at two places after {after.rows[0, 0]:.2f} s")
    return Tracks(file.clip, file.shots_s, tuple(span for _, span in named))


def _rows(frames: Any, where: str) -> Float64Array:
    if not (isinstance(frames, np.ndarray) and frames.shape[1] == COLUMNS and (np.abs(frames) <= _LARGEST).all()):
        listed = frames.tolist() if isinstance(frames, np.ndarray) else frames
        for number, row in enumerate(listed if isinstance(listed, list) else []):
            if not (isinstance(row, list) and len(row) == COLUMNS and all(map(_is_number, row))):
                raise ValueError(f"{where}.{number}: is not {COLUMNS} numbers of at most {_LARGEST:.0f}")
        raise ValueError(f"{where}: is not a list of rows of {COLUMNS} numbers")
    rows = frames.astype(np.float64)
    for problem, wrong in (
        ("the box is not left, top, right, bottom", (rows[:, 3:5] < rows[:, 1:3]).any(axis=1)),
        ("the time is not after that of the row before", np.diff(rows[:, 0], prepend=-np.inf) <= 0),
        ("the points coincide", np.ptp(rows[:, 5:].reshape(-1, 3, 2), axis=1).max(axis=1) < 1),
    ):
        if wrong.any():
            raise ValueError(f"{where}.{int(wrong.argmax())}: {problem}")
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _text(tracks: Tracks) -> str:
    """JSON with a line for each frame."""
    head = json.dumps({"format": _FORMAT, "clip": asdict(tracks.clip), "shots_s": list(tracks.shots_s)})
    people = []
    for person in tracks.people:
        spans = ",\n".join(_span_text(span) for span in tracks.spans if span.person == person)
        people.append(f'{{"person": {person}, "spans": [\n{spans}\n]}}')
    return f'{head[:-1]},\n"people": [\n{",".join(people)}\n]}}\n'


def _span_text(span: FaceSpan) -> str:
    """Its coordinates are the shortest numbers that are the same in float32, so alignment is the same."""
    rows = [[round(float(row[0]), 6), *map(float, map(str, row[1:].astype(np.float32)))] for row in span.rows]
    text = json.dumps({"from_s": rows[0][0], "to_s": rows[-1][0], "frames": rows})
    return text.replace("[[", "[\n[").replace("], [", "],\n[")


def _described(clip: ClipMark) -> str:
    size = f"{clip.size_bytes} bytes, {clip.width_px}×{clip.height_px} px, {clip.duration_s:.2f} s"
    return f"{clip.name} ({size})"
