"""Video input: upright frames at a constant rate, one at a time."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, repeat
from pathlib import Path

from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from latentsync_trt.config import MODEL_FPS, Extend
from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.conversion import DIRECT_FORMATS, FrameConverter, orientation_of
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.timing import at_constant_rate, on_own_clock
from latentsync_trt.types import Frame, Picture, VideoInfo, YuvPlanes

_CONTAINER_TICKS_PER_S = 1_000_000
_PROGRESSIVE_ORDERS = (0, 1)
"""FFmpeg's field orders "unknown" and "progressive"; all others are interlaced."""

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
        width_px, height_px, aspect = frame.width, frame.height, stream.sample_aspect_ratio or Fraction(1)
        if transposed:
            width_px, height_px, aspect = height_px, width_px, 1 / aspect
        return VideoInfo(
            width_px=width_px,
            height_px=height_px,
            duration_s=_duration_s(container, stream),
            pixel_format=frame.format.name,
            interlaced=frame.interlaced_frame or stream.codec_context.field_order not in _PROGRESSIVE_ORDERS,
            sample_aspect_ratio=aspect,
        )


def read_frames(
    path: Path, *, rgb_only: bool = False, frame_count: int | None = None, extend: Extend | None = None
) -> Iterator[Frame]:
    """Frames of the first video stream, upright, resampled to the model's rate by `timing.at_constant_rate`.

    Args:
        rgb_only: convert to RGB directly from the source's own format; `Frame.planes` is None.
        frame_count: stop after this many frames; None = at the end of the video.
        extend: at the end of the video, "loop" restarts it and "hold" repeats its last frame (the same arrays), both
            without end; None stops.

    Yields:
        Frames with index k = 0, 1, … and time k / 25. `planes` are the decoder's own bytes for 8-bit 4:2:0 sources;
        `picture` is computed from them on access. Both are read-only, as repeated frames share them.

    Raises:
        MediaError: the file cannot be read, has no picture, or breaks off; the message gives the time.
    """
    for index, (picture, planes) in enumerate(islice(_extended(path, rgb_only, extend), frame_count)):
        yield Frame(index, Fraction(index, MODEL_FPS), picture, planes)


def _extended(path: Path, rgb_only: bool, extend: Extend | None) -> Iterator[_Converted]:
    """The video's pictures, endless if `extend` is given."""
    last = None
    for last in _pictures(path, rgb_only):
        yield last
    if last is None:
        raise MediaError(f"{path}: its video stream has no picture")
    if extend == "hold":
        yield from repeat(last)
    while extend == "loop":
        yield from _pictures(path, rgb_only)


def _pictures(path: Path, rgb_only: bool) -> Iterator[_Converted]:
    """The pictures of one pass through the video. A repeated picture is converted once."""
    with open_input(path) as container:
        stream = _video_stream(path, container)
        stream.thread_type = "AUTO"
        decoded = on_own_clock(_decoded(path, container, stream), _period_s(stream))
        converter, frame, converted = FrameConverter(), None, None
        for shown in at_constant_rate(decoded, MODEL_FPS):
            if converted is None or shown is not frame:
                with reading(path, "its pictures cannot be converted"):
                    frame, converted = shown, _convert(converter, shown, rgb_only)
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
        time_base = frame.time_base or stream.time_base or Fraction(1, _CONTAINER_TICKS_PER_S)
        stamp_s = None if frame.pts is None else frame.pts * time_base
        time_s = time_s if stamp_s is None else stamp_s
        size = size or (frame.width, frame.height)
        if size != (frame.width, frame.height):
            raise MediaError(
                f"{path}: its pictures change from {size[0]}×{size[1]} to {frame.width}×{frame.height} after "
                f"{float(time_s):.2f} s; re-encode it at one size"
            )
        yield stamp_s, frame.duration * time_base if frame.duration > 0 else None, frame


def _convert(converter: FrameConverter, frame: VideoFrame, rgb_only: bool) -> _Converted:
    if rgb_only and frame.format.name not in DIRECT_FORMATS:
        return converter.rgb(frame), None
    planes = converter.planes(frame)
    return LazyRgb(planes), None if rgb_only else planes


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    """The first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    raise MediaError(f"{path}: has no video stream")


def _period_s(stream: VideoStream) -> Fraction:
    """Seconds between pictures that have no time stamps."""
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate
    return 1 / Fraction(rate) if rate else Fraction(1, MODEL_FPS)


def _duration_s(container: InputContainer, stream: VideoStream) -> Fraction | None:
    if stream.duration is not None and stream.time_base is not None:
        return stream.duration * stream.time_base
    return None if container.duration is None else Fraction(container.duration, _CONTAINER_TICKS_PER_S)
