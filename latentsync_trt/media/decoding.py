"""Decoded pictures as players show them: cropped, and photos put together from tiles."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
from av import FFmpegError, VideoFrame, VideoStream
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

from latentsync_trt.errors import InputError
from latentsync_trt.media.color import UNSPECIFIED
from latentsync_trt.media.color_profile import ColorProfile, color_profile_of
from latentsync_trt.media.files import codec_name
from latentsync_trt.media.filters import apply_filters
from latentsync_trt.media.heif import compose_photo

# In Matroska a value begins with its length. After width and height of a video follow, among
# others, pixels to hide.
_VIDEO_SETTINGS = re.compile(
    rb"(?s)\xb0[\x81-\x84].{1,4}?\xba[\x81-\x84].{1,4}?((?:[\x9a\x9d]\x81.|[ST].(?:\x81.|\x82..))+)"
)
_HIDDEN_EDGE = re.compile(rb"(?s)T([\xaa\xbb\xcc\xdd])(\x81.|\x82..)")
_BOTTOM = b"\xaa"
_TOP = b"\xbb"
_LEFT = b"\xcc"
_RIGHT = b"\xdd"
# Along x and y: 1 at the first pixel that a chroma sample covers, 2 between the two.
_CHROMA_PLACE = re.compile(rb"\x55\xb7\x81([\1\2])\x55\xb8\x81([\1\2])")

_TOP_FIELD_FIRST = {2: True, 3: False, 4: True, 5: False}
"""Whether the top field is the earlier one, by FFmpeg's number of the order in which fields are
stored and shown.
"""

_CAPTIONED_CODECS = ("h264", "hevc", "mpeg2video")
_CAPTIONS = b"GA94\x03"
"""What closed captions begin with in a packet (ATSC A/53). To ask each picture takes a filter for
each, see `side_data_of`.
"""

_UNTAGGED_PICTURES = ("j2k_pipe", "tiff_pipe")
"""FFmpeg's names of JPEG 2000 and TIFF: their Y'CbCr is that of JPEG, which it does not say."""


def is_photo(stream: Stream) -> bool:
    """Returns whether a stream is a picture of HEIF: it has no duration."""
    return stream.type == "video" and stream.frames == 1 and stream.duration is None


def is_still(stream: Stream) -> bool:
    """Returns whether a file is a single picture, by FFmpeg's names for such files or as a photo of
    HEIF.
    """
    return stream.container.format.name.endswith("_pipe") or is_photo(stream)


def photo_profile(path: Path, stream: Stream) -> ColorProfile | None:
    """Returns the color profile of a photo; None without one, and of a video."""
    return color_profile_of(path) if is_still(stream) else None


def is_tile(stream: Stream) -> bool:
    return is_photo(stream) and bool(stream.disposition & Disposition.dependent)


def decode_pictures(
    path: Path, container: InputContainer, stream: VideoStream
) -> Iterator[VideoFrame]:
    """Yields the pictures of the main stream, or the whole photo of which that is a tile."""
    frames = _decode_marked(container, stream)
    has_tiles = any(map(is_tile, container.streams))
    if has_tiles and not stream.disposition & Disposition.default:
        frames = iter([compose_photo(path, container)])
    is_untagged = container.format.name in _UNTAGGED_PICTURES
    profile = photo_profile(path, stream)
    crop = _crop(stream)
    first_size = ""
    for frame in frames:
        size = f"{frame.width}×{frame.height}"
        first_size = first_size or size
        if size != first_size:
            raise InputError(f"its pictures change from {first_size} to {size}")
        if is_photo(stream):
            frame.duration = 0  # FFmpeg's is a second
            # HEIF's default matrix, where a video of this size has BT.709's
            if frame.colorspace == UNSPECIFIED:
                frame.colorspace = Colorspace.ITU601
        if is_untagged and frame.color_range == ColorRange.UNSPECIFIED:
            frame.color_range = ColorRange.JPEG
            frame.colorspace = Colorspace.ITU601
        if profile is not None and profile.is_display_p3:
            frame.color_primaries = ColorPrimaries.SMPTE432
            frame.color_trc = ColorTrc.IEC61966_2_1
        if crop:
            yield apply_filters([frame], ("crop", crop))
        else:
            yield frame


@dataclass(frozen=True, slots=True)
class DecodingMark:
    """What is known of a picture only while it is decoded."""

    is_damaged: bool
    """Whether a part of the picture is missing or wrong in the file."""
    new_aspect: Fraction | None = None
    """Width / height of its pixels, where that is not the first picture's any more. Decoders of
    several threads tell it up to a few pictures early.
    """
    has_captions: bool = False
    """Whether it is the first picture with closed captions."""


def _decode_marked(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """Yields the pictures of a stream. They get a mark where FFmpeg says that their packet is
    damaged, or that the shape of pixels has changed, as neither is a property of PyAV's frames, and
    the first one with captions.
    """
    damaged = set[int | None]()
    captioned: int | None = None
    may_have_captions = codec_name(stream) in _CAPTIONED_CODECS
    is_by_decoding = container.format.name == "avi" and codec_name(stream) == "mpeg4"
    last_stamp: int | None = None
    first_aspect: Fraction | None = None
    for packet in container.demux(stream):
        if packet.is_corrupt and packet.pts is not None:
            damaged.add(packet.pts)
        if may_have_captions and packet.pts is not None and _CAPTIONS in bytes(packet):
            captioned = packet.pts
            may_have_captions = False
        for frame in packet.decode():
            aspect = stream.codec_context.sample_aspect_ratio
            first_aspect = first_aspect or aspect
            new_aspect = None if aspect == first_aspect else aspect
            has_captions = captioned is not None and frame.pts == captioned
            if frame.pts in damaged or new_aspect is not None or has_captions:
                is_damaged = frame.pts in damaged or frame.is_corrupt
                frame.opaque = DecodingMark(is_damaged, new_aspect, has_captions)
            if is_by_decoding:
                last_stamp = _decoding_stamp(frame, last_stamp)
                frame.pts = last_stamp
            yield frame


def _decoding_stamp(frame: VideoFrame, last_stamp: int | None) -> int | None:
    """Returns when a picture of MPEG-4 in AVI is shown, which has no stamps for that. FFmpeg infers
    them from the order of packets, which is another one where a packet has two pictures, as DivX
    and Xvid write them; the stamps of decoding are one apart. The last pictures have none.
    """
    if frame.dts is None and last_stamp is not None:
        return last_stamp + 1
    return frame.dts


def decoding_mark(frame: VideoFrame) -> DecodingMark:
    """Returns what the decoder has said of a picture."""
    if isinstance(frame.opaque, DecodingMark):
        return frame.opaque
    return DecodingMark(frame.is_corrupt)


def chroma_place_of(stream: VideoStream) -> tuple[int, int] | None:
    """Returns where the chroma samples of coded pictures lie, as in `VideoInfo`."""
    place = _CHROMA_PLACE.search(_matroska_header(stream))
    if place is None:
        return None
    return (place[1][0] - 1, place[2][0] - 1)


def top_field_first(stream: VideoStream, frame: VideoFrame) -> bool | None:
    """Returns whether the top field of an interlaced frame is the earlier one; None where neither
    the frame nor the container says that it is interlaced.
    """
    if not frame.interlaced_frame:
        return _TOP_FIELD_FIRST.get(stream.codec_context.field_order)
    try:
        apply_filters([frame], ("select", "eq(interlace_type,TOPFIRST)"))
    except BlockingIOError:  # it was not selected
        return False
    return True


def _crop(stream: VideoStream) -> str:
    """Returns what the container says is hidden of the pictures (`clap`, PixelCrop), for FFmpeg's
    filter; empty for nothing.
    """
    settings = _VIDEO_SETTINGS.search(_matroska_header(stream))
    if settings is None:
        return ""
    edges = dict.fromkeys((_BOTTOM, _TOP, _LEFT, _RIGHT), 0)
    for name, number in _HIDDEN_EDGE.findall(settings[1]):
        edges[name] = int.from_bytes(number[1:])
    if not any(edges.values()):
        return ""
    hidden_columns = edges[_LEFT] + edges[_RIGHT]
    hidden_rows = edges[_TOP] + edges[_BOTTOM]
    return f"iw-{hidden_columns}:ih-{hidden_rows}:{edges[_LEFT]}:{edges[_TOP]}:exact=1"


def _matroska_header(stream: VideoStream) -> bytes:
    """Returns what Matroska's muxer writes of a stream: it has properties that PyAV passes on to
    outputs only. Empty for codecs that Matroska does not hold.
    """
    header = BytesIO()
    with suppress(FFmpegError, ValueError), av.open(header, "w", format="matroska") as output:
        output.add_stream_from_template(stream, opaque=True)
        output.start_encoding()
    return header.getvalue()
