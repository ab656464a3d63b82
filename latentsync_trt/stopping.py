"""Ends a command on Ctrl-C, SIGTERM and SIGHUP: within two seconds, with nothing left behind.

A signal raises a KeyboardInterrupt in the main thread, which leaves its blocks and ends the process.
It also wakes another thread, even while the main one runs native code: that ends the process if the
main thread has not done so in time, or at a second signal.

Only commands install this, before any other import.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from latentsync_trt.errors import LatentSyncError

INTERRUPTED_CODE = 130

_CODES = {
    int(getattr(signal, name)): code
    for name, code in (("SIGINT", INTERRUPTED_CODE), ("SIGBREAK", INTERRUPTED_CODE), ("SIGTERM", 143), ("SIGHUP", 129))
    if hasattr(signal, name)
}
"""Exit code by signal. Windows has SIGBREAK for Ctrl-Break and for a console that is closed."""

_LEAVE_S, _CHILDREN_S, _WRITE_S = 1.1, 0.4, 0.3
"""Of the two seconds: for the main thread's blocks, for children, for readers of the output."""

_WRITE_TURNS = 30

# Erases what is left of a progress bar, and shows the cursor, which the bar hides.
_END_BAR = "\r\x1b[2K\x1b[?25h"

bars = list[Any]()
"""Of rich, which may be shown; the last message comes below them."""

_messages = ["interrupted; unfinished files were removed"]
_ending = threading.Lock()
_announcing = threading.RLock()
_code: int | None = None
_raised = False
_stderr: int | None = None
"""A copy of stderr, which is a file while the log of native code is captured."""


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


def install() -> None:
    """Begins to handle signals, except those that the parent process ignores (`nohup`, `&`)."""
    global _stderr
    with suppress(OSError):  # a program without one
        _stderr = os.dup(2)
    signals, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    for number in _CODES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)
    threading.Thread(target=_watch, args=(signals, wakeup), name="stopping", daemon=True).start()


def requested() -> bool:
    return _code is not None


def end_if_requested(message: str = "") -> None:
    """Ends the process, with a message, if a signal asked it to stop."""
    if _code is not None:
        _end(message, _code)


def _interrupt(number: int, _: FrameType | None) -> None:
    """Called in the main thread; raises only for the first signal."""
    global _raised
    _announce(number)
    if not _raised:
        _raised = True
        raise KeyboardInterrupt


def _announce(number: int) -> int:
    """Says at the first signal that the command stops; returns the exit code."""
    global _code
    with _announcing:
        if _code is None:
            _code = _CODES[number]
            if not any(bar.live.is_started for bar in bars):
                _say("stopping…")
        return _code


def _watch(signals: socket.socket, _: socket.socket) -> None:
    number = 0
    while number not in _CODES:
        number = signals.recv(1)[0]
    # Later failures in threads are caused by the stop.
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    code = _announce(number)
    children = sys.modules.get("latentsync_trt.child")
    if children is not None:
        children.ask_all_to_end()
    signals.settimeout(_LEAVE_S)
    with suppress(TimeoutError):
        signals.recv(1)  # a second signal
    _end(interrupted_message(), code)


def _end(message: str, code: int) -> NoReturn:
    """Ends the process with its children and temporary folders, and prints `message`."""
    with _ending:  # a second thread waits until the first one ends the process
        try:
            _end_children()
            temporary = sys.modules.get("latentsync_trt.files")
            if temporary is not None:
                temporary.remove_all()
        finally:
            try:
                writer = threading.Thread(target=_write, args=(message,), daemon=True)
                writer.start()  # whoever reads the output may be stuck
                for _ in range(_WRITE_TURNS):  # short ones: a third thread may keep Python's lock for all of a long one
                    writer.join(_WRITE_S / _WRITE_TURNS)
            finally:
                os._exit(code)


def _write(message: str) -> None:
    for bar in bars:
        with suppress(Exception):  # whatever state the main thread has left it in
            bar.stop()
    if message and "--json" in sys.argv and sys.__stdout__ is not None:
        sys.__stdout__.write(json.dumps({"error": message}) + "\n")
    elif message:
        _say(f"error: {message}")
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        stream.flush()


def _say(text: str) -> None:
    if _stderr is not None:
        bar = os.isatty(_stderr) and os.environ.get("TERM") != "dumb"
        encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"  # `sys.stderr` has none while a bar is shown
        with suppress(OSError):
            os.write(_stderr, f"{_END_BAR if bar else ''}{text}\n".encode(encoding, "replace"))


def _end_children() -> None:
    """Waits for child processes, and kills those that are left."""
    with suppress(ImportError, OSError):
        import psutil

        with suppress(psutil.Error):
            children = psutil.Process().children(recursive=True)
            for child in psutil.wait_procs(children, _CHILDREN_S)[1]:
                with suppress(psutil.Error):
                    child.kill()
