"""Texts for a bug report: without folders, and without the names of the user and of the machine."""

import getpass
import platform
import re
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from latentsync_trt.bench.machine import without_paths

_HIDDEN = "…"

# Shorter names are parts of too many words.
_SHORTEST_NAME = 3


class Privacy:
    """Shortens paths to file names and hides names.

    Args:
        folders: given by the user; of these the name stays, of home, temporary and similar folders nothing does.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        named = {text: f"~/{folder.name}" for folder in folders for text in _spellings(folder)}
        both = {text: "~" for folder in _places() for text in _spellings(folder)} | named
        # A folder before those it lies in.
        self._folders = {text: both[text] for text in sorted(both, key=len, reverse=True)}
        words = "|".join(re.escape(name) for name in _names() if len(name) >= _SHORTEST_NAME)
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) if words else None

    def clean(self, text: str) -> str:
        """The text as one line that tells neither who nor where somebody is."""
        text = " ".join(text.split())
        for folder, short in self._folders.items():
            text = text.replace(folder, short)
        text = re.sub(r"~[\\/]", "", without_paths(text))
        return text if self._names is None else self._names.sub(_HIDDEN, text)


def _places() -> Iterable[Path]:
    """Folders whose path may tell who somebody is, and whose own name may, too."""
    yield from _home()
    yield from (Path.cwd(), Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parents[3])


def _home() -> list[Path]:
    try:
        return [Path.home()]
    except RuntimeError:  # as the user of some containers, who has none
        return []


def _spellings(folder: Path) -> Iterable[str]:
    """A folder as messages write it; none of a root, which is part of every path, nor of a plain name."""
    for path in (folder, folder.absolute(), folder.resolve()):
        if len(path.parts) > 1:
            yield from (str(path), path.as_posix(), str(path).replace("\\", "\\\\"))


def _names() -> set[str]:
    found = {platform.node(), platform.node().partition(".")[0], *(home.name for home in _home())}
    with suppress(OSError, KeyError, ImportError):  # a container's user may have no name
        found.add(getpass.getuser())
    return found - {"localhost"}
