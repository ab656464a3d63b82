"""The encoders of pictures: their names and limits, a choice among them, and how it is opened."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import cast

import av
from av import FFmpegError, VideoCodecContext, VideoFormat, VideoFrame, VideoStream
from av.codec.context import Flags as CodecFlags
from av.container import OutputContainer

from latentsync_trt.config import MODEL_FPS, Codec
from latentsync_trt.media.conversion import tag_color
from latentsync_trt.media.files import reason_of
from latentsync_trt.types import ColorTags, VideoInfo

CONTAINERS: dict[Codec, tuple[str, ...]] = {
    "h264": (".mp4", ".mov", ".mkv"),
    "hevc": (".mp4", ".mov", ".mkv"),
    "av1": (".mp4", ".mkv"),
    "prores": (".mov", ".mkv"),
    "ffv1": (".mkv",),
}
"""The containers of each codec that FFmpeg writes and common players read."""

_ENCODER_THREADS = min(16, os.cpu_count() or 1)
"""By default x264 starts 1.5 threads per core, each with a frame: more memory, but no faster."""

SVT_AV1 = "libsvtav1"
"""FFmpeg's name of SVT-AV1."""
_NVENC_HEVC = ("yuv420p", "p010le", "yuv444p", "yuv444p16le")

CHROMA_PLACES: dict[tuple[int, int] | None, str] = {
    (0, 1): "left",
    (1, 1): "center",
    (0, 0): "topleft",
    (1, 0): "top",
    (0, 2): "bottomleft",
    (1, 2): "bottom",
}
"""FFmpeg's names for where chroma samples lie (`VideoInfo.chroma_place`).

Those of mirrored pictures lie at the right, which no format can state.
"""
USUAL_CHROMA_X = 0
"""Where players expect chroma samples along x, if nothing is stated."""
USUAL_CHROMA_Y = 1
"""Where players expect chroma samples along y, if nothing is stated."""
PLACES_OF_ENCODERS = {
    "libx264": tuple(CHROMA_PLACES.values()),
    "libx265": tuple(CHROMA_PLACES.values()),
    SVT_AV1: ("left", "topleft"),
}
"""The places of chroma samples that an encoder states in its own stream, for 4:2:0."""
_PLACES_IN_MKV = ("left", "center", "topleft", "top")
"""The places of chroma samples that the header of Matroska states, for any sampling."""

_INTERLACED = ("libx264", "prores_ks", "ffv1")
"""Encoders with a mode for interlaced pictures."""
_FIELD_ORDERS = {None: 1, True: 4, False: 5}
"""FFmpeg's numbers for progressive pictures, and for interlaced ones by `top_field_first`."""


@dataclass(frozen=True, slots=True)
class Library:
    """An encoder and its settings."""

    ffmpeg: str
    """FFmpeg's name of the encoder."""
    crf: int | None = None
    """The default of its setting for quality; None if it has none."""
    worst_crf: int = 0
    preset: str = ""
    """The default of its setting for speed."""
    speed: str = "preset"
    """The name of its setting for speed."""
    formats: tuple[str, ...] = ()
    """Pixel formats to choose from; empty = all."""


LIBRARIES: dict[tuple[Codec, str], Library] = {
    ("h264", "x264"): Library("libx264", 16, 51, "veryfast"),
    ("hevc", "x265"): Library("libx265", 18, 51, "medium"),
    ("av1", "svtav1"): Library(SVT_AV1, 24, 63, "8"),
    ("prores", "prores"): Library("prores_ks", speed="profile"),
    ("ffv1", "ffv1"): Library("ffv1"),
    ("h264", "nvenc"): Library("h264_nvenc", 16, 51, "p5", formats=("yuv420p", "yuv444p")),
    ("hevc", "nvenc"): Library("hevc_nvenc", 18, 51, "p5", formats=_NVENC_HEVC),
    ("av1", "nvenc"): Library("av1_nvenc", 24, 63, "p5", formats=("yuv420p", "p010le")),
}
"""Encoders by codec and by the name that `--encoder` has for them.

The presets of x264 differ little in quality and by a tenth in size; this one is fast enough. x265
gains 2 dB and a quarter in size from veryfast to medium, for a third more work. NVENC is separate
hardware, which p5 does not slow down; only the newest have 4:2:2.
"""
ON_CPU: dict[Codec, str] = {codec: name for codec, name in LIBRARIES if name != "nvenc"}
"""The encoder of each codec that needs no GPU."""


@dataclass(frozen=True, slots=True)
class ChromaSampling:
    """How many chroma samples a pixel format has in 16 pixels: 16, 8 or 4."""

    columns: int
    rows: int


def chroma_sampling(form: VideoFormat) -> ChromaSampling:
    return ChromaSampling(form.chroma_width(16), form.chroma_height(16))


@dataclass(frozen=True, slots=True)
class VideoEncoder:
    """An encoder with all its settings, for pictures of one kind."""

    codec: Codec
    ffmpeg: str
    """FFmpeg's name of the encoder."""
    pixel_format: str
    """FFmpeg's name of the encoded pictures' format."""
    width_px: int
    """Width of the encoded picture, even where the format needs it."""
    height_px: int
    """Height of the encoded picture, even where the format needs it."""
    color: ColorTags
    options: tuple[tuple[str, str], ...]
    """FFmpeg's options for the encoder, by name."""
    notices: tuple[str, ...] = ()
    """What the encoder cannot preserve of the source."""
    chroma_place: tuple[int, int] | None = None
    """As in `VideoInfo`."""
    top_field_first: bool | None = None
    """As in `VideoInfo`."""

    @property
    def frame_tags(self) -> str:
        """What FFmpeg's filter `setparams` is to set in pictures besides color tags."""
        tags = list[str]()
        place = CHROMA_PLACES.get(self.chroma_place)
        if place is not None:
            tags.append(f"chroma_location={place}")
        if self.top_field_first is not None:
            tags.append("field_mode=tff" if self.top_field_first else "field_mode=bff")
        return ":".join(tags)

    @property
    def keeps_fields(self) -> bool:
        """Whether readers learn which fields the pictures have. Those of H.264 believe the stream,
        all others the container.
        """
        return self.top_field_first is None or self.ffmpeg in _INTERLACED or self.codec != "h264"

    def keeps_chroma_place(self, suffix: str) -> bool:
        """Whether readers of a container learn `chroma_place`, or assume it."""
        if self.chroma_place is None:
            return True
        x, y = self.chroma_place
        sampling = chroma_sampling(VideoFormat(self.pixel_format))
        is_usual_x = sampling.columns == 16 or x == USUAL_CHROMA_X
        is_usual_y = sampling.rows == 16 or y == USUAL_CHROMA_Y
        if is_usual_x and is_usual_y:
            return True
        name = CHROMA_PLACES.get(self.chroma_place)
        # Readers of H.264 and HEVC in Matroska believe the stream, not the container.
        believes_container = suffix == ".mkv" and self.codec not in ("h264", "hevc")
        if believes_container and name in _PLACES_IN_MKV:
            return True
        return sampling == ChromaSampling(8, 8) and name in PLACES_OF_ENCODERS.get(self.ffmpeg, ())


def add_video(
    container: OutputContainer, encoder: VideoEncoder, info: VideoInfo, time_base: Fraction
) -> VideoStream:
    """Adds the encoder of the source `info` to a container, with stamps in `time_base`."""
    rate = info.frames_per_s or Fraction(MODEL_FPS)
    options = dict(encoder.options)
    # PyAV's types know only some encoders by name.
    stream = cast(VideoStream, container.add_stream(encoder.ffmpeg, rate=rate, options=options))
    context = stream.codec_context
    _set_up(context, encoder)
    stream.time_base = time_base
    context.time_base = time_base
    context.sample_aspect_ratio = info.sample_aspect_ratio
    if encoder.ffmpeg == SVT_AV1:
        with _same_priority():
            context.open()
    return stream


@cache  # as NVENC takes long
def problem_of(encoder: VideoEncoder) -> str | None:
    """Returns why encoding one picture fails; None if it does not."""
    try:
        context = cast(VideoCodecContext, av.CodecContext.create(encoder.ffmpeg, "w"))
        _set_up(context, encoder)
        context.time_base = Fraction(1, 25)
        context.options = dict(encoder.options)
        with _same_priority():
            context.encode(VideoFrame(encoder.width_px, encoder.height_px, encoder.pixel_format))
            context.encode(None)
    except (FFmpegError, ValueError, OSError) as error:
        return reason_of(error)
    return None


@contextmanager
def _same_priority() -> Iterator[None]:
    """Gives the threads that start in the block, and this one, the priority of this one back.

    Opened by root, SVT-AV1 gives them the highest real-time priority, which later child processes
    inherit: all else would wait.
    """
    if sys.platform != "linux":
        yield
        return
    policy = os.sched_getscheduler(0)
    priority = os.sched_getparam(0)
    try:
        yield
    finally:
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # the thread has ended
                if os.sched_getscheduler(int(task.name)) == os.SCHED_FIFO:
                    os.sched_setscheduler(int(task.name), policy, priority)


def _set_up(context: VideoCodecContext, encoder: VideoEncoder) -> None:
    # SVT-AV1 reads this when it opens; by default it reports its settings on standard error.
    os.environ.setdefault("SVT_LOG", "1")
    context.width = encoder.width_px
    context.height = encoder.height_px
    context.pix_fmt = encoder.pixel_format
    context.thread_count = _ENCODER_THREADS
    if encoder.ffmpeg == "libx264":  # by default slices: of 16 threads, 2 % larger files
        context.thread_type = "FRAME"
    tag_color(context, encoder.color)
    context.field_order = _FIELD_ORDERS[encoder.top_field_first]
    if encoder.top_field_first is not None and encoder.ffmpeg in _INTERLACED:
        context.flags |= CodecFlags.interlaced_dct
