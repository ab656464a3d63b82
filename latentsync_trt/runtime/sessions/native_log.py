"""Reads errors from ONNX Runtime's default log on stderr, the only place where TensorRT says why it fails."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import onnxruntime as ort

from latentsync_trt.files import temporary_folder

_STDERR = 2
_ERRORS, _SILENT = 3, 4
"""ONNX Runtime's severities."""

# "2026-01-31 10:00:00.123 [E:onnxruntime:Default, file.h:88 log] [2026-01-31 09:00:00   ERROR] the reason", in colors.
_LOG_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*\d{4}-\d\d-\d\d [\d:.]+ \[[EF]:onnxruntime:[^\]]*\]\s*(?:\[[^\]]*\]\s*)?(.*)\n?"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class _Capture:
    """Redirects stderr of the whole process to a file while there are readers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._folder = ExitStack()

    def begin(self) -> int:
        """Returns the offset in the file where the reader starts."""
        with self._lock:
            if not self._readers:
                _flush()
                self._saved = os.dup(_STDERR)
                try:
                    # Read under its name: reading through this descriptor would move the writers' position.
                    self._path = self._folder.enter_context(temporary_folder()) / "stderr.log"
                    self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
                except OSError:
                    os.close(self._saved)
                    self._folder.close()
                    raise
                os.dup2(self._file, _STDERR)
                ort.set_default_logger_severity(_ERRORS)
            self._readers += 1
            return os.fstat(self._file).st_size

    def end(self, start: int) -> bytes:
        """Returns what was written since `start`; the last reader writes lines of other origin to stderr."""
        _flush()
        with self._lock:
            written = self._read()[start:]
            self._readers -= 1
            if not self._readers:
                ort.set_default_logger_severity(_SILENT)
                os.dup2(self._saved, _STDERR)
                os.close(self._saved)
                os.close(self._file)
                with os.fdopen(_STDERR, "wb", closefd=False) as stderr, suppress(OSError):
                    stderr.write(_LOG_LINE.sub(b"", self._read()))
                self._folder.close()
        return written

    def _read(self) -> bytes:
        with suppress(OSError):  # deleted, as by a process that stops
            return self._path.read_bytes()
        return b""


_capture = _Capture()


@contextmanager
def native_errors() -> Iterator[list[str]]:
    """Collects the error lines of ONNX Runtime's default log; the list is filled when the block ends.

    Other output to stderr is delayed until then, so use it only to repeat an action that failed. With several threads
    inside, each gets the lines of all.
    """
    lines: list[str] = []
    try:
        start = _capture.begin()
    except OSError:  # a program without stderr
        yield lines
        return
    try:
        yield lines
    finally:
        found = _LOG_LINE.findall(_capture.end(start))
        lines += (_COLORS.sub("", line.decode(errors="replace")).strip() for line in found)


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):  # closed, or none
        sys.stderr.flush()
