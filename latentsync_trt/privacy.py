"""Removes from a text what identifies the user, before it goes into a report."""

import getpass
import platform
import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PATH = re.compile(r"(?:[A-Za-z]:)?[^\s\\/'\",;:]*(?:[\\/][^\s\\/'\",;:]+)+[\\/]([^\s\\/'\",;:]+)[\\/]?")
"""Matches a path, a word with two separators or more; the group is its last part."""

# Shorter names occur inside too many other words.
_SHORTEST_NAME = 3


def without_paths(text: str) -> str:
    """`text` with every path shortened to its last part, as folders can identify the user."""
    return _PATH.sub(r"\1", text)


def without_places(text: str, folders: Iterable[Path] = ()) -> str:
    """`text` without the folders of user, system and installation; paths below them stay, relative to them.

    Args:
        folders: given by the user, perhaps with spaces in their path; their own names stay.
    """
    own = [Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parents[1], *(path.parent for path in folders)]
    for find in (Path.home, Path.cwd):
        with suppress(RuntimeError, OSError, KeyError, ImportError):  # no home in a container; a deleted folder
            own.append(find())
    known = {str(place) for folder in own for place in (folder, folder.resolve())}
    for place in sorted(known - {".", "/"}, key=len, reverse=True):  # a folder before its parents
        text = re.sub(rf"{re.escape(place)}[\\/]", "", text)
    return text


def without_names(text: str) -> str:
    """`text` with the names of user and machine replaced by an ellipsis."""
    names = {platform.node(), platform.node().partition(".")[0]} - {"localhost"}
    with suppress(RuntimeError, OSError, KeyError, ImportError):  # users of some containers have no name
        names |= {getpass.getuser(), Path.home().name}
    words = "|".join(re.escape(name) for name in names if len(name) >= _SHORTEST_NAME)
    return re.sub(rf"(?<!\w)(?:{words})(?!\w)", "…", text, flags=re.IGNORECASE) if words else text


def redacted(text: str, folders: Iterable[Path] = ()) -> str:
    """The text as one line without folders and without the names of user and machine; `folders`: `without_places`."""
    line = " ".join(text.replace("\\\\", "\\").split())
    return without_names(without_paths(without_places(line, folders)))
