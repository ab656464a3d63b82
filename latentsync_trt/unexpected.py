"""What a command prints about an exception: one line, and for an unexpected one a log without names
and folders.
"""

import errno
import getpass
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from latentsync_trt.errors import InputError, LatentSyncError
from latentsync_trt.paths import printable, user_folder
from latentsync_trt.version import __version__

_LONGEST_REASON = 200
"""Characters of an unexpected error's message that the line keeps."""

_PATH = re.compile(
    r"(?:[A-Za-z]:)?[^\s\\/'\",;:]*(?:[\\/][^\s\\/'\",;:]+)+[\\/]([^\s\\/'\",;:]+)[\\/]?"
)
"""Matches a path, a word with two separators or more; the group is its last part."""

_SHORTEST_NAME = 3
"""Length from which names of users and machines are removed; shorter ones are words, too."""


def one_line(error: Exception, arguments: Sequence[str]) -> tuple[str, bool]:
    """Returns the line to print about `error`, and whether the call was wrong; writes a log file if
    the error was not foreseen.

    Args:
        arguments: the command line, without the program's name.
    """
    if isinstance(error, LatentSyncError):
        return " ".join(" ".join(map(str, error.args)).split()), error.usage
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        place = error.filename or "output"
        return f"{place}: {error.strerror}; free some space, or write elsewhere", False
    if isinstance(error, MemoryError):
        return "out of memory; close other programs or use a bundle of lower resolution", False
    reason = " ".join(str(error).split())
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[:_LONGEST_REASON]}…"
    problem = f"unexpected {type(error).__name__}"
    if reason:
        problem += f": {reason}"
    return f"{problem}; {_write_log(error, arguments)}", False


def _write_log(error: Exception, arguments: Sequence[str]) -> str:
    """Writes a log file; returns the end of the message, which says where it lies."""
    from importlib import metadata

    packages = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    lines = traceback.format_exception(error)
    trace = _without_names(_without_folders("".join(lines)))
    command = redacted(f"command: latentsync-trt {shlex.join(arguments)}")
    facts = f"version: {__version__}, {system}\npackages: {', '.join(packages)}"
    content = f"{command}\n{facts}\n\n{trace}"
    folders = [Path(tempfile.gettempdir())]
    with suppress(InputError):
        folders.insert(0, user_folder("log"))
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"error-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.log"
            path.write_text(printable(content), encoding="utf-8")
            return f"details in {path}; please report it with that file"
    return "no log file can be written; please report it"


def redacted(text: str, folders: Iterable[Path] = ()) -> str:
    """Returns the text as one line, with paths shortened to their last part, without the names of
    user and machine. `folders`: those that the user has named, perhaps with spaces in their path.
    """
    line = " ".join(text.replace("\\\\", "\\").split())
    return _without_names(without_paths(_without_folders(line, folders)))


def without_paths(text: str) -> str:
    """Returns `text` with every path shortened to its last part: folders can identify the user."""
    return _PATH.sub(r"\1", text)


def _without_folders(text: str, paths: Iterable[Path] = ()) -> str:
    """Returns `text` without the folders of user, system and installation, and those that hold
    `paths`; paths below them stay, relative to them.
    """
    folders = [Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parents[1]]
    folders += [path.parent for path in paths]
    for find in (Path.home, Path.cwd):
        # A container has no home, and the current folder may be deleted.
        with suppress(RuntimeError, OSError, KeyError, ImportError):
            folders.append(find())
    places = set(folders) | {folder.resolve() for folder in folders}
    names = {str(place) for place in places} - {".", "/"}
    for place in sorted(names, key=len, reverse=True):  # a folder before its parents
        text = re.sub(rf"{re.escape(place)}[\\/]", "", text)
    return text


def _without_names(text: str) -> str:
    names = {platform.node(), platform.node().partition(".")[0]} - {"localhost"}
    # users of some containers have no name
    with suppress(RuntimeError, OSError, KeyError, ImportError):
        names |= {getpass.getuser(), Path.home().name}
    long_names = [re.escape(name) for name in names if len(name) >= _SHORTEST_NAME]
    words = "|".join(long_names)
    if words:
        return re.sub(rf"(?<!\w)(?:{words})(?!\w)", "…", text, flags=re.IGNORECASE)
    return text
