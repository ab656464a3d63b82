"""Ends a command on Ctrl-C, SIGTERM and SIGHUP: within two seconds, at any moment, with nothing left behind.

A signal does two things. It raises a KeyboardInterrupt in the main thread, which leaves its blocks and then ends the
process. And it wakes another thread, even while the main one runs native code: that prints "stopping…", and ends the
process if the main thread has not done so in time, or at a second signal.

Only commands install this. It is loaded before anything else, so that a signal during imports is handled, too.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

from latentsync_trt.errors import LatentSyncError

ENDS_WITH_STDIN = "LATENTSYNC_TRT_ENDS_WITH_STDIN"
"""Set for a command that runs as a child: it stops when its stdin is closed, by its parent or by its parent's end."""

INTERRUPTED_CODE = 130

_CODES = {
    int(getattr(signal, name)): code
    for name, code in (("SIGINT", INTERRUPTED_CODE), ("SIGBREAK", INTERRUPTED_CODE), ("SIGTERM", 143), ("SIGHUP", 129))
    if hasattr(signal, name)
}
"""Exit code by signal. Windows has no SIGHUP, but SIGBREAK for Ctrl-Break and for a console that is closed."""

# `_LEAVE_S` and `_END_S` are less than two seconds together. A child that is a command of its own leaves its blocks in
# the former, too.
_LEAVE_S = 1.1
_END_S = 0.8
_CHILDREN_S = 0.4
_WRITE_S = 0.2

# Erases the line of a progress bar, and shows the cursor, which the bar hides.
_END_BAR = "\r\x1b[2K\x1b[?25h"

_messages = ["interrupted; unfinished files were removed"]


class Interrupted(LatentSyncError):
    """A signal stopped the command."""


@contextmanager
def interruption(message: str = _messages[0]) -> Iterator[None]:
    """Sets what the command prints if it is interrupted inside the block.

    Raises:
        Interrupted: with `message`, for a KeyboardInterrupt.
    """
    _messages.append(message)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(with_notes(message, error)) from None
    finally:
        _messages.pop()


def with_notes(message: str, error: BaseException) -> str:
    """`message` and the notes of `error`, which say what to do, as one line."""
    return "; ".join([message, *(note for note in getattr(error, "__notes__", ()) if note not in message)])


def interrupted_message() -> str:
    """What to print about an interruption at this point."""
    temporary = sys.modules.get("latentsync_trt.files")
    if temporary is not None and temporary.keeps_work():
        return f"{_messages[-1]}; {temporary.GO_ON}"
    return _messages[-1]


class _Stop:
    """From the first signal to the end of the process."""

    def __init__(self) -> None:
        self.code: int | None = None
        """Exit code; None before the first signal."""
        self._interrupted = False
        self._announced = threading.Event()
        self._ending = threading.Lock()
        self._signals, self._wakeup = socket.socketpair()
        self._stderr = _copy_of_stderr()

    def install(self) -> None:
        """Handles signals, except those that the parent process set to be ignored (`nohup`, `&`)."""
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in _CODES:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._interrupt)
        threading.Thread(target=self._watch, name="stopping", daemon=True).start()

    def end(self, message: str = "") -> NoReturn:
        """Prints `message`, and ends the process with its children and temporary folders.

        A second thread that calls it waits for the first, for as long as that may take.
        """
        if self._ending.acquire(timeout=_END_S):
            with suppress(Exception):  # the process must end in any case
                _end_children()
                temporary = sys.modules.get("latentsync_trt.files")
                if temporary is not None:
                    temporary.remove_all()
                if message:
                    _in_time(lambda: _say_error(message, self._stderr))
                _in_time(_flush)
        os._exit(INTERRUPTED_CODE if self.code is None else self.code)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        """Called in the main thread, between two steps of Python code."""
        self.code = self.code or _CODES[number]
        if not self._interrupted:
            self._interrupted = True
            self._announced.wait(_WRITE_S)
            raise KeyboardInterrupt

    def _watch(self) -> None:
        """Runs in a thread of its own."""
        number = 0
        while number not in _CODES:
            number = self._signals.recv(1)[0]
        deadline_s = time.monotonic() + _LEAVE_S
        self.code = self.code or _CODES[number]
        # Later failures in threads are caused by the stop.
        threading.excepthook = lambda _: None
        sys.unraisablehook = lambda _: None
        _in_time(lambda: _say("stopping…", self._stderr))
        self._announced.set()
        with suppress(Exception):
            _ask_children()
        self._signals.settimeout(max(deadline_s - time.monotonic(), 0.01))
        with suppress(TimeoutError):
            self._signals.recv(1)  # a second signal
        self.end(interrupted_message())


_stop: _Stop | None = None


def install() -> None:
    """Begins to handle signals; see the module."""
    global _stop
    _stop = _Stop()
    _stop.install()
    if os.environ.pop(ENDS_WITH_STDIN, None):
        threading.Thread(target=_follow_stdin, name="parent", daemon=True).start()


def requested() -> bool:
    """Whether a signal has asked this command to stop."""
    return _stop is not None and _stop.code is not None


def end_if_requested(message: str = "") -> None:
    """Ends the process, with a message, if it was asked to stop; called when the command has left its blocks."""
    if _stop is not None and _stop.code is not None:
        _stop.end(message)


def _follow_stdin() -> None:
    while os.read(0, 1024):
        pass
    if os.name == "nt":
        signal.raise_signal(signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # to the process, as a signal to this thread would not wake the main one


def _copy_of_stderr() -> TextIO | None:
    """A copy of stderr, which is a file while the log of native code is captured."""
    try:
        return open(os.dup(2), "w", encoding=sys.stderr.encoding, errors="replace")  # noqa: PTH123
    except (OSError, AttributeError):  # a program without one
        return None


def _say(text: str, stderr: TextIO | None) -> None:
    if stderr is not None:
        bar = stderr.isatty() and os.environ.get("TERM") != "dumb"
        stderr.write(f"{_END_BAR if bar else ''}{text}\n")
        stderr.flush()


def _say_error(message: str, stderr: TextIO | None) -> None:
    if "--json" in sys.argv and sys.__stdout__ is not None:
        sys.__stdout__.write(json.dumps({"error": message}) + "\n")
    else:
        _say(f"error: {message}", stderr)


def _flush() -> None:
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()  # type: ignore[union-attr]


def _in_time(action: Callable[[], Any]) -> None:
    """Calls `action` in a thread and waits no longer than `_WRITE_S`, as the reader of a pipe may be stuck."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(_WRITE_S)


def _ask_children() -> None:
    """Asks child processes to end. On Windows, Ctrl-C has reached them, and there is no other way to ask."""
    import psutil

    for child in [] if os.name == "nt" else psutil.Process().children():
        with suppress(psutil.Error):
            child.terminate()


def _end_children() -> None:
    with suppress(ImportError, OSError):
        import psutil

        with suppress(psutil.Error):
            children = psutil.Process().children(recursive=True)
            for child in psutil.wait_procs(children, _CHILDREN_S)[1]:
                with suppress(psutil.Error):
                    child.kill()
