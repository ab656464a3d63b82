"""The two pictures that `demo` draws of its result: faces side by side, and the lips over time."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from latentsync_trt.config import MODEL_FPS, SyncOptions
from latentsync_trt.measure.clips import face_views, masked, measure_clip, square_rgb
from latentsync_trt.measure.lips import measure_lips
from latentsync_trt.measure.moments import speaking_moments
from latentsync_trt.measure.page import SHOWN_PX, face_grid, sync_figure, write_png
from latentsync_trt.media.demo_clip import SpokenClip, spoken_words
from latentsync_trt.media.playback import Playback
from latentsync_trt.media.reader import delays_of, read_frames
from latentsync_trt.types import ProgressCallback, UInt8Array

SIDE_BY_SIDE = "side_by_side.png"
"""Name of the picture with source, masked face and result where the mouth is widest, round, shut
and silent.
"""
SYNC_PLOT = "sync.png"
"""Name of the picture with speech and mouth over time."""


def write_demo_pictures(
    result: Path, clip: SpokenClip, resolution_px: int, on_progress: ProgressCallback | None = None
) -> str:
    """Measures the `result` of `clip` and draws both pictures beside it; returns how lips follow.

    Args:
        resolution_px: of the faces that the networks painted.
    """
    delays = delays_of(clip.video, clip.audio)
    curves = measure_clip(result, clip.audio, delay_s=delays.sound_s, on_progress=on_progress)
    lips = measure_lips(curves).with_figures
    moments = speaking_moments(curves, spoken_words(clip.audio))
    plot = sync_figure({"measured in the result": curves}, f"Lips: {lips}", moments)
    write_png(result.with_name(SYNC_PLOT), plot)
    rate = Fraction(MODEL_FPS)
    playback = Playback(rate, len(curves) / rate, SyncOptions().extend, delays.picture_s)
    frames = [
        _frames_at(moments, clip.video, playback),
        _frames_at(moments, result, Playback(rate)),
    ]
    columns = dict[str, Sequence[UInt8Array]]()
    for index, faces in zip(sorted(moments), face_views(frames, SHOWN_PX), strict=False):
        if faces is not None:
            source, painted = faces
            label = moments[index]
            columns[label] = (source, masked(source, resolution_px), painted)
    rows = ("source", "masked", "result")
    write_png(result.with_name(SIDE_BY_SIDE), face_grid(rows, columns))
    return lips


def _frames_at(moments: Mapping[int, str], video: Path, playback: Playback) -> Iterator[UInt8Array]:
    """Yields the frames that are shown, alone: following the face through all takes a second."""
    for index, frame in enumerate(square_rgb(video, read_frames(video, playback))):
        if index in moments:
            yield frame
