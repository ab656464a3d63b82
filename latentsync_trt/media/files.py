"""Opens media files, and converts errors of FFmpeg and the system to errors of this package."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, TypeVar, cast

import av
from av import AudioStream, CodecContext, FFmpegError, Packet, VideoStream
from av.container import InputContainer
from av.stream import Disposition, Stream

from latentsync_trt.errors import InputError, MediaError, OutputError
from latentsync_trt.paths import why_missing

MAX_PIXELS = 139_264 * 16 * 16
"""The largest picture that is accepted: that of H.264 (level 6.2). A damaged header could ask for
gigabytes.
"""

_PLAYLISTS = {
    "concat",
    "dash",
    "ffmetadata",
    "hls",
    "imf",
    "mlv",
    "rtp",
    "rtsp",
    "sap",
    "sdp",
    "vobsub",
    "webm_dash_manifest",
}
"""Formats of files that refer to others, which FFmpeg must not open: a playlist named .mp4 could
name any file, or a URL.
"""

_INPUT_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(sorted(av.formats_available - _PLAYLISTS)),
    "max_pixels": f"{MAX_PIXELS}",
    "pattern_type": "none",  # for pictures whose name contains "%d"; other demuxers ignore it
}

FFMPEG_FORMATS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}
"""FFmpeg's name of each container that is written."""

T = TypeVar("T")
StreamT = TypeVar("StreamT", bound=Stream)

TimedPackets = Iterator[tuple[Fraction, "Packet[Any]"]]
"""Packets of one stream of an output, with their times there, in this order."""


def reason_of(error: Exception) -> str:
    """Returns the message of FFmpeg or the system, without numbers and names of functions."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


@contextmanager
def reading(path: Path, problem: str = "cannot be read", cure: str = "") -> Iterator[None]:
    """Turns errors of FFmpeg, the system and conversion into a `MediaError` that names `path`."""
    try:
        yield
    except MediaError:
        raise
    except (FFmpegError, OSError, InputError) as error:
        raise MediaError(f"{path}: {problem}: {reason_of(error)}{cure}") from error


def guarded(path: Path, stream: Stream, items: Iterator[T]) -> Iterator[T]:
    """Yields the frames or packets of a stream; if reading fails, the `MediaError` names the time
    from the file's start.
    """
    at_s = 0.0
    start_s = (cast(InputContainer, stream.container).start_time or 0) / av.time_base
    while True:
        problem = f"its {stream.type} breaks off after {at_s:.2f} s; repair or re-encode it"
        with reading(path, problem):
            item: Any = next(items, None)
        if item is None:
            return
        if item.pts is not None and item.time_base:
            at_s = float(item.pts * item.time_base) - start_s
        yield item


def codec_name(stream: Stream) -> str:
    """Returns FFmpeg's name of the codec; empty if it does not know the codec."""
    context: CodecContext | None = stream.codec_context  # PyAV's types leave the None out
    if context is None:
        return ""
    return context.codec.canonical_name


def is_mp4(container: InputContainer) -> bool:
    """Returns whether a file is MP4 or one of its kin, as MOV and M4A."""
    return "mp4" in container.format.name.split(",")


def picture_streams(container: InputContainer) -> list[VideoStream]:
    """Returns the video streams that are no covers."""
    return [
        each for each in container.streams.video if not each.disposition & Disposition.attached_pic
    ]


def default_stream(streams: Iterable[StreamT]) -> StreamT | None:
    """Returns the first of some streams that is marked as default; None without any."""
    for stream in streams:
        if stream.disposition & Disposition.default:
            return stream
    return None


def main_audio(container: InputContainer) -> AudioStream | None:
    """Returns the audio track that players play: the first that is marked as default, else the
    first; None without any.
    """
    tracks = container.streams.audio
    return default_stream(tracks) or next(iter(tracks), None)


def video_packets(container: InputContainer) -> Iterator["Packet[Any]"]:
    """Yields the packets of the picture of a file that this package wrote."""
    return (packet for packet in container.demux(video=0) if packet.size)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns FFmpeg's and the system's errors into an `OutputError` that names `path`."""
    try:
        yield
    except OutputError:
        raise
    except (FFmpegError, OSError) as error:
        raise OutputError(f"{path}: cannot be written: {reason_of(error)}") from error


@contextmanager
def open_input(path: Path) -> Iterator[InputContainer]:
    """Opens a local media file and closes it at the end of the block. Raises `MediaError`: it is
    missing, no regular file, empty, truncated, a playlist, or unknown to FFmpeg.
    """
    check_file(path)
    # FFmpeg's log stays off: its callback takes the interpreter's lock, which a thread that frees a
    # decoder holds while it waits for the decoder's own threads. Two open files are then enough for
    # a deadlock.
    cure = "; give another one, or convert it to MP4 or WAV"
    with reading(path, "is not a readable media file", cure):
        # Nothing here reads metadata, which old programs wrote in encodings other than UTF-8.
        # FFmpeg would take "a:" in "a:b.mp4" as a protocol.
        url = f"file:{path}"
        try:
            container = av.open(url, "r", options=_INPUT_OPTIONS, metadata_errors="replace")
        except av.error.ArgumentError as error:  # how FFmpeg refuses a format
            raise MediaError(
                f"{path}: is damaged, or a playlist, which names other files; "
                "make one file of it: ffmpeg -i LIST -c copy clip.mkv"
            ) from error
    with container:
        _check_whole(path, container)
        yield container


def _check_whole(path: Path, container: InputContainer) -> None:
    """Raises `MediaError` if the index of a file names more than is there, which FFmpeg ends
    without an error.
    """
    for stream in container.streams:
        entries = stream.index_entries
        if not len(entries):
            continue
        last = entries[len(entries) - 1]
        stated_bytes = last.pos + last.size
        if 0 < container.size < stated_bytes:
            raise MediaError(
                f"{path}: is cut off: its index expects at least {stated_bytes} bytes, "
                f"the file has {container.size}; copy or download it again"
            )


def check_file(path: Path) -> None:
    """Raises `MediaError` if `path` is no regular file, may not be read, or is empty."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MediaError(why_missing(path), usage=True) from error
    except (OSError, ValueError) as error:
        raise MediaError(f"{path}: cannot be read: {reason_of(error)}", usage=True) from error
    if S_ISDIR(status.st_mode):
        raise MediaError(f"{path}: is a folder; name a video or audio file in it", usage=True)
    if not os.access(path, os.R_OK):
        raise MediaError(f"{path}: may not be read; change its permissions", usage=True)
    if not S_ISREG(status.st_mode):
        raise MediaError(
            f"{path}: is a pipe or a device; "
            "files are read several times, so write it to one first, and name that",
            usage=True,
        )
    if not status.st_size:
        raise MediaError(f"{path}: is empty (0 bytes); copy or download it again")


def check_size(path: Path, width_px: int, height_px: int) -> None:
    """Raises `MediaError` for pictures without a size, or of one that is not accepted."""
    if 0 < width_px * height_px <= MAX_PIXELS:
        return
    size = f"{width_px}×{height_px} pixels" if width_px else "no size that can be read"
    raise MediaError(
        f"{path}: its pictures have {size}; at most {MAX_PIXELS / 1e6:.0f} million pixels are "
        "accepted; scale it down, or convert it to MP4"
    )
