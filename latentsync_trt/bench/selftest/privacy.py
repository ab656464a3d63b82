"""Texts for a bug report: without folders, and without the names of user and machine."""

import getpass
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from latentsync_trt.bench.machine import without_paths

_HIDDEN = "…"

# Shorter names are parts of too many words.
_SHORTEST_NAME = 3


class Privacy:
    """Shortens paths to file names and hides names.

    Args:
        folders: given by the user; their own names stay. Home, temporary and similar folders disappear altogether.
    """

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        home = []
        with suppress(RuntimeError):  # users of some containers have none
            home.append(Path.home())
        own = (*home, Path.cwd(), Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parents[3])
        shortened = {text: "~" for folder in own for text in _spellings(folder)}
        shortened |= {text: f"~/{folder.name}" for folder in folders for text in _spellings(folder)}
        # Longest first: a folder before its parents.
        self._folders = sorted(shortened.items(), key=lambda item: len(item[0]), reverse=True)
        names = {platform.node(), platform.node().partition(".")[0], *(folder.name for folder in home)} - {"localhost"}
        with suppress(OSError, KeyError, ImportError):  # users of some containers have no name
            names.add(getpass.getuser())
        words = "|".join(re.escape(name) for name in names if len(name) >= _SHORTEST_NAME)
        self._names = re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE) if words else None

    def clean(self, text: str) -> str:
        """The text as one line that identifies neither the user nor the machine."""
        text = " ".join(text.split())
        for folder, short in self._folders:
            text = text.replace(folder, short)
        text = re.sub(r"~[\\/]", "", without_paths(text))
        return text if self._names is None else self._names.sub(_HIDDEN, text)


def _spellings(folder: Path) -> Iterator[str]:
    """A folder as messages write it; nothing for a root or a plain name, which are parts of other texts."""
    for path in (folder, folder.absolute(), folder.resolve()):
        if len(path.parts) > 1:
            yield from (str(path), path.as_posix(), str(path).replace("\\", "\\\\"))
