"""Names of files and folders that a caller or a command line gives, checked before anything is
opened; their texts.
"""

import codecs
import errno
import logging
import os
import re
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryFile
from typing import Literal

from latentsync_trt.errors import InputError, OutputError, did_you_mean
from latentsync_trt.files import end_of_links

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Control characters, and those of Unicode that turn the direction of text, end its line, or are
not seen.
"""
_URL_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
"""A scheme has two letters or more, as "C:/clips" is a drive, and one slash or more, as pathlib
makes one of two.
"""

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi")
AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".m4a", ".ogg", ".opus", ".aac")
"""By which files in a folder are taken for videos and recordings."""

CACHE_VARIABLE = "LATENTSYNC_TRT_CACHE_DIR"
"""Names the folder of engines and of what is remembered."""

_MAX_NAMES_COMPARED = 2000
"""Names in a folder among which a similar one is looked for."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def local_path(name: str | os.PathLike[str], what: str = "") -> Path:
    """Returns `name` as a path on this machine, which need not exist; raises `InputError`,
    beginning with `what`, if it is empty, a URL, or "-" for standard input.
    """
    text = os.fspath(name)
    prefix = f"{what} ".lstrip()
    if not text.strip() or "\0" in text:
        raise InputError(
            f"{prefix}{text!r}: is empty, or has a NUL character; give the path of a file or folder"
        )
    if path_exists(text):
        return Path(text)
    if _URL_SCHEME.match(text):
        url = text if "://" in text else text.replace(":/", "://", 1)
        cure = "download it first, or use `latentsync-trt batch`, which reads addresses"
        raise InputError(f"{prefix}{url}: is a URL, which is not supported; {cure}")
    if text == "-":
        raise InputError(
            f"{prefix}-: standard input and output are not supported; give the path of a file"
        )
    return Path(text)


def path_argument(value: object, name: str) -> Path:
    """Returns `value` as a path; raises `InputError`, naming the argument, if it cannot be one."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InputError(f"{name} {value!r}: is not a path; give a str or a pathlib.Path")
    return local_path(text, name)


def files_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Returns the files in a folder that have one of the suffixes, in capitals or not, sorted by
    name; raises `InputError` if the folder cannot be read.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error
    return [path for path in files if path.suffix.lower() in suffixes]


def read_text(path: Path, cure: str = "save it as UTF-8", most_bytes: int | None = None) -> str:
    """Returns the content of a text file that people edit: UTF-8 or, with a byte order mark,
    UTF-16, as Windows' tools write; raises `InputError`, ending in `cure`, for others, and for
    pipes, devices and files of more than `most_bytes`.
    """
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise InputError(f"{path}: is a folder, a pipe or a device; give a text file")
        if most_bytes is not None and status.st_size > most_bytes:
            raise InputError(f"{path}: has more than {most_bytes / 1e6:g} MB; give a smaller file")
        content = path.read_bytes()
        return content.decode("utf-16" if content[:2] in _UTF16 else "utf-8-sig")
    except (UnicodeError, OSError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); {cure}") from error


def below_home(name: str | os.PathLike[str], cure: str) -> Path:
    """Returns `name` with `~` and `~user` expanded; raises `InputError`, ending in `cure`, without
    such a home folder.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(f"{name}: {str(error).rstrip('.')}; {cure}") from error


def user_folder(kind: Literal["cache", "config", "data", "log"]) -> Path:
    """Returns this user's folder of a kind for this package; raises `InputError` for a user without
    a home.
    """
    import platformdirs

    try:
        return Path(getattr(platformdirs, f"user_{kind}_path")("latentsync-trt", appauthor=False))
    except RuntimeError as error:
        raise InputError("no home folder; set $HOME to a folder that can be written") from error


def printable(text: str) -> str:
    """Returns `text` with codes for characters that could steer a terminal or disguise a name; line
    breaks and tabs stay.
    """

    def code(character: re.Match[str]) -> str:
        return character[0].encode("unicode_escape").decode()

    return _STEERING.sub(code, text)


class PrintableLines(logging.Formatter):
    """Formats log lines so that they cannot steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def path_exists(path: str | os.PathLike[str]) -> bool:
    """Returns whether there is a file or folder; False also where the system refuses the name, such
    as a very long one.
    """
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_same_file(first: Path, second: Path) -> bool:
    """Returns whether two paths lead to one file; False also where one of them leads to none."""
    try:
        return first.samefile(second)
    except (OSError, ValueError):
        return False


def nearest_existing(folder: Path) -> Path:
    """Returns `folder`, or the nearest one above it that exists."""
    places = (folder, *folder.absolute().parents)
    return next(place for place in places if path_exists(place))


def why_missing(path: Path, kind: str = "file") -> str:
    """Returns the message that nothing is at `path`; it names the most similar existing name, or
    what else explains it.
    """
    folder = path.parent
    if not path_exists(folder):
        return f"{path}: no such {kind}; its folder does not exist either"
    try:
        if path.is_symlink():
            return f"{path}: links to {path.readlink()}, which does not exist"
        with os.scandir(folder) as entries:
            some = islice(entries, _MAX_NAMES_COMPARED)
            names = {entry.name.casefold(): entry.name for entry in some}
    except OSError as error:
        return f"{path}: no such {kind} ({error.strerror})"
    return f"{path}: no such {kind}" + did_you_mean(
        path.name.casefold(), names, lambda name: folder / names[name]
    )


def check_folder_to_write(folder: Path, what: str = "") -> None:
    """Raises `InputError` if `folder` is a file, cannot be written or made, or has a name that the
    system refuses.
    """
    prefix = f"{what} ".lstrip()
    existing = nearest_existing(folder)
    try:
        folder.exists()
    except (OSError, ValueError) as error:
        message = f"{prefix}{str(folder)[:100]}: cannot be used ({error})"
        raise InputError(message[:300]) from error
    if not existing.is_dir():
        place = folder if existing == folder else f"{folder}: {existing}"
        raise InputError(f"{prefix}{place}: is a file; name a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            f"{prefix}{folder}: {existing} is not writable; "
            "choose another folder or change permissions"
        )


def check_file_to_write(path: Path, what: str = "") -> None:
    """Raises `InputError` if `path` is a folder, its folder cannot be written or made, or it is a
    link to nowhere.
    """
    prefix = f"{what} ".lstrip()
    if path_exists(path) and path.is_dir():
        raise InputError(f"{prefix}{path}: is a folder; name a file in it")
    try:
        end = end_of_links(path)
    except OutputError as error:
        raise InputError(f"{prefix}{error}") from error
    if end != path and not path_exists(end.parent):  # as on a disk that is not mounted
        raise InputError(
            f"{prefix}{path}: links to {end}, whose folder "
            "does not exist; make it, or remove the link"
        )
    check_folder_to_write(end.parent, what)


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raises `InputError` if there is something at `path`, unless that is to be replaced."""
    if not overwrite and path_exists(path):
        raise InputError(
            f"{path}: exists already; choose another name, or replace it with --overwrite"
        )


def make_folder(folder: Path) -> None:
    """Makes `folder` if it is missing; raises `OutputError` if no file can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()  # permissions alone do not show whether this works
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EIO)
        raise OutputError(
            f"{folder}: cannot be written ({error.strerror})", usage=not full
        ) from error
