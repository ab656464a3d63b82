"""Compares two finished results of one clip, A and B: pictures and lips, as numbers, table and
page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measure.clips import choose_moments, face_views, measure_clip, square_rgb
from latentsync_trt.measure.lips import Curves, measure_lips
from latentsync_trt.measure.page import SHOWN_PX, face_grid, svg, sync_figure, write_png
from latentsync_trt.measure.pictures import (
    FrameLikeness,
    Likeness,
    clip_likeness,
    frame_likeness,
    generated_area,
    mouth_area,
)
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet, curves_of
from latentsync_trt.measures import TOO_SHORT, LipMeasure, SyncNetMeasure
from latentsync_trt.media.demo_clip import SpokenClip
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import Delays, delays_of, read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import Progress, ProgressCallback, UInt8Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAIN = 8
"""How many times the difference of pictures is enlarged."""

COMPARISON_HEADS = ("", "A", "B", "B against A")


@dataclass(frozen=True, slots=True)
class ClipResults:
    """What was measured on the clip."""

    name: str
    frames: int
    areas: Mapping[str, Likeness]
    """How alike A and B are in the "generated" area of the faces, and in the "mouth"."""
    lips: tuple[LipMeasure, LipMeasure]
    """How the lips of A and of B follow."""
    syncnet: tuple[SyncNetMeasure | None, ...] = ()
    """What SyncNet measured of A and B, if it did."""

    def lines(self) -> Iterator[tuple[str, ...]]:
        """Yields pictures and lips as lines of a table below `COMPARISON_HEADS`."""
        a, b = self.lips
        yield "generated part", "", "", str(self.areas["generated"])
        yield "mouth", "", "", str(self.areas["mouth"])
        yield "lips", f"{a}", f"{b}", ""
        yield from _beside("agreement with the voice, r", a.agreement, b.agreement, ".2f")
        yield from _beside("deviations above chance", a.distinct, b.distinct, ".1f")
        yield from _beside("shut in silence", a.shut_in_silence, b.shut_in_silence, ".0%")
        if self.syncnet:
            yield "SyncNet", *(str(each or TOO_SHORT) for each in self.syncnet), ""


def _beside(name: str, a: float | None, b: float | None, form: str) -> Iterator[tuple[str, ...]]:
    """Yields a line of two numbers in one format, and by how much B's is higher; none where one is
    unknown.
    """
    if a is None or b is None:
        return
    change = format(b - a, f"+{form}")
    if form.endswith("%"):
        change = f"{100 * (b - a):+.0f} points"
    yield name, format(a, form), format(b, form), change


def labeled(on_progress: ProgressCallback, side: str) -> ProgressCallback:
    """Returns `on_progress` with stages that name the side, as "A: lip-sync"."""
    return lambda progress: on_progress(replace(progress, stage=f"{side}: {progress.stage}"))


class _FaceComparison:
    """Adds up how alike the faces of A and B are, and keeps those of some moments."""

    def __init__(self, side_px: int, moments: Mapping[int, str]) -> None:
        self._areas = {"generated": generated_area(side_px), "mouth": mouth_area(side_px)}
        self._moments = moments
        self._likeness = {name: list[FrameLikeness]() for name in self._areas}
        self._columns: dict[str, Sequence[UInt8Array]] = {}

    def side_by_side(
        self, views: Iterable[tuple[UInt8Array, ...] | None], on_frame: Callable[[int], None]
    ) -> Iterator[UInt8Array]:
        """Yields source, A, B and their difference in one picture for each frame, gray without a
        face; calls `on_frame` with its index.
        """
        for index, faces in enumerate(views):
            on_frame(index)
            if faces is None:
                yield np.full((SHOWN_PX, 4 * SHOWN_PX, 3), 127, np.uint8)
                continue
            source, a, b = faces
            for name, area in self._areas.items():
                self._likeness[name].append(frame_likeness(a[area], b[area]))
            row = _row(source, a, b)
            if index in self._moments:
                label = self._moments[index]
                self._columns[label] = row
            yield np.hstack(row)

    def grid(self) -> "Figure":
        """Returns a picture of source, A, B and their difference at the moments."""
        return face_grid(("source", "A", "B", f"difference × {_GAIN}"), self._columns)

    def likeness(self) -> dict[str, Likeness]:
        """Returns the likeness in each area; raises `InputError` without a face."""
        return {name: clip_likeness(frames) for name, frames in self._likeness.items()}


def _row(*faces: UInt8Array) -> Sequence[UInt8Array]:
    size = (SHOWN_PX, SHOWN_PX)
    source, a, b = (
        np.asarray(cv2.resize(face, size, interpolation=cv2.INTER_AREA), np.uint8) for face in faces
    )
    difference = np.abs(a.astype(np.int16) - b) * _GAIN
    return source, a, b, np.minimum(difference, 255).astype(np.uint8)


def compare_results(
    videos: Sequence[Path],
    clip: SpokenClip,
    report: Path,
    side_px: int,
    network: SyncNet | None,
    on_progress: ProgressCallback,
) -> tuple[ClipResults, dict[str, object]]:
    """Measures A and B at `side_px`, writes the picture and the video that show them, named after
    the `report`, and returns with the measures what else the page shows.

    Raises:
        InputError: no frame shows a face, or pictures differ in size.
        OutputError, MediaError: of a file.
    """
    delays = delays_of(clip.video, clip.audio)
    meters = dict[str, SyncMeter]()
    if network is not None:
        meters = {side: SyncMeter(network, clip.audio, delays.sound_s) for side in "AB"}
    curves = _measure_both(videos, clip.audio, delays.sound_s, meters, on_progress)
    count = len(curves["A"])
    comparison = _FaceComparison(side_px, choose_moments(curves["A"]))
    views = face_views(_pictures_of(clip, videos, count, delays), side_px)

    def on_frame(index: int) -> None:
        on_progress(Progress("comparing", index, count))

    video = report.with_suffix(".mp4")
    write_pictures(
        video,
        comparison.side_by_side(views, on_frame),
        audio=clip.audio,
        audio_delay_s=delays.sound_s,
    )
    syncnet = {side: meter.result() for side, meter in meters.items()}
    results = ClipResults(
        clip.video.name,
        count,
        comparison.likeness(),
        (measure_lips(curves["A"]), measure_lips(curves["B"])),
        tuple(syncnet.values()),
    )
    figures = {
        "picture": write_png(report.with_suffix(".png"), comparison.grid()),
        "video": video.name,
        "gain": _GAIN,
        "syncnet": curves_of(syncnet),
        "lips": svg(sync_figure(curves)),
    }
    return results, figures


def _measure_both(
    videos: Sequence[Path],
    audio: Path,
    delay_s: Fraction,
    meters: Mapping[str, SyncMeter],
    on_progress: ProgressCallback,
) -> dict[str, Curves]:
    """Returns the curves of A and B, as far as both go."""
    curves = dict[str, Curves]()
    for side, video in zip("AB", videos, strict=True):
        watch = labeled(on_progress, side)
        meter = meters.get(side)
        curves[side] = measure_clip(video, audio, delay_s=delay_s, on_progress=watch, meter=meter)
    count = min(map(len, curves.values()))
    return {
        side: Curves(each.gaps[:count], each.levels_db[:count]) for side, each in curves.items()
    }


def _pictures_of(
    clip: SpokenClip, videos: Sequence[Path], count: int, delays: Delays
) -> list[Iterator[UInt8Array]]:
    """Returns the pictures of the source and of its results, which are `count` frames long."""
    playback = Playback(Fraction(MODEL_FPS), Fraction(count, MODEL_FPS))
    extended = replace(playback, extend="loop", delay_s=delays.picture_s)
    source = square_rgb(clip.video, read_frames(clip.video, extended))
    return [source, *(square_rgb(video, read_frames(video, playback)) for video in videos)]
