"""What a command prints about an exception: one line, and for an unexpected one a log file for a bug report."""

import errno
import os
import platform
import shlex
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.privacy import without_names, without_paths, without_places
from latentsync_trt.version import __version__

_NAME = "latentsync-trt"
_LONGEST = 200


def one_line(error: Exception, arguments: Sequence[str]) -> tuple[str, bool]:
    """The line to print about `error`, and whether the call was wrong; arguments as those of `explain`."""
    if isinstance(error, LatentSyncError):
        return " ".join(str(error).split()), error.usage
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{error.filename or 'output'}: {error.strerror}; free some space, or write elsewhere", False
    if isinstance(error, MemoryError):
        return "out of memory; close other programs or use a bundle of lower resolution", False
    return explain(error, arguments), False


def explain(error: BaseException, arguments: Sequence[str]) -> str:
    """Writes a log file about `error`; returns the line to print.

    Args:
        arguments: the command line, without the program's name.
    """
    import platformdirs

    reason = " ".join(str(error).split())
    reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
    what = f"unexpected {type(error).__name__}" + (f": {reason}" if reason else "")
    content = "\n".join(_report(error, arguments))
    folders = platformdirs.user_log_path(_NAME, appauthor=False), Path(tempfile.gettempdir())
    for folder in filter(Path.is_absolute, folders):  # of a user without a home it is not
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"error-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.log"
            path.write_text(content, encoding="utf-8")
            return f"{what}; details in {path}; please report it with that file"
    return f"{what}; no log file can be written; please report it"


def _report(error: BaseException, arguments: Sequence[str]) -> Iterator[str]:
    """The lines of the log: no folder outside this package and no names."""
    from importlib import metadata

    yield without_names(without_paths(without_places(f"command: {_NAME} {shlex.join(arguments)}")))
    yield f"version: {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    with suppress(OSError, ValueError):
        packages = {distribution.name: distribution.version for distribution in metadata.distributions()}
        yield "packages: " + ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    yield ""
    yield without_names(without_places("".join(traceback.format_exception(error))))
