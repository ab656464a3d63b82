"""Looks through a whole clip for its faces: who is seen where and when, how large and how frontal."""

from array import array
from contextlib import closing
from itertools import groupby
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.face.align import square
from latentsync_trt.face.geometry import turn
from latentsync_trt.face.track_file import COLUMNS, ClipMark, FaceSpan, Tracks
from latentsync_trt.face.tracker import FrameFaces
from latentsync_trt.measure.page import PORTRAIT_PX
from latentsync_trt.media.reader import probe, read_frames
from latentsync_trt.sync.faces import FaceFinder
from latentsync_trt.sync.threads import StageClock, in_background
from latentsync_trt.types import Face, FaceDetector, Frame, Picture, Progress, ProgressCallback, UInt8Array, VideoInfo

_LEAST_SEEN_S = 0.2
"""Someone who is seen for less in the whole clip is a passer-by at its edge, or no person."""
_QUEUE_DEPTH = 4
_PORTRAIT_SCALE = 1.7
_BETTER = 1.1
"""A portrait is replaced by one that is better by this factor; else every frame of a zoom would be cut out."""


def mark_of(video: Path, info: VideoInfo, frames: int = 0) -> ClipMark:
    """By what the tracks of a clip are recognized; `frames` are not compared."""
    size_bytes = video.stat().st_size if video.is_file() else 0
    duration_s = 0.0 if info.duration_s is None else round(float(info.duration_s), 3)
    return ClipMark(video.name, size_bytes, info.width_px, info.height_px, frames, duration_s)


def analyze(
    video: Path, detector: FaceDetector, on_progress: ProgressCallback = lambda _: None
) -> tuple[Tracks, dict[int, UInt8Array]]:
    """The tracks of all faces of a clip, and a picture of each person, uint8 `(160, 160, 3)` RGB.

    Needs 88 bytes for each face in each frame, else no more memory for a long clip than for a short one.

    Raises:
        MediaError: the clip cannot be read. NoFaceError: it shows no usable face.
    """
    info, recorder, portraits = probe(video), _Recorder(), _Portraits()
    aspect, rate = info.sample_aspect_ratio, info.frames_per_s
    finder = FaceFinder(detector, PORTRAIT_PX, StageClock(), pixel_aspect=aspect, small=True)
    expected = 0 if rate is None or info.duration_s is None else round(rate * info.duration_s)
    pictures = groupby(read_frames(video), lambda frame: frame.source_s)
    frames = in_background((next(repeated) for _, repeated in pictures), depth=_QUEUE_DEPTH, name="decode")
    count = 0
    with closing(finder.see(frames)) as seen_frames:
        for count, (frame, seen) in enumerate(seen_frames, 1):
            if seen is not None:
                recorder.add(frame, seen)
                portraits.add(square(frame.picture, aspect), seen)
            on_progress(Progress("finding faces", count, max(expected, count) if expected else None))
    tracks, numbers = recorder.tracks(mark_of(video, info, count))
    if not tracks.spans:
        raise finder.no_face(video, count)
    return tracks, {new: portraits.pictures[old] for old, new in numbers.items()}


class _Recorder:
    """Collects the rows of each track."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, array[float]]] = {}
        self._shots_s: list[float] = []
        self._shot = -1

    def add(self, frame: Frame, seen: FrameFaces) -> None:
        """The next frame."""
        time_s = round(float(frame.source_s), 6)
        if seen.shot != self._shot:
            self._shot = seen.shot
            self._shots_s.append(time_s)
        for one in seen.faces:
            _, rows = self._rows.setdefault(one.track_id, (one.person, array("d")))
            rows.extend((time_s, *one.face.box.tolist(), *one.face.points.ravel().tolist()))

    def tracks(self, clip: ClipMark) -> tuple[Tracks, dict[int, int]]:
        """All tracks, and the new number of each person, by the one given while tracking, but of those hardly seen."""
        found = [(person, np.array(rows).reshape(-1, COLUMNS)) for person, rows in self._rows.values()]
        found.sort(key=lambda one: float(one[1][0, 0]))
        seen_s = dict.fromkeys((person for person, _ in found), 0.0)
        for person, rows in found:
            seen_s[person] += float(rows[-1, 0] - rows[0, 0])
        lasting = [person for person, time_s in seen_s.items() if time_s >= min(_LEAST_SEEN_S, max(seen_s.values()))]
        numbers = {person: number for number, person in enumerate(lasting)}
        spans = tuple(FaceSpan(numbers[person], rows) for person, rows in found if person in numbers)
        return Tracks(clip, tuple(self._shots_s), spans), numbers


class _Portraits:
    """The best picture of each person: large and frontal."""

    def __init__(self) -> None:
        self.pictures: dict[int, UInt8Array] = {}
        self._scores: dict[int, float] = {}

    def add(self, picture: Picture, seen: FrameFaces) -> None:
        """The next frame."""
        for one in seen.faces:
            face = one.face
            score = float(face.box[3] - face.box[1]) / (1 + 4 * float(turn(face.points)))
            if score > _BETTER * self._scores.get(one.person, 0.0):
                self._scores[one.person] = score
                self.pictures[one.person] = _portrait(picture, face)


def _portrait(picture: Picture, face: Face) -> UInt8Array:
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
