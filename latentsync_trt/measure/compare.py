"""Compares two finished results of one clip, A and B: pictures and lips, as numbers, table and
page.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measure.clips import choose_moments, face_views, measure_clip, square_rgb
from latentsync_trt.measure.lips import joined, measured
from latentsync_trt.measure.page import SHOWN_PX, face_grid, svg, sync_figure, write_png
from latentsync_trt.measure.pictures import Likeness, compared, generated_part, mouth_part, overall
from latentsync_trt.measure.syncnet import SyncMeter, SyncNet, curves_of
from latentsync_trt.measures import TOO_SHORT, LipMeasure, SyncNetMeasure
from latentsync_trt.media.demo_clip import SpokenClip
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, read_frames
from latentsync_trt.media.writer import write_pictures
from latentsync_trt.types import Progress, ProgressCallback, UInt8Array

_GAIN = 8
"""How many times the difference of pictures is enlarged."""

HEADS = ("", "A", "B", "B against A")

Line = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class ClipResults:
    """What was measured on the clip.

    `areas`: of the "generated" part of the faces and of the "mouth". `lips`, `syncnet`: of A and B,
    if that measured.
    """

    name: str
    frames: int
    areas: Mapping[str, Likeness]
    lips: tuple[LipMeasure, LipMeasure]
    syncnet: tuple[SyncNetMeasure | None, ...] = ()

    def lines(self) -> Iterator[Line]:
        """Pictures and lips as lines of a table below `HEADS`."""
        a, b = self.lips
        yield "generated part", "", "", str(self.areas["generated"])
        yield "mouth", "", "", str(self.areas["mouth"])
        yield "lips", f"{a}", f"{b}", ""
        yield from _beside("agreement with the voice, r", a.agreement, b.agreement, ".2f")
        yield from _beside("deviations above chance", a.distinct, b.distinct, ".1f")
        yield from _beside("shut in silence", a.shut_in_silence, b.shut_in_silence, ".0%")
        if self.syncnet:
            first, second = (str(found or TOO_SHORT) for found in self.syncnet)
            yield "SyncNet", first, second, ""


def _beside(name: str, a: float | None, b: float | None, form: str) -> Iterator[Line]:
    """A line of two numbers in one format, and by how much B's is higher; none where one is
    unknown.
    """
    if a is not None and b is not None:
        if form.endswith("%"):
            change = f"{100 * (b - a):+.0f} points"
        else:
            change = format(b - a, f"+{form}")
        yield name, format(a, form), format(b, form), change


def labeled(on_progress: ProgressCallback, side: str) -> ProgressCallback:
    """`on_progress` with stages that name the side, as "A: lip-sync"."""
    return lambda progress: on_progress(replace(progress, stage=f"{side}: {progress.stage}"))


def compare_results(
    videos: tuple[Path, Path],
    clip: SpokenClip,
    report: Path,
    side_px: int,
    network: SyncNet | None,
    on_progress: ProgressCallback,
) -> tuple[ClipResults, dict[str, object]]:
    """Measures A and B at `side_px`, writes the picture and the video that show them, named after
    the `report`, and makes what else the page shows.

    Raises:
        InputError: no frame shows a face, or pictures differ in size. OutputError, MediaError: of a
            file.
    """
    delays = delays_of(clip.video, clip.audio)
    if network is None:
        meters = {}
    else:
        meters = {side: SyncMeter(network, clip.audio, delays.sound_s) for side in "AB"}
    measure = partial(measure_clip, audio=clip.audio, delay_s=delays.sound_s)
    pairs = zip("AB", videos, strict=True)
    curves = [
        measure(video, on_progress=labeled(on_progress, side), meter=meters.get(side))
        for side, video in pairs
    ]
    count = min(map(len, curves))
    both = {
        side: joined(each.gaps[:count], each.levels_db)
        for side, each in zip("AB", curves, strict=True)
    }
    played = Playback(Fraction(MODEL_FPS), Fraction(count, MODEL_FPS))
    original = read_frames(clip.video, replace(played, extend="loop", delay_s=delays.picture_s))
    results = (square_rgb(video, read_frames(video, played)) for video in videos)
    parts = {"generated": generated_part(side_px), "mouth": mouth_part(side_px)}
    areas = {area: list[tuple[float, float]]() for area in parts}
    moments = choose_moments(both["A"])
    columns = dict[str, Sequence[UInt8Array]]()

    def side_by_side() -> Iterator[UInt8Array]:
        for index, faces in enumerate(
            face_views([square_rgb(clip.video, original), *results], side_px)
        ):
            on_progress(Progress("comparing", index, count))
            if faces is None:
                yield np.full((SHOWN_PX, 4 * SHOWN_PX, 3), 127, np.uint8)
                continue
            for area, part in parts.items():
                areas[area].append(compared(faces[1][part], faces[2][part]))
            small = [
                cv2.resize(face, (SHOWN_PX, SHOWN_PX), interpolation=cv2.INTER_AREA)
                for face in faces
            ]
            source, a, b = np.asarray(small, np.uint8)
            row = (
                source,
                a,
                b,
                np.minimum(np.abs(a.astype(np.int16) - b) * _GAIN, 255).astype(np.uint8),
            )
            if index in moments:
                columns[moments[index]] = row
            yield np.hstack(row)

    picture = report.with_suffix(".png")
    video = report.with_suffix(".mp4")
    write_pictures(video, side_by_side(), audio=clip.audio, audio_delay_s=delays.sound_s)
    likeness = {area: overall(frames) for area, frames in areas.items()}
    shown = write_png(picture, face_grid(("source", "A", "B", f"difference × {_GAIN}"), columns))
    syncnet = {side: meter.result() for side, meter in meters.items()}
    figures = {"picture": shown, "video": video.name, "gain": _GAIN, "syncnet": curves_of(syncnet)}
    lips = measured(both["A"]), measured(both["B"])
    found = ClipResults(clip.video.name, count, likeness, lips, tuple(syncnet.values()))
    return found, {**figures, "lips": svg(sync_figure(both))}
