"""Opens media files, and converts errors of FFmpeg and the system to errors of this package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, TypeVar

import av
from av import FFmpegError
from av.container import InputContainer, OutputContainer

from latentsync_trt.errors import InputError, MediaError, OutputError
from latentsync_trt.paths import why_missing

MOST_PIXELS = 139_264 * 16 * 16
"""Of a picture: the most in H.264 (level 6.2). A damaged header could ask for gigabytes."""

# FFmpeg must not open what a file refers to: a playlist named .mp4 could name any file, or a URL.
_PLAYLISTS = {"concat", "dash", "ffmetadata", "hls", "imf", "mlv", "rtp", "rtsp", "sap", "sdp", "vobsub"}
_PLAYLISTS |= {"webm_dash_manifest"}
_INPUT_OPTIONS = {
    "protocol_whitelist": "file",
    "format_whitelist": ",".join(sorted(av.formats_available - _PLAYLISTS)),
    "max_pixels": f"{MOST_PIXELS}",
    "pattern_type": "none",  # for pictures whose name contains "%d"; other demuxers ignore it
}

T = TypeVar("T")


def reason_of(error: Exception) -> str:
    """The message of FFmpeg or the system, without numbers and names of functions."""
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


def guarded(path: Path, items: Iterator[T], what: str) -> Iterator[T]:
    """The frames or packets of a stream; if reading fails, the `MediaError` names the time."""
    time_s = 0.0
    while True:
        with reading(path, f"its {what} breaks off after {time_s:.2f} s; repair or re-encode it"):
            item: Any = next(items, None)
        if item is None:
            return
        time_s = time_s if item.pts is None or not item.time_base else float(item.pts * item.time_base)
        yield item


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
    """Opens a local media file and closes it at the end of the block.

    Raises:
        MediaError: the file is missing, a folder, empty, truncated, a playlist, or in a format unknown to FFmpeg.
    """
    check_file(path)
    # FFmpeg's log stays off: its callback takes the interpreter's lock, which a thread that frees a decoder holds
    # while it waits for the decoder's own threads. Two open files are then enough for a deadlock.
    with reading(path, "is not a readable media file", "; give another one, or convert it to MP4 or WAV"):
        # Nothing here reads metadata, which old programs wrote in encodings other than
        # UTF-8. FFmpeg would take "a:" in "a:b.mp4" as a protocol.
        try:
            container = av.open(f"file:{path}", "r", options=_INPUT_OPTIONS, metadata_errors="replace")
        except av.error.ArgumentError as error:  # how FFmpeg refuses a format
            cure = "make one file of it: ffmpeg -i LIST -c copy clip.mkv"
            raise MediaError(f"{path}: is damaged, or a playlist, which names other files; {cure}") from error
    with container:
        _check_not_cut_off(path, container)
        yield container


def open_output(path: Path, options: dict[str, str] | None = None) -> OutputContainer:
    """Opens a new media file; the caller closes it. Raises FFmpeg's errors."""
    return av.open(f"file:{path}", "w", options=options)


def check_file(path: Path) -> None:
    """Raises `MediaError` if `path` is no file, may not be read, or is empty."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MediaError(why_missing(path), usage=True) from error
    except (OSError, ValueError) as error:
        raise MediaError(f"{path}: cannot be read: {reason_of(error)}", usage=True) from error
    if S_ISDIR(found.st_mode):
        raise MediaError(f"{path}: is a folder; name a video or audio file in it", usage=True)
    if not os.access(path, os.R_OK):
        raise MediaError(f"{path}: may not be read; change its permissions", usage=True)
    if S_ISREG(found.st_mode) and not found.st_size:  # pipes also have size 0
        raise MediaError(f"{path}: is empty (0 bytes); copy or download it again")


def _check_not_cut_off(path: Path, container: InputContainer) -> None:
    """Compares index and size of the file: FFmpeg ends a truncated one without an error."""
    for stream in container.streams:
        if not len(stream.index_entries):
            continue
        last = stream.index_entries[len(stream.index_entries) - 1]
        if 0 < container.size < last.pos + last.size:
            raise MediaError(
                f"{path}: is cut off: its index expects at least {last.pos + last.size} bytes, "
                f"the file has {container.size}; copy or download it again"
            )
