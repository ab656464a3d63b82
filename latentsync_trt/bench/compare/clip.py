"""The clip of a comparison: what is known of it before a run, and what both results of it show."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np

from latentsync_trt.audio.vad import SILENCE_DBFS, silent_share
from latentsync_trt.bench.files import png
from latentsync_trt.bench.material import Clip, generated_part, square_rgb
from latentsync_trt.bench.moments import SHOWN_PX, Faces, choose_moments, face_grid, face_views, shown
from latentsync_trt.bench.pictures import Likeness, LikenessMeter
from latentsync_trt.bench.sync_measure import measure_clip
from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.sync.html import write_file
from latentsync_trt.sync.lips import Curves, SyncScore, agreement, joined, score
from latentsync_trt.types import Float32Array, ProgressCallback, UInt8Array

GAIN = 8
"""How many times the difference of pictures is enlarged."""

# The mouth in 1/256 of an aligned face. On four clips of real faces the lips' outline, wide open or shut, stays within
# x = 70 to 189 and y = 135 to 193.
_MOUTH_ROWS, _MOUTH_COLUMNS = (124, 204), (64, 196)
_UNIT = 256

# The second difference of white noise has 1 + 4 + 1 times its variance; steady movement has none.
_FLICKER_GAIN = 6.0


Area = Literal["generated", "mouth"]


@dataclass(frozen=True, slots=True)
class Lips:
    """How the lips of both follow the speech, and B's follow A's.

    `missing_a`, `missing_b`: frames without a face. Of the gap between the lips, in distances between the outer corners
    of the eyes: `moved_a`, `moved_b`, its standard deviation; `alike`, the correlation of both; `apart`, their mean
    difference.
    """

    a: SyncScore
    b: SyncScore
    missing_a: int
    missing_b: int
    moved_a: float
    moved_b: float
    alike: float
    apart: float


@dataclass(frozen=True, slots=True)
class ClipResults:
    """What was measured on the clip.

    `flicker`: change from frame to frame that is no movement, as the standard deviation of the noise that would cause
    it, in levels of 255, on the mouth: of "source", "a", "b", and "difference", B minus A; None in clips of less than
    three frames. `picture`, `video`: names of the files that show both side by side.
    """

    name: str
    frames: int
    frames_with_face: int
    areas: Mapping[Area, Likeness]
    lips: Lips
    a: Curves
    b: Curves
    flicker: Mapping[str, float | None]
    picture: str
    video: str


def check_speech(audio: Path) -> None:
    """Raises `InputError` if the recording is silent, `MediaError` if it cannot be read."""
    if silent_share(read_audio_blocks(audio)) == 1.0:
        raise InputError(
            f"{audio}: silent (never above {SILENCE_DBFS:.0f} dB of full scale): lips have nothing to follow; "
            "give speech with --audio",
            usage=False,
        )


def measure(
    videos: tuple[Path, Path],
    clip: Clip,
    report: Path,
    side_px: int,
    *,
    extend: Extend = "loop",
    on_progress: ProgressCallback | None = None,
) -> ClipResults:
    """Measures the results of A and of B, and writes the picture and the video that show them.

    Args:
        report: picture and video are named after it. side_px: of the faces to compare. extend: how the source goes on
            where it ends before the results.

    Raises:
        InputError: too few frames show a face, or pictures differ in size. OutputError: a file cannot be written.
        MediaError: one cannot be read.
    """
    delays = delays_of(clip.video, clip.audio)
    a, b = (
        measure_clip(video, clip.audio, clip.mouth, delay_s=delays.sound_s, on_progress=on_progress) for video in videos
    )
    a, b = joined(a.gaps[: len(b)], a.level_db, a.mouth), joined(b.gaps[: len(a)], b.level_db, b.mouth)
    lips = compare_lips(a, b, clip.video.name)
    shown = Playback(Fraction(MODEL_FPS), Fraction(len(a), MODEL_FPS))
    source = read_frames(clip.video, replace(shown, extend=extend, delay_s=delays.picture_s))
    results = (square_rgb(video, read_frames(video, shown)) for video in videos)
    views = face_views([square_rgb(clip.video, source), *results], side_px)
    meter, kept = FaceMeter(side_px), dict[str, Sequence[UInt8Array]]()
    picture, video = report.with_suffix(".png"), report.with_suffix(".mp4")
    side_by_side = _side_by_side(views, meter, choose_moments(a), kept)
    write_pictures(video, side_by_side, audio=clip.audio, audio_delay_s=delays.sound_s)
    areas = meter.areas()
    write_file(picture, png(face_grid(("source", "A", "B", f"difference × {GAIN}"), kept)))
    return ClipResults(
        name=clip.video.name,
        frames=len(a),
        frames_with_face=areas["mouth"].frames,
        areas=areas,
        lips=lips,
        a=a,
        b=b,
        flicker=meter.flicker(),
        picture=picture.name,
        video=video.name,
    )


def compare_lips(a: Curves, b: Curves, name: str) -> Lips:
    """The numbers of both curves, which have one length.

    Raises:
        InputError: too few frames of one, or of both at the same time, show a face.
    """
    try:
        scores = score(a), score(b)
        alike = agreement(b.gaps, a.gaps).correlation
    except InputError as error:
        cure = "give a longer clip, or one that shows the face"
        raise InputError(f"{name}: {error}; {cure}", usage=False) from error
    return Lips(
        *scores,
        missing_a=int(np.isnan(a.gaps).sum()),
        missing_b=int(np.isnan(b.gaps).sum()),
        moved_a=float(np.nanstd(a.gaps)),
        moved_b=float(np.nanstd(b.gaps)),
        alike=1.0 if np.array_equal(a.gaps, b.gaps, equal_nan=True) else alike,
        apart=float(np.nanmean(np.abs(a.gaps - b.gaps))),
    )


class FlickerMeter:
    """Change from picture to picture that is no movement; keeps three pictures."""

    def __init__(self) -> None:
        self._last: deque[Float32Array] = deque(maxlen=3)
        self._squares: list[float] = []

    def add(self, picture: Float32Array | None) -> None:
        """The next picture, of one shape with the last; None where there is none, which begins a new sequence."""
        if picture is None:
            self._last.clear()
            return
        self._last.append(picture)
        if len(self._last) == self._last.maxlen:
            first, middle, last = self._last
            self._squares.append(float(np.mean(np.square(first - 2 * middle + last, dtype=np.float64))))

    def result(self) -> float | None:
        """The standard deviation of the white noise that would change as much, in the pictures' unit; None where there
        were never three pictures in a row."""
        return float(np.sqrt(np.mean(self._squares) / _FLICKER_GAIN)) if self._squares else None


class FaceMeter:
    """Sums up the faces of source, A and B, frame by frame.

    Args:
        side_px: sides of the faces.
    """

    def __init__(self, side_px: int) -> None:
        self._parts = parts_of(side_px)
        self._areas = {area: LikenessMeter() for area in self._parts}
        self._flicker = {name: FlickerMeter() for name in ("source", "a", "b", "difference")}

    def add(self, faces: Faces | None) -> None:
        """The faces of the next frame; None where the source shows none."""
        if faces is None:
            for meter in self._flicker.values():
                meter.add(None)
            return
        source, a, b = faces
        for area, part in self._parts.items():
            self._areas[area].add(a[part], b[part])
        mouths = [face[self._parts["mouth"]].astype(np.float32) for face in (source, a, b)]
        for meter, picture in zip(self._flicker.values(), (*mouths, mouths[2] - mouths[1]), strict=True):
            meter.add(picture)

    def areas(self) -> dict[Area, Likeness]:
        """How near B's faces are to A's; raises `InputError` where no frame showed a face."""
        return {area: meter.result() for area, meter in self._areas.items()}

    def flicker(self) -> dict[str, float | None]:
        """Of all frames."""
        return {name: meter.result() for name, meter in self._flicker.items()}


def parts_of(side_px: int) -> dict[Area, tuple[slice, slice]]:
    """Rows and columns of an aligned face: the rectangle around what is generated; the lips with some room."""
    rows, columns = (
        slice(start * side_px // _UNIT, end * side_px // _UNIT) for start, end in (_MOUTH_ROWS, _MOUTH_COLUMNS)
    )
    return {"generated": generated_part(side_px), "mouth": (rows, columns)}


def difference(a: UInt8Array, b: UInt8Array) -> UInt8Array:
    """What two pictures of one shape differ by, enlarged; white where it is too much to show."""
    return np.asarray(np.minimum(np.abs(a.astype(np.int16) - b) * GAIN, 255), np.uint8)


def _side_by_side(
    views: Iterable[Faces | None], meter: FaceMeter, moments: Mapping[int, str], kept: dict[str, Sequence[UInt8Array]]
) -> Iterator[UInt8Array]:
    """The frames of the video: source, A, B and their difference side by side.

    On the way `meter` is fed, and the pictures of the `moments` go into `kept`.
    """
    gray: UInt8Array = np.full((SHOWN_PX, SHOWN_PX, 3), 127, np.uint8)
    for index, faces in enumerate(views):
        meter.add(faces)
        cells = [gray] * 4
        if faces is not None:
            source, a, b = map(shown, faces)
            cells = [source, a, b, difference(a, b)]
            if index in moments:
                kept[moments[index]] = cells
        yield np.hstack(cells)
