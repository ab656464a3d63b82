"""Opens media files, and converts errors of FFmpeg and the system to errors of this package."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR, S_ISREG

import av
import av.error
from av.container import InputContainer

from latentsync_trt.errors import InputError, MediaError, OutputError
from latentsync_trt.media.sequences import ImageSequence
from latentsync_trt.paths import why_missing

# FFmpeg must not open anything else that a file refers to: a playlist named .mp4 could contain a URL.
_INPUT_OPTIONS = {"protocol_whitelist": "file"}
_NO_PATTERN = {"pattern_type": "none"}
"""For pictures whose name contains "%d"; other demuxers ignore it."""


def reason_of(error: Exception) -> str:
    """The message of FFmpeg or the system, without error numbers and names of internal functions."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


@contextmanager
def reading(path: Path, problem: str = "cannot be read", cure: str = "") -> Iterator[None]:
    """Turns errors of FFmpeg, the system and conversion inside the block into a `MediaError` that names `path`."""
    try:
        yield
    except MediaError:
        raise
    except (av.error.FFmpegError, OSError, InputError) as error:
        raise MediaError(f"{path}: {problem}: {reason_of(error)}{cure}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns FFmpeg's and the system's errors inside the block into an `OutputError` that names `path`."""
    try:
        yield
    except OutputError:
        raise
    except (av.error.FFmpegError, OSError) as error:
        raise OutputError(f"{path}: cannot be written: {reason_of(error)}") from error


@contextmanager
def open_input(path: Path) -> Iterator[InputContainer]:
    """Opens a local media file and closes it at the end of the block.

    Raises:
        MediaError: the file is missing, a folder, empty, truncated, or in a format unknown to FFmpeg.
    """
    check_file(path)
    sequence = ImageSequence.at(path)
    options = _INPUT_OPTIONS | (sequence.options() if sequence else _NO_PATTERN)
    # FFmpeg's log stays off: its callback takes the interpreter's lock, which a thread that frees a decoder holds
    # while it waits for the decoder's own threads. Two open files are then enough for a deadlock.
    with reading(path, "is not a readable media file", "; give another one, or convert it to MP4 or WAV"):
        # Nothing here reads metadata, which old programs wrote in encodings other than UTF-8.
        container = av.open(ffmpeg_name(path), "r", options=options, metadata_errors="replace")
    with container:
        _check_not_cut_off(path, container)
        yield container


def ffmpeg_name(path: Path) -> str:
    """`path` as a name that FFmpeg always takes as a file: it would take "a:" in "a:b.mp4" as a protocol."""
    sequence = ImageSequence.at(path)
    return f"file:{sequence.ffmpeg_name if sequence else path}"


def check_file(path: Path) -> None:
    """Raises `MediaError` if there is no file or sequence at `path`, it may not be read, or is empty; opens nothing."""
    sequence = ImageSequence.at(path)
    for file in sequence.files() if sequence else [path]:
        _check_one(file)


def _check_one(path: Path) -> None:
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
    """Compares the index of the file with its size: FFmpeg ends a truncated file early without an error."""
    for stream in container.streams:
        if not len(stream.index_entries):
            continue
        last = stream.index_entries[len(stream.index_entries) - 1]
        if 0 < container.size < last.pos + last.size:
            raise MediaError(
                f"{path}: is cut off: its index expects at least {last.pos + last.size} bytes, "
                f"the file has {container.size}; copy or download it again"
            )
