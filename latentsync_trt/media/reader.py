"""Video input: upright frames at a constant rate, one at a time."""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import islice, repeat
from pathlib import Path

import av
from av.container import InputContainer
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.conversion import DIRECT_FORMATS, FrameConverter, orientation_of, tags_of
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.joints import origins_of
from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.refusals import check_picture, check_stream
from latentsync_trt.media.timing import at_constant_rate, clock_of, is_held, on_clock, period_s, stated_end_s
from latentsync_trt.types import Frame, Picture, VideoInfo, YuvPlanes

MOST_PIXELS = 139_264 * 16 * 16
"""Of a picture: the most in H.264 (level 6.2), 8192×4352. Beyond, a damaged header could ask for gigabytes."""

_PROGRESSIVE_ORDERS = (0, 1)
"""FFmpeg's field orders "unknown" and "progressive"; all others are interlaced."""

_TAGGED_TIME = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")

_Converted = tuple[Picture, YuvPlanes | None]


def probe(path: Path) -> VideoInfo:
    """Properties of the first video stream of `path`; decodes one frame.

    Raises:
        MediaError: the file cannot be read or has no video stream with a picture that can be decoded.
    """
    with open_input(path) as container:
        stream = _video_stream(path, container)
        with reading(path, "its video stream cannot be decoded"):
            frame = next(container.decode(stream), None)
            if frame is None:
                raise InputError("it has no picture")
            transposed = orientation_of(frame).transpose
            check_stream(path, stream)
            check_picture(path, frame)
            FrameConverter().planes(frame)  # fails now on what it cannot convert
        width_px, height_px, aspect = frame.width, frame.height, stream.sample_aspect_ratio or Fraction(1)
        if transposed:
            width_px, height_px, aspect = height_px, width_px, 1 / aspect
        start_s = _stamp_s(frame, stream)
        return VideoInfo(
            width_px=width_px,
            height_px=height_px,
            duration_s=_duration_s(container, stream, start_s),
            pixel_format=frame.format.name,
            interlaced=frame.interlaced_frame or stream.codec_context.field_order not in _PROGRESSIVE_ORDERS,
            sample_aspect_ratio=aspect,
            frames_per_s=stream.average_rate or None,
            color=tags_of(frame),
            start_s=start_s,
        )


def read_frames(
    path: Path,
    *,
    rgb_only: bool = False,
    frame_count: int | None = None,
    extend: Extend | None = None,
    delay_s: Fraction = Fraction(0),
) -> Iterator[Frame]:
    """Frames of the first video stream, upright, resampled to the model's rate by `timing.at_constant_rate`.

    Args:
        rgb_only: convert to RGB directly from the source's own format; `Frame.planes` is None.
        frame_count: stop after this many frames; None = at the end of the video.
        extend: at the end of the video, "loop" restarts it, unless `timing.is_held`, and "hold" repeats its last frame
            (the same arrays), both without end; None stops.
        delay_s: time of the first picture, which is also shown before.

    Yields:
        Frames with index k = 0, 1, … and time k / 25. `planes` are the decoder's own bytes for 8-bit 4:2:0 sources;
        `picture` is computed from them on access. Both are read-only, as repeated frames share them.

    Raises:
        MediaError: the file cannot be read, has no picture, or breaks off; the message gives the time.
    """
    for index, (picture, planes) in enumerate(_extended(path, rgb_only, frame_count, extend, delay_s)):
        yield Frame(index, Fraction(index, MODEL_FPS), picture, planes)


def _extended(
    path: Path, rgb_only: bool, frame_count: int | None, extend: Extend | None, delay_s: Fraction
) -> Iterator[_Converted]:
    """The first `frame_count` pictures, of several passes through the video if needed."""
    given, last = 0, None
    while frame_count is None or given < frame_count:
        left = None if frame_count is None else frame_count - given
        for last in islice(_pictures(path, rgb_only, Fraction(0) if given else delay_s), left):
            yield last
            given += 1
        if last is None:
            raise MediaError(f"{path}: its video stream has no picture")
        left = None if frame_count is None else frame_count - given
        if extend == "hold" or (extend == "loop" and left is not None and is_held(left, MODEL_FPS)):
            yield from repeat(last) if left is None else repeat(last, left)
            return
        if extend is None:
            return


def _pictures(path: Path, rgb_only: bool, delay_s: Fraction) -> Iterator[_Converted]:
    """The pictures of one pass through the video. A repeated picture is converted once."""
    with open_input(path) as container:
        stream = _video_stream(path, container)
        stream.thread_type = "AUTO"
        clock = clock_of(container, delay_s, origins=partial(origins_of, path, stream.index))
        decoded = on_clock(_decoded(path, container, stream), clock, period_s(stream))
        converter, frame, converted = FrameConverter(), None, None
        for shown in at_constant_rate(decoded, MODEL_FPS):
            if converted is None or shown is not frame:
                with reading(path, "its pictures cannot be converted"):
                    frame, converted = shown, _convert(path, converter, shown, rgb_only)
            yield converted


def _decoded(
    path: Path, container: InputContainer, stream: VideoStream
) -> Iterator[tuple[Fraction | None, Fraction | None, VideoFrame]]:
    """Time stamps, durations and decoded frames in presentation order."""
    size = None
    frames = container.decode(stream)
    time_s = Fraction(0)
    while True:
        with reading(path, f"its video breaks off after {float(time_s):.2f} s; repair or re-encode it"):
            frame = next(frames, None)
        if frame is None:
            return
        stamp_s = _stamp_s(frame, stream)
        time_s = time_s if stamp_s is None else stamp_s
        size = size or (frame.width, frame.height)
        if size != (frame.width, frame.height):
            raise MediaError(
                f"{path}: its pictures change from {size[0]}×{size[1]} to {frame.width}×{frame.height} after "
                f"{float(time_s):.2f} s; re-encode it at one size"
            )
        yield stamp_s, frame.duration * _time_base(frame, stream) if frame.duration > 0 else None, frame


def _convert(path: Path, converter: FrameConverter, frame: VideoFrame, rgb_only: bool) -> _Converted:
    check_picture(path, frame)
    if rgb_only and frame.format.name not in DIRECT_FORMATS:
        return converter.rgb(frame), None
    planes = converter.planes(frame)
    return LazyRgb(planes), None if rgb_only else planes


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            _check_size(path, stream)
            return stream
    raise MediaError(f"{path}: has no video stream")


def _check_size(path: Path, stream: VideoStream) -> None:
    context: VideoCodecContext | None = stream.codec_context  # PyAV's types leave the None out
    if context is not None and context.width * context.height > MOST_PIXELS:
        raise MediaError(
            f"{path}: its pictures have {context.width}×{context.height} pixels, more than {MOST_PIXELS / 1e6:.0f} "
            "million; scale it down"
        )


def _duration_s(container: InputContainer, stream: VideoStream, start_s: Fraction | None) -> Fraction | None:
    if stream.duration is not None and stream.time_base is not None:
        return stream.duration * stream.time_base
    end_s = _tagged_end_s(stream) or stated_end_s(container)
    return None if end_s is None else end_s - (start_s or 0)


def _tagged_end_s(stream: VideoStream) -> Fraction | None:
    """The end of a track in Matroska, where FFmpeg and others write it, as "00:01:02.345000000"."""
    parts = _TAGGED_TIME.fullmatch(stream.metadata.get("DURATION", ""))
    return None if parts is None else 3600 * int(parts[1]) + 60 * int(parts[2]) + Fraction(parts[3])


def _stamp_s(frame: VideoFrame, stream: VideoStream) -> Fraction | None:
    return None if frame.pts is None else frame.pts * _time_base(frame, stream)


def _time_base(frame: VideoFrame, stream: VideoStream) -> Fraction:
    return frame.time_base or stream.time_base or Fraction(1, av.time_base)
