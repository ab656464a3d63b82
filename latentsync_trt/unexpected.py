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

_LONGEST = 200

_PATH = re.compile(
    r"(?:[A-Za-z]:)?[^\s\\/'\",;:]*(?:[\\/][^\s\\/'\",;:]+)+[\\/]([^\s\\/'\",;:]+)[\\/]?"
)
"""Matches a path, a word with two separators or more; the group is its last part."""

# Shorter names occur inside too many other words.
_SHORTEST_NAME = 3


def one_line(error: Exception, arguments: Sequence[str]) -> tuple[str, bool]:
    """The line to print about `error`, and whether the call was wrong; writes a log file if it was
    not foreseen. `arguments`: the command line, without the program's name.
    """
    if isinstance(error, LatentSyncError):
        return " ".join(" ".join(map(str, error.args)).split()), error.usage
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"{error.filename or 'output'}: {error.strerror}; free some space, or write elsewhere",
            False,
        )
    if isinstance(error, MemoryError):
        return "out of memory; close other programs or use a bundle of lower resolution", False
    reason = " ".join(str(error).split())
    reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
    what = f"unexpected {type(error).__name__}" + (f": {reason}" if reason else "")
    return f"{what}; {_write_log(error, arguments)}", False


def _write_log(error: Exception, arguments: Sequence[str]) -> str:
    from importlib import metadata

    packages = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    trace = _without_names(_without_folders("".join(traceback.format_exception(error))))
    command = redacted(f"command: latentsync-trt {shlex.join(arguments)}")
    content = (
        f"{command}\nversion: {__version__}, {system}\npackages: {', '.join(packages)}\n\n{trace}"
    )
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
    """The text as one line, with paths shortened to their last part and without the names of user
    and machine. `folders`: given by the user, perhaps with spaces in their path.
    """
    line = " ".join(text.replace("\\\\", "\\").split())
    return _without_names(without_paths(_without_folders(line, folders)))


def without_paths(text: str) -> str:
    """`text` with every path shortened to its last part, as folders can identify the user."""
    return _PATH.sub(r"\1", text)


def _without_folders(text: str, given: Iterable[Path] = ()) -> str:
    """`text` without the folders of user, system and installation; paths below them stay, relative
    to them.
    """
    own = [
        Path(tempfile.gettempdir()),
        Path(sys.prefix),
        Path(__file__).parents[1],
        *(path.parent for path in given),
    ]
    for find in (Path.home, Path.cwd):
        # no home in a container; a deleted folder
        with suppress(RuntimeError, OSError, KeyError, ImportError):
            own.append(find())
    known = {str(place) for folder in own for place in (folder, folder.resolve())}
    for place in sorted(known - {".", "/"}, key=len, reverse=True):  # a folder before its parents
        text = re.sub(rf"{re.escape(place)}[\\/]", "", text)
    return text


def _without_names(text: str) -> str:
    names = {platform.node(), platform.node().partition(".")[0]} - {"localhost"}
    # users of some containers have no name
    with suppress(RuntimeError, OSError, KeyError, ImportError):
        names |= {getpass.getuser(), Path.home().name}
    words = "|".join(re.escape(name) for name in names if len(name) >= _SHORTEST_NAME)
    if words:
        return re.sub(rf"(?<!\w)(?:{words})(?!\w)", "…", text, flags=re.IGNORECASE)
    return text
