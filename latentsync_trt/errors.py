"""What users are told: errors, of one tree, and notices. Every error raised on purpose is a
`LatentSyncError`.

    LatentSyncError
    ├── InputError (ValueError)             the caller's file, array or option cannot be used
    │   ├── MediaError                      a video or audio file cannot be read
    │   └── NoFaceError                     a video in which no frame shows a usable face
    ├── OutputError (OSError)               the result cannot be written
    ├── CheckpointError (ValueError)        a weight file is missing, damaged or of another network
    ├── BundleError (ValueError)            an exported model is damaged, edited or too new
    ├── ExportMismatch (ArithmeticError)    an exported graph does not reproduce the PyTorch network
    ├── ProviderUnavailable (RuntimeError)  an execution provider named by the caller does not load
    ├── EngineBuildError (RuntimeError)     a provider could not compile a graph
    │   └── GraphRefused                    its compiler does not accept the graph, now or later
    ├── InferenceError (RuntimeError)       a provider failed while running a graph
    ├── OutOfMemory (MemoryError)           the device or the host has too little memory for a graph
    ├── Busy (RuntimeError)                 as much as fits is being done already
    └── MissingDependency (ImportError)     an optional extra is not installed

A message says what failed, where (file, frame, graph) and what to do. Exceptions of other libraries
are translated once, where the library is called, and kept as `__cause__`.
"""

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

_OPTION = re.compile(r"--([a-z][a-z0-9-]*)")

_ALIKE = 0.75
"""Share of equal characters; at 0.6, difflib's own, out.mp4 would be meant by in.mp4."""

SHORTER = {"preview": "preview_s"}
"""Options whose fields have other names: with their units."""


def did_you_mean(typed: str, choices: Iterable[str], show: Callable[[str], object] = str) -> str:
    """Returns the end of a message about the unknown name `typed`: what `show` makes of the most
    similar of `choices`, or nothing where none is similar.
    """
    from difflib import get_close_matches

    similar = get_close_matches(typed, choices, n=1, cutoff=_ALIKE)
    if similar:
        return f"; did you mean {show(similar[0])}?"
    return ""


class LatentSyncError(Exception):
    """Base of all errors raised on purpose by latentsync_trt.

    Messages name options as the command line does, `--low-memory`; Python, HTTP and job files have
    `low_memory`.
    """

    usage: bool = False
    """Whether the call or command line is wrong (exit code 2): a path or bundle that does not
    exist, a folder that cannot be written, an option out of range. Otherwise the work failed (exit
    code 1): a file is damaged or lacks what is needed, or the machine cannot do it. Each class has
    a default, which an instance can override.
    """

    def __init__(self, *args: Any, usage: bool | None = None) -> None:
        super().__init__(*args)
        if usage is not None:
            self.usage = usage

    @property
    def option(self) -> str | None:
        """The option of which the message speaks, as a field: "low_memory"; None if it begins with
        none.
        """
        match = _OPTION.match(str(self))
        if match is None:
            return None
        name = match[1].replace("-", "_")
        return SHORTER.get(name, name)


class InputError(LatentSyncError, ValueError):
    """A file, array or option given by the caller cannot be used."""

    usage = True


class MediaError(InputError):
    """A video or audio file cannot be read."""

    usage = False


class NoFaceError(InputError):
    """No frame of the video shows a face that can be aligned."""

    usage = False


class OutputError(LatentSyncError, OSError):
    """The result cannot be written."""


class CheckpointError(LatentSyncError, ValueError):
    """A weight file is missing, damaged or of another network than expected."""


class BundleError(LatentSyncError, ValueError):
    """An exported model is missing, damaged, edited or of a newer format."""


class ExportMismatch(LatentSyncError, ArithmeticError):
    """An exported graph differs from the PyTorch network by more than its precision allows."""


class ProviderUnavailable(LatentSyncError, RuntimeError):
    """An execution provider named by the caller does not load on this machine."""


class EngineBuildError(LatentSyncError, RuntimeError):
    """A provider could not turn a graph into a session or an engine."""


class GraphRefused(EngineBuildError):
    """A provider's compiler does not accept a graph, or crashed on it; trying again takes minutes
    and ends the same.
    """


class InferenceError(LatentSyncError, RuntimeError):
    """A provider failed while running a graph."""


class OutOfMemory(LatentSyncError, MemoryError):
    """The device or the host has too little memory to open or run a graph; the message says which
    setting to lower.
    """


class Busy(LatentSyncError, RuntimeError):
    """No room now for another live session, or for more of its speech; there is later."""


class MissingDependency(LatentSyncError, ImportError):
    """An optional extra is not installed; the message contains the command that installs it."""


class Notices:
    """Keeps sentences in `texts`, each once, and passes it to `on_notice`. Thread-safe."""

    def __init__(self, on_notice: Callable[[str], None] | None = None) -> None:
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        with self._lock:
            if text in self.texts:
                return
            self.texts.append(text)
        if self._on_notice is not None:
            self._on_notice(text)
