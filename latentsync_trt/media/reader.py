"""Video input: upright frames, one at a time."""

import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.conversion import FrameConverter, orientation_of, planes_format, planes_tags
from latentsync_trt.media.files import open_input, reading
from latentsync_trt.media.hdr_metadata import metadata_of
from latentsync_trt.media.lazy_rgb import LazyRgb
from latentsync_trt.media.passes import VideoPasses, stamp_of, video_stream
from latentsync_trt.media.playback import Playback, played
from latentsync_trt.media.refusals import check_picture, check_stream
from latentsync_trt.media.timing import frames_per_s, period_s, stated_end_s, time_base_of
from latentsync_trt.types import Frame, Picture, VideoInfo, YuvPlanes

_AS_IT_IS = Playback()

_PROGRESSIVE_ORDERS = (0, 1)
"""FFmpeg's field orders "unknown" and "progressive"; all others are interlaced."""

_TAGGED_TIME = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")

_Converted = tuple[Picture, YuvPlanes]


def probe(path: Path) -> VideoInfo:
    """Properties of the first video stream of `path`; decodes one frame.

    Raises:
        MediaError: the file cannot be read or has no video stream with a picture that can be decoded.
    """
    with open_input(path) as container:
        stream = video_stream(path, container)
        animated = "; if it is animated, convert it to GIF" if stream.codec_context.name == "webp" else ""
        with reading(path, f"its video stream cannot be decoded{animated}"):
            frame = next(container.decode(stream), None)
            if frame is None:
                raise InputError("it has no picture")
            transposed = orientation_of(frame).transpose
            check_stream(path, stream)
            check_picture(path, frame)
            hdr = metadata_of(frame)
            FrameConverter().planes(frame)  # fails now on what it cannot convert
        width_px, height_px, aspect = frame.width, frame.height, stream.sample_aspect_ratio or Fraction(1)
        if transposed:
            width_px, height_px, aspect = height_px, width_px, 1 / aspect
        start_s = stamp_of(frame, stream)
        return VideoInfo(
            width_px=width_px,
            height_px=height_px,
            duration_s=_duration_s(container, stream, start_s),
            pixel_format=planes_format(frame),
            interlaced=frame.interlaced_frame or stream.codec_context.field_order not in _PROGRESSIVE_ORDERS,
            sample_aspect_ratio=aspect,
            frames_per_s=frames_per_s(stream),
            color=planes_tags(frame),
            start_s=start_s,
            time_base=time_base_of(stream),
            hdr=hdr,
        )


def read_frames(path: Path, playback: Playback = _AS_IT_IS) -> Iterator[Frame]:
    """Frames of the first video stream, upright, as `playback` says.

    Yields:
        Frames with index k = 0, 1, …. `planes` are the decoder's own bytes where `conversion` supports their format;
        `picture` is computed from them on access. Both are read-only, as repeated frames share them: each is converted
        once.

    Raises:
        MediaError: the file cannot be read, has no picture, or breaks off; the message gives the time.
    """
    converter, frame, converted = FrameConverter(), None, None
    for index, shown in enumerate(played(VideoPasses(path, exact=playback.fps is None), playback)):
        picture = shown.item
        if converted is None or picture.item is not frame:
            with reading(path, "its pictures cannot be converted"):
                frame, converted = picture.item, _convert(path, converter, picture.item)
        yield Frame(index, shown.time_s, shown.duration_s, picture.time_s, *converted)
    if converted is None and playback.duration_s != 0:
        raise MediaError(f"{path}: its video stream has no picture")


def _convert(path: Path, converter: FrameConverter, frame: VideoFrame) -> _Converted:
    check_picture(path, frame)
    planes = converter.planes(frame)
    return LazyRgb(planes), planes


def _duration_s(container: InputContainer, stream: VideoStream, start_s: Fraction | None) -> Fraction | None:
    if container.format.name.endswith("_pipe"):  # FFmpeg's name for a still picture
        return period_s(stream)
    if stream.duration is not None and stream.time_base is not None:
        return stream.duration * stream.time_base
    end_s = _tagged_end_s(stream) or stated_end_s(container)
    return None if end_s is None else end_s - (start_s or 0)


def _tagged_end_s(stream: VideoStream) -> Fraction | None:
    """The end of a track in Matroska, where FFmpeg and others write it, as "00:01:02.345000000"."""
    parts = _TAGGED_TIME.fullmatch(stream.metadata.get("DURATION", ""))
    return None if parts is None else 3600 * int(parts[1]) + 60 * int(parts[2]) + Fraction(parts[3])
