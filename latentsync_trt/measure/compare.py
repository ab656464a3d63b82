"""Compares two finished results of one clip, A and B: pictures and lips, as numbers, table and page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.errors import InputError
from latentsync_trt.measure.clips import Faces, choose_moments, face_views, measure_clip, square_rgb
from latentsync_trt.measure.lips import Curves, SyncScore, agreement, joined, measured, score
from latentsync_trt.measure.page import SHOWN_PX, face_grid, svg, sync_figure, write_page, write_png
from latentsync_trt.measure.pictures import Likeness, LikenessMeter, generated_part, mouth_part
from latentsync_trt.measure.syncnet import SyncMeter, shown
from latentsync_trt.measures import TOO_SHORT, LipMeasure, SyncNetMeasure
from latentsync_trt.media.demo_clip import Clip
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import ProgressCallback, UInt8Array

GAIN = 8
"""How many times the difference of pictures is enlarged."""

HEADS = ("", "A", "B", "B against A")

Line = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Lips:
    """How the lips of both follow the speech, and B's follow A's.

    `spoken`: both beside the mouth that belongs to the speech, where it is known. Of the gap between the lips, in
    distances between the outer corners of the eyes: `moved_a`, `moved_b`, its standard deviation; `alike`, the
    correlation of both; `apart`, their mean difference.
    """

    a: LipMeasure
    b: LipMeasure
    spoken: tuple[SyncScore, SyncScore] | None
    moved_a: float
    moved_b: float
    alike: float
    apart: float


@dataclass(frozen=True, slots=True)
class ClipResults:
    """What was measured on the clip.

    `areas`: of the "generated" part of the faces and of the "mouth". `picture`, `video`: names of the files that show
    both side by side. `syncnet`: of A and B, if it measured.
    """

    name: str
    frames: int
    frames_with_face: int
    areas: Mapping[str, Likeness]
    lips: Lips
    a: Curves
    b: Curves
    picture: str
    video: str
    syncnet: tuple[SyncNetMeasure | None, ...] = ()


def measure(
    videos: tuple[Path, Path],
    clip: Clip,
    report: Path,
    side_px: int,
    *,
    extend: Extend = "loop",
    on_progress: ProgressCallback | None = None,
    meters: Sequence[SyncMeter] = (),
) -> ClipResults:
    """Measures the results of A and of B, and writes the picture and the video that show them.

    Args:
        report: picture and video are named after it. side_px: of the faces to compare. extend: how
            the source goes on where it ends before the results. meters: new ones of A and B, if any.

    Raises:
        InputError: too few frames show a face, or pictures differ in size. OutputError: a file
        cannot be written. MediaError: one cannot be read.
    """
    delays = delays_of(clip.video, clip.audio)
    curves_of = partial(measure_clip, delay_s=delays.sound_s, on_progress=on_progress)
    pairs = zip(videos, meters or (None, None), strict=True)
    a, b = (curves_of(video, clip.audio, clip.mouth, meter=meter) for video, meter in pairs)
    a, b = joined(a.gaps[: len(b)], a.levels_db, a.mouth), joined(b.gaps[: len(a)], b.levels_db, b.mouth)
    lips = compare_lips(a, b, clip.video.name)
    played = Playback(Fraction(MODEL_FPS), Fraction(len(a), MODEL_FPS))
    source = read_frames(clip.video, replace(played, extend=extend, delay_s=delays.picture_s))
    results = (square_rgb(video, read_frames(video, played)) for video in videos)
    views = face_views([square_rgb(clip.video, source), *results], side_px)
    meter = FaceMeter(side_px, choose_moments(a))
    picture, video = report.with_suffix(".png"), report.with_suffix(".mp4")
    write_pictures(video, map(meter.add, views), audio=clip.audio, audio_delay_s=delays.sound_s)
    areas = {area: likeness.result() for area, likeness in meter.areas.items()}
    write_png(picture, face_grid(("source", "A", "B", f"difference × {GAIN}"), meter.shown))
    count = areas["mouth"].frames
    found = tuple(meter.result() for meter in meters)
    return ClipResults(clip.video.name, len(a), count, areas, lips, a, b, picture.name, video.name, found)


def compare_lips(a: Curves, b: Curves, name: str) -> Lips:
    """The numbers of both curves, which have one length.

    Raises:
        InputError: too few frames of one, or of both at the same time, show a face.
    """
    try:
        spoken = (score(a.gaps, a.mouth), score(b.gaps, b.mouth)) if a.mouth and b.mouth else None
        alike = agreement(b.gaps, a.gaps).correlation
    except InputError as error:
        raise InputError(f"{name}: {error}; give a longer clip, or one that shows the face", usage=False) from error
    alike = 1.0 if np.array_equal(a.gaps, b.gaps, equal_nan=True) else alike
    moved_a, moved_b = (float(np.nanstd(each.gaps)) for each in (a, b))
    apart = float(np.nanmean(np.abs(a.gaps - b.gaps)))
    return Lips(measured(a), measured(b), spoken, moved_a, moved_b, alike, apart)


class FaceMeter:
    """Sums up the faces of source, A and B, frame by frame, and shows them side by side.

    `areas`: how near B's "generated" part and "mouth" are to A's. `shown`: the faces at the `moments` (index → label)
    by label. `side_px`: of the faces.
    """

    def __init__(self, side_px: int, moments: Mapping[int, str]) -> None:
        self._parts = {"generated": generated_part(side_px), "mouth": mouth_part(side_px)}
        self.areas = {area: LikenessMeter() for area in self._parts}
        self._moments, self._index = moments, -1
        self.shown: dict[str, Sequence[UInt8Array]] = {}

    def add(self, faces: Faces | None) -> UInt8Array:
        """Adds the next frame, None where the source shows no face; returns source, A, B and difference in a row."""
        self._index += 1
        if faces is None:
            return np.full((SHOWN_PX, 4 * SHOWN_PX, 3), 127, np.uint8)
        for area, part in self._parts.items():
            self.areas[area].add(faces[1][part], faces[2][part])
        size = (SHOWN_PX, SHOWN_PX)
        source, a, b = (np.asarray(cv2.resize(face, size, interpolation=cv2.INTER_AREA), np.uint8) for face in faces)
        row = source, a, b, np.minimum(np.abs(a.astype(np.int16) - b) * GAIN, 255).astype(np.uint8)
        if self._index in self._moments:
            self.shown[self._moments[self._index]] = row
        return np.hstack(row)


def lines_of(clip: ClipResults) -> Iterator[Line]:
    """Pictures and lips as lines of a table below `HEADS`."""
    yield "generated part", "", "", str(clip.areas["generated"])
    yield "mouth", "", "", str(clip.areas["mouth"])
    lips, a, b = clip.lips, clip.lips.a, clip.lips.b
    yield "lips", f"{a}", f"{b}", ""
    yield from _beside("agreement with the voice, r", a.agreement, b.agreement, ".2f")
    yield from _beside("deviations above chance", a.distinct, b.distinct, ".1f")
    if lips.spoken is not None:
        ours, theirs = lips.spoken
        yield from _beside("opening follows the spoken mouth, r", ours.opening, theirs.opening, ".3f")
        yield from _beside("frames late", ours.lag_frames, theirs.lag_frames, ".0f")
        yield from _beside("m, b, p shown shut", ours.closures, theirs.closures, ".0%")
    yield from _beside("shut in silence", a.shut_in_silence, b.shut_in_silence, ".0%")
    ratio = f"{lips.moved_b / lips.moved_a:.2f}×" if lips.moved_a else "–"
    yield "lips move by", f"{lips.moved_a:.4f}", f"{lips.moved_b:.4f}", ratio
    yield "lips of B follow A's, r", "", "", f"{lips.alike:.3f}, {lips.apart:.4f} apart"
    if clip.syncnet:
        first, second = (str(found or TOO_SHORT) for found in clip.syncnet)
        yield "SyncNet", first, second, ""


def _beside(name: str, a: float | None, b: float | None, form: str) -> Iterator[Line]:
    """A line of two numbers in one format, and by how much B's is higher; none where one is unknown."""
    if not (a is None or b is None or math.isnan(a) or math.isnan(b)):
        change = f"{100 * (b - a):+.0f} points" if form.endswith("%") else format(b - a, f"+{form}")
        yield name, format(a, form), format(b, form), change


def write_report(path: Path, clip: ClipResults, meters: Sequence[SyncMeter], **texts: object) -> None:
    """Writes the page beside the pictures; `meters`: those of `measure`; `texts`: what else its template shows."""
    picture, lips = path.with_name(clip.picture).read_bytes(), svg(sync_figure({"A": clip.a, "B": clip.b}))
    found = shown(dict(zip("AB", meters, strict=False)))
    write_page(
        path, "compare.html.j2", heads=HEADS, gain=GAIN, clip=clip, picture=picture, lips=lips, syncnet=found, **texts
    )
