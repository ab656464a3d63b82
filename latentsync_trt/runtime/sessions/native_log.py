"""Error lines of ONNX Runtime's default log, for messages: TensorRT writes why it fails to that log only, on stderr."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile

import onnxruntime as ort

_STDERR = 2
_ERRORS, _SILENT = 3, 4
"""ONNX Runtime's severities."""

# "2026-01-31 10:00:00.123 [E:onnxruntime:Default, file.h:88 log] [2026-01-31 09:00:00   ERROR] the reason", in colors.
_LOG_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*\d{4}-\d\d-\d\d [\d:.]+ \[[EF]:onnxruntime:[^\]]*\]\s*(?:\[[^\]]*\]\s*)?(.*)\n?"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class _Capture:
    """Stderr of the whole process, in a file as long as there are readers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0

    def begin(self) -> int:
        """Returns where in the file the reader begins."""
        with self._lock:
            if not self._readers:
                _flush()
                self._saved = os.dup(_STDERR)
                self._file = TemporaryFile("a+b", buffering=0)  # noqa: SIM115 -- `end` closes it
                os.dup2(self._file.fileno(), _STDERR)
                ort.set_default_logger_severity(_ERRORS)
            self._readers += 1
            return os.fstat(self._file.fileno()).st_size

    def end(self, start: int) -> bytes:
        """Returns what was written since `start`; after the last reader, passes on what is not of that log."""
        _flush()
        with self._lock:
            self._file.seek(start)
            written = self._file.read()
            self._readers -= 1
            if not self._readers:
                ort.set_default_logger_severity(_SILENT)
                os.dup2(self._saved, _STDERR)
                os.close(self._saved)
                self._file.seek(0)
                with os.fdopen(_STDERR, "wb", closefd=False) as stderr, suppress(OSError):
                    stderr.write(_LOG_LINE.sub(b"", self._file.read()))
                self._file.close()
        return written


_capture = _Capture()


@contextmanager
def native_errors() -> Iterator[list[str]]:
    """Collects the error lines of ONNX Runtime's default log; complete when the block has ended.

    Everything else written to stderr meanwhile appears at the end, so only an action that has failed before is repeated
    in this block. Several threads may be inside; each gets the lines of all.
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
