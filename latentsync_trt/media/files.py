"""Opens media files, and converts errors of FFmpeg and the system to errors of this package."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Self

import av
import av.error
from av.container import InputContainer, OutputContainer

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError, MediaError, OutputError
from latentsync_trt.paths import exists, why_missing

# FFmpeg must not open anything else that a file refers to: a playlist named .mp4 could contain a URL.
_INPUT_OPTIONS = {"protocol_whitelist": "file"}
# For pictures whose name contains "%d"; other demuxers ignore it.
_NO_PATTERN = {"pattern_type": "none"}

_PATTERN = re.compile(r"([^%]*)%(?:0([1-9]))?d([^%]*)")


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
    """Opens a local media file or an image sequence and closes it at the end of the block.

    Raises:
        MediaError: the file is missing, a folder, empty, truncated, or in a format unknown to FFmpeg.
    """
    check_file(path)
    sequence = ImageSequence.at(path)
    name, options = (sequence.ffmpeg_name, sequence.options()) if sequence else (str(path), _NO_PATTERN)
    # FFmpeg's log stays off: its callback takes the interpreter's lock, which a thread that frees a decoder holds
    # while it waits for the decoder's own threads. Two open files are then enough for a deadlock.
    with reading(path, "is not a readable media file", "; give another one, or convert it to MP4 or WAV"):
        # Nothing here reads metadata, which old programs wrote in encodings other than UTF-8. FFmpeg would take "a:" in
        # "a:b.mp4" as a protocol.
        container = av.open(f"file:{name}", "r", options=_INPUT_OPTIONS | options, metadata_errors="replace")
    with container:
        _check_not_cut_off(path, container)
        yield container


def open_output(path: Path, options: dict[str, str] | None = None) -> OutputContainer:
    """Opens a new media file with FFmpeg's `options`; the caller closes it. Raises FFmpeg's errors."""
    return av.open(f"file:{path}", "w", options=options)


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


@dataclass(frozen=True, slots=True)
class ImageSequence:
    """Numbered pictures in a folder, named by a pattern such as frames/%05d.png, which is `path`.

    Their names differ in a number of at least `digits` digits.
    """

    path: Path
    before: str
    digits: int
    after: str

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """The sequence that `path` is a pattern of; None if it is the name of a file, or no pattern."""
        parts = _PATTERN.fullmatch(path.name)
        return None if parts is None or exists(path) else cls(path, parts[1], int(parts[2] or 1), parts[3])

    @property
    def ffmpeg_name(self) -> str:
        """The pattern as FFmpeg reads it, which takes every % in the names of folders for a number, too."""
        return str(self.path.parent / "x").replace("%", "%%")[:-1] + self.path.name

    def files(self) -> list[Path]:
        """The files in order; raises `MediaError` if there are none, or a number between two others is missing."""
        numbers = self._numbers()
        for before, after in pairwise(numbers):
            if after > before + 1:
                missing = self.path.parent / self._name(before + 1)
                raise MediaError(f"{missing}: is missing, but {self._name(after)} exists; add it")
        return [self.path.parent / self._name(number) for number in numbers]

    def options(self) -> dict[str, str]:
        """FFmpeg's options to read the files, at the model's rate."""
        return {"start_number": str(self._numbers()[0]), "start_number_range": "1", "framerate": str(MODEL_FPS)}

    def _numbers(self) -> list[int]:
        """The sorted numbers of the files; raises `MediaError` if there are none."""
        any_digits = re.compile(re.escape(self.before) + r"([0-9]+)" + re.escape(self.after))
        try:
            names = {entry.name for entry in self.path.parent.iterdir()}
        except OSError as error:
            raise MediaError(f"{self.path}: its folder cannot be read: {error.strerror}", usage=True) from error
        found = [int(match[1]) for name in names if (match := any_digits.fullmatch(name))]
        numbers = sorted(number for number in found if self._name(number) in names)
        if not numbers:
            raise MediaError(f"{self.path}: no such pictures, as {self._name(1)}", usage=True)
        return numbers

    def _name(self, number: int) -> str:
        return f"{self.before}{number:0{self.digits}d}{self.after}"
