"""Ends a command on Ctrl-C, SIGTERM and SIGHUP. The first signal raises KeyboardInterrupt in the
main thread, so that `finally` blocks run; the second one ends the process at once. Only commands
install this, before any other import.

What would be lost if it were interrupted, such as what an encoder returns, runs in a block of
`delayed`.
"""

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

INTERRUPTED = "interrupted; unfinished files were removed"
INTERRUPTED_CODE = 130

_CODES = {"SIGINT": INTERRUPTED_CODE, "SIGBREAK": INTERRUPTED_CODE, "SIGTERM": 143, "SIGHUP": 129}
"""Exit code by signal. Windows has SIGBREAK for Ctrl-Break and for a console that is closed."""

bars = list[Any]()
"""Of rich, shown or ended: interrupted while it draws one, it would leave it there, and the cursor
hidden.
"""

_code = 0
_delays = False
_waits = False
"""Whether a signal waits for the end of a block of `delayed`."""


def install() -> None:
    """Begins to handle signals, except those that the parent process ignores (`nohup`, `&`)."""
    for name in _CODES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (
            signal.SIG_DFL,
            signal.default_int_handler,
        ):
            signal.signal(number, _interrupt)


def exit_code() -> int:
    """That of the signal that asked the command to stop; 0 if none has."""
    return _code


@contextmanager
def delayed() -> Iterator[None]:
    """A first signal within the block raises KeyboardInterrupt at its end. Without effect in other
    threads than the main one, and before `install`.
    """
    global _delays, _waits
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _delays = True
    try:
        yield
    finally:
        _delays = False
        waits = _waits
        _waits = False
    if waits:
        raise KeyboardInterrupt


def _interrupt(number: int, _: FrameType | None) -> None:
    global _code, _waits
    children = sys.modules.get("latentsync_trt.child")
    if _code:
        if children is not None:
            children.kill_all()
        os._exit(_code)
    _code = _CODES[signal.Signals(number).name]
    ended = _thread.allocate_lock()
    ended.acquire()
    _thread.start_new_thread(_end_bars, (ended,))
    # the interrupted thread may hold a lock that drawing waits for until this returns
    if ended.acquire(timeout=1):
        with suppress(OSError):
            os.write(2, "stopping…\n".encode())
    if children is not None:
        children.ask_all_to_end()
    if _delays:
        _waits = True
    else:
        raise KeyboardInterrupt


def _end_bars(ended: _thread.LockType) -> None:
    for bar in bars:
        with suppress(Exception):  # whatever state the interrupted thread has left it in
            bar.stop()
    ended.release()
