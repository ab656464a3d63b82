"""Error lines of ONNX Runtime's default log, for messages: TensorRT's reasons go to that log alone, which writes to
stderr."""

import itertools
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import onnxruntime as ort

_STDERR = 2
_ERRORS, _SILENT = 3, 4
"""ONNX Runtime's severities."""

_READ_BYTES = 65536
_READ_S = 2.0
_MARK = b"latentsync-trt-mark-%d"

# "2026-01-31 10:00:00.123 [E:onnxruntime:Default, file.h:88 log] [2026-01-31 09:00:00   ERROR] the reason", in colors.
_LOG_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*\d{4}-\d\d-\d\d [\d:.]+ \[[EF]:onnxruntime:[^\]]*\]\s*(?:\[[^\]]*\]\s*)?(.*)"
)
_MARKED = re.compile(rb"latentsync-trt-mark-(\d+)\n")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class _Capture:
    """Stderr of the whole process, read by a thread as long as there are readers of its error lines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: list[list[str]] = []
        self._saved = -1
        self._thread: threading.Thread | None = None
        self._marks = itertools.count()
        self._reached: dict[int, threading.Event] = {}

    def begin(self) -> list[str]:
        lines: list[str] = []
        with self._lock:
            if not self._readers:
                self._redirect()
            self._readers.append(lines)
        return lines

    def end(self, lines: list[str]) -> None:
        self._catch_up()
        with self._lock:
            if len(self._readers) == 1:
                self._restore()
            # By identity: two empty lists are equal.
            self._readers = [other for other in self._readers if other is not lines]

    def _redirect(self) -> None:
        _flush()
        try:
            self._saved = os.dup(_STDERR)
        except OSError:  # a program without stderr
            self._saved = -1
            return
        read_end, write_end = os.pipe()
        os.dup2(write_end, _STDERR)
        os.close(write_end)
        ort.set_default_logger_severity(_ERRORS)
        self._thread = threading.Thread(target=self._read, args=(read_end, self._saved), name="stderr", daemon=True)
        self._thread.start()

    def _restore(self) -> None:
        if self._saved < 0:
            return
        _flush()
        ort.set_default_logger_severity(_SILENT)
        os.dup2(self._saved, _STDERR)  # closes the pipe's last end, unless a child process has inherited it
        if self._thread is not None:
            self._thread.join(_READ_S)

    def _catch_up(self) -> None:
        """Waits until all that was written so far is read."""
        if self._saved < 0:
            return
        _flush()
        mark, reached = next(self._marks), threading.Event()
        self._reached[mark] = reached
        _write(_STDERR, _MARK % mark + b"\n")
        reached.wait(_READ_S)
        del self._reached[mark]

    def _read(self, read_end: int, passed_on: int) -> None:
        """Keeps the lines of ONNX Runtime's log, and passes all others on at once."""
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            rest = b""
            while chunk := pipe.read(_READ_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(line + b"\n", passed_on)
                if rest and not _may_be_ours(rest):  # a progress line, which has no end
                    _write(passed_on, rest)
                    rest = b""
            if rest:
                self._take(rest, passed_on)
        os.close(passed_on)  # here, as a child process may still write when the block has ended

    def _take(self, line: bytes, passed_on: int) -> None:
        mark = _MARKED.search(line)
        ours = mark or _LOG_LINE.search(line)
        # A progress line, which has no end, may precede it.
        _write(passed_on, line[: ours.start()] if ours else line)
        if mark:
            reached = self._reached.get(int(mark[1]))
            if reached is not None:  # otherwise the thread that wrote it has stopped waiting
                reached.set()
        elif ours:
            text = _COLORS.sub("", ours[1].decode(errors="replace")).strip()
            for lines in self._readers:
                lines.append(text)


_capture = _Capture()


@contextmanager
def native_errors() -> Iterator[list[str]]:
    """Collects the error lines of ONNX Runtime's default log; complete when the block has ended.

    Several threads may be inside; each gets the lines of all. Everything else written to stderr is passed on.
    """
    lines = _capture.begin()
    try:
        yield lines
    finally:
        _capture.end(lines)


def _may_be_ours(rest: bytes) -> bool:
    """Whether the beginning of a line may belong to a log line or a mark."""
    return rest.startswith((b"\x1b[", b"20", _MARK[:1]))


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):  # closed, or none
        sys.stderr.flush()


def _write(target: int, content: bytes) -> None:
    with suppress(OSError):
        os.write(target, content)
