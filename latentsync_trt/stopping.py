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

INTERRUPTED_MESSAGE = "interrupted; unfinished files were removed"
INTERRUPTED_CODE = 130

_CODES = {"SIGINT": INTERRUPTED_CODE, "SIGBREAK": INTERRUPTED_CODE, "SIGTERM": 143, "SIGHUP": 129}
"""Exit code by signal. Windows has SIGBREAK for Ctrl-Break and for a console that is closed."""

progress_bars = list[Any]()
"""rich's progress bars, running or ended, to stop before the process is interrupted: else one that
is being drawn would be left there, and the cursor hidden.
"""

_code = 0
"""The exit code of the first signal that came; 0 before."""
_is_delayed = False
"""Whether a block of `delayed` runs."""
_is_pending = False
"""Whether a signal waits for the end of a block of `delayed`."""


def install() -> None:
    """Begins to handle signals, except those that the parent process ignores (`nohup`, `&`)."""
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    for name in _CODES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in defaults:
            signal.signal(number, _interrupt)


def exit_code() -> int:
    """Returns the code of the signal that asked the command to stop; 0 if none has."""
    return _code


@contextmanager
def delayed() -> Iterator[None]:
    """A first signal within the block raises KeyboardInterrupt at its end. Without effect in other
    threads than the main one, and before `install`.
    """
    global _is_delayed, _is_pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _is_delayed = True
    try:
        yield
    finally:
        _is_delayed = False
        is_pending = _is_pending
        _is_pending = False
    if is_pending:
        raise KeyboardInterrupt


def _interrupt(number: int, _: FrameType | None) -> None:
    global _code, _is_pending
    children = sys.modules.get("latentsync_trt.child")
    if _code:
        if children is not None:
            children.kill_all()
        os._exit(_code)
    _code = _CODES[signal.Signals(number).name]
    ended = _thread.allocate_lock()
    ended.acquire()
    _thread.start_new_thread(_stop_bars, (ended,))
    # the interrupted thread may hold a lock that drawing waits for until this returns
    if ended.acquire(timeout=1):
        with suppress(OSError):
            os.write(2, "stopping…\n".encode())
    if children is not None:
        children.ask_all_to_end()
    if _is_delayed:
        _is_pending = True
    else:
        raise KeyboardInterrupt


def _stop_bars(ended: _thread.LockType) -> None:
    for bar in progress_bars:
        with suppress(Exception):  # whatever state the interrupted thread has left it in
            bar.stop()
    ended.release()
