"""Reads ONNX Runtime's log, the only place where TensorRT says why it fails."""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile

import onnxruntime as ort

_STDERR = 2
"""The number of the file that native code writes its log to."""

# ONNX Runtime's severities.
_ERRORS = 3
_FATAL_ERRORS = 4

# "2026-01-31 10:00:00.123 [E:onnxruntime:Default, file.h:88 log] [2026-01-31 09:00:00   ERROR] the
# reason", in colors.
_LOG_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*\d{4}-\d\d-\d\d [\d:.]+ "
    rb"\[[EF]:onnxruntime:[^\]]*\]\s*(?:\[[^\]]*\]\s*)?(.*)\n?"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")

_reading = threading.Lock()


@contextmanager
def native_errors() -> Iterator[list[str]]:
    """Collects the error lines of ONNX Runtime's log, which it writes to stderr and nowhere else.

    The list is filled when the block ends; other output to stderr, of any thread, appears then.
    """
    lines: list[str] = []
    with _reading, TemporaryFile() as log:
        try:
            saved = os.dup(_STDERR)
        except OSError:  # a program without stderr
            yield lines
            return
        _flush_stderr()
        os.dup2(log.fileno(), _STDERR)
        ort.set_default_logger_severity(_ERRORS)
        try:
            yield lines
        finally:
            _flush_stderr()
            ort.set_default_logger_severity(_FATAL_ERRORS)
            os.dup2(saved, _STDERR)
            os.close(saved)
            log.seek(0)
            text = log.read()
            messages = [line.decode(errors="replace") for line in _LOG_LINE.findall(text)]
            lines += [_COLORS.sub("", message).strip() for message in messages]
            with os.fdopen(_STDERR, "wb", closefd=False) as stderr:
                stderr.write(_LOG_LINE.sub(b"", text))


def _flush_stderr() -> None:
    with suppress(ValueError, AttributeError):  # closed, or none
        sys.stderr.flush()
