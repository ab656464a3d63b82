"""Video input: upright frames; pictures that would silently come out wrong are refused."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np
from av import VideoFrame, VideoStream
from av.container import InputContainer
from av.sidedata.sidedata import Type

from latentsync_trt.errors import InputError, MediaError
from latentsync_trt.media.audio import first_sample_s, open_audio
from latentsync_trt.media.conversion import (
    FrameConverter,
    metadata_of,
    orientation_of,
    pixel_format_of,
    plane_views,
    side_data_of,
)
from latentsync_trt.media.decoding import (
    chroma_place_of,
    decode_pictures,
    decoding_mark,
    is_still,
    top_field_first,
)
from latentsync_trt.media.ending import end_of, knows_end
from latentsync_trt.media.files import open_input, picture_streams, reading
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.media.playback import Playback, VideoPasses, played, video_stream
from latentsync_trt.media.timing import (
    clock_of,
    frames_per_s,
    period_of,
    stamp_of,
    stated_end_s,
    time_base_of,
)
from latentsync_trt.paths import is_same_file
from latentsync_trt.types import Frame, VideoInfo, YuvPlanes

_AS_IT_IS = Playback()
_OPAQUE = 250
"""Least 8-bit alpha that counts as opaque: a mix with black changes such a pixel by less than
3 %.
"""
_VIEWS = {Type.SPHERICAL: "360°", Type.STEREO3D: "3D"}
"""Names of what `VideoInfo.views` says, by the side data that tell it."""
_TRANSPARENT = "is transparent; put it on a background first"


def probe(path: Path) -> VideoInfo:
    """Returns the properties of the main video stream of `path`, of which one frame is decoded;
    raises `MediaError`.
    """
    with open_input(path) as container:
        stream = video_stream(path, container)
        with reading(path, "its video stream cannot be decoded"):
            frame = next(decode_pictures(path, container, stream), None)
            if frame is None:
                raise InputError("it has no picture")
            side_data = side_data_of(frame)
            orientation = orientation_of(side_data)
            if stream.metadata.get("alpha_mode") == "1" and _has_alpha(path, stream.index):
                raise MediaError(f"{path}: {_TRANSPARENT}")
            _check_opaque(path, frame)
            hdr = metadata_of(int(frame.color_trc), side_data)
            planes = FrameConverter().planes(frame)
        aspect = stream.sample_aspect_ratio or Fraction(1)
        start_s = stamp_of(frame)
        rate = frames_per_s(path, stream)
        return VideoInfo(
            width_px=planes.y.shape[1],
            height_px=planes.y.shape[0],
            duration_s=_picture_duration_s(path, stream, rate, start_s),
            pixel_format=pixel_format_of(planes),
            # FFmpeg's 0 and 1 are "unknown" and "progressive".
            interlaced=frame.interlaced_frame or stream.codec_context.field_order not in (0, 1),
            sample_aspect_ratio=1 / aspect if orientation.transposes else aspect,
            frames_per_s=rate,
            color=planes.color,
            start_s=start_s,
            time_base=time_base_of(stream, rate),
            hdr=hdr,
            captions=Type.A53_CC in side_data,
            chroma_place=orientation.upright_place(chroma_place_of(stream)),
            top_field_first=orientation.upright_field(top_field_first(stream, frame)),
            views=tuple(view for kind, view in _VIEWS.items() if kind in side_data),
        )


def read_frames(
    path: Path,
    playback: Playback = _AS_IT_IS,
    store: Callable[[YuvPlanes], YuvPlanes] | None = None,
) -> Iterator[Frame]:
    """Yields frames of the main video stream, upright, as `playback` says.

    Their `planes` are the decoder's own bytes where `conversion` supports their format; their
    `picture` is computed from them on access. Both are read-only, as repeated frames share them.

    Args:
        store: may put planes elsewhere.

    Raises:
        MediaError: the file cannot be read, has no picture, or breaks off; the message gives the
            time.
    """
    converter = FrameConverter()
    decoded: VideoFrame | None = None
    for index, played_picture in enumerate(played(VideoPasses(path), playback)):
        source_picture = played_picture.item
        if source_picture.item is not decoded:
            decoded = source_picture.item
            with reading(path, "its pictures cannot be converted"):
                _check_opaque(path, decoded)
                planes = converter.planes(decoded)
            if store is not None:
                planes = store(planes)
            picture = LazyRgb(planes)
            mark = decoding_mark(decoded)
        yield Frame(
            index,
            played_picture.time_s,
            played_picture.duration_s,
            source_picture.time_s,
            picture,
            planes,
            damaged=mark.is_damaged,
            new_aspect=mark.new_aspect,
            has_captions=mark.has_captions,
        )
    if decoded is None and playback.duration_s != 0:
        raise MediaError(f"{path}: its video stream has no picture")


def _picture_duration_s(
    path: Path, stream: VideoStream, rate: Fraction | None, start_s: Fraction | None
) -> Fraction | None:
    """Returns how long the pictures last, at least one period; None where the file does not state
    that.
    """
    container = cast(InputContainer, stream.container)
    period_s = period_of(rate)
    if is_still(stream):
        return period_s
    if stream.duration is not None and stream.time_base is not None and knows_end(container):
        return stream.duration * stream.time_base
    latest_s = stated_end_s(container)
    if latest_s is None:
        return None
    # The header may state more than is there, and Matroska's the length or the end, depending on
    # what wrote it.
    end_s = end_of(path, stream.index).ends_s.get(stream.index, latest_s)
    return max(min(end_s, latest_s) - (start_s or 0), period_s)


def _has_alpha(path: Path, index: int) -> bool:
    """Returns whether the pictures of VP8 or VP9 come with alpha, which FFmpeg's decoders leave
    out. Recordings of Chromium are marked as transparent, but have none.
    """
    with open_input(path) as container:
        first = next(container.demux(container.streams[index]))
        return first.has_sidedata("matroska_block_additional")


def _check_opaque(path: Path, frame: VideoFrame) -> None:
    """Raises `MediaError` for a transparent pixel; alpha that is opaque, or all zero, is fine."""
    has_alpha = any(component.is_alpha for component in frame.format.components)
    if not has_alpha and not frame.format.has_palette:
        return
    alpha = plane_views(frame.reformat(format="gbrap", threads=1))[3]
    # All zero: some programs leave the fourth byte of a pixel empty.
    if int(np.min(alpha)) < _OPAQUE and np.any(alpha):
        raise MediaError(f"{path}: {_TRANSPARENT} ({frame.format.name})")


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds from the output's start to the first picture and sample; at least one is 0."""

    picture_s: Fraction = Fraction(0)
    sound_s: Fraction = Fraction(0)


def delays_of(video: Path, audio: Path) -> Delays:
    """Returns how much later than the other one the picture or the sound starts of a file that is
    both. Of another file with a picture of its own, the sound starts as much later as it does
    there. Raises `MediaError`.
    """
    is_one_file = is_same_file(video, audio)
    picture_s = probe(video).start_s if is_one_file else first_picture_s(audio)
    sound_s = first_sample_s(audio)
    if picture_s is None or sound_s is None:
        return Delays()
    with open_audio(audio) as stream:
        clock = clock_of(audio, stream)
    clock.advance(min(picture_s, sound_s), Fraction(0))
    delay_s = clock.advance(max(picture_s, sound_s), Fraction(0))
    if picture_s <= sound_s:
        return Delays(sound_s=delay_s)
    if is_one_file:
        return Delays(picture_s=delay_s)
    return Delays()


def first_picture_s(path: Path) -> Fraction | None:
    """Returns the first stamp of the pictures of a file, which need not be decoded; None without
    any.
    """
    with open_input(path) as container:
        stamps_s = [
            stream.start_time * (stream.time_base or Fraction(0))
            for stream in picture_streams(container)
            if stream.start_time is not None
        ]
    return min(stamps_s, default=None)
