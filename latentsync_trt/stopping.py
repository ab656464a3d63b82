"""Ends a command on Ctrl-C, SIGTERM and SIGHUP. The first signal raises KeyboardInterrupt in the main thread, so that
`finally` blocks run; the second one ends the process at once. Only commands install this, before any other import."""

import _thread
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

INTERRUPTED = "interrupted; unfinished files were removed"
INTERRUPTED_CODE = 130

_CODES = {"SIGINT": INTERRUPTED_CODE, "SIGBREAK": INTERRUPTED_CODE, "SIGTERM": 143, "SIGHUP": 129}
"""Exit code by signal. Windows has SIGBREAK for Ctrl-Break and for a console that is closed."""

bars = list[Any]()
"""Of rich, shown or ended: interrupted while it draws one, it would leave it there, and the cursor hidden."""

_code = 0


def install() -> None:
    """Begins to handle signals, except those that the parent process ignores (`nohup`, `&`)."""
    for name in _CODES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def exit_code() -> int:
    """That of the signal that asked the command to stop; 0 if none has."""
    return _code


def _interrupt(number: int, _: FrameType | None) -> None:
    global _code
    children = sys.modules.get("latentsync_trt.child")
    if _code:
        if children is not None:
            children.kill_all()
        os._exit(_code)
    _code = _CODES[signal.Signals(number).name]
    ended = _thread.allocate_lock()
    ended.acquire()
    _thread.start_new_thread(_end_bars, (ended,))
    if ended.acquire(timeout=1):  # the interrupted thread may hold a lock that drawing waits for until this returns
        with suppress(OSError):
            os.write(2, "stopping…\n".encode())
    if children is not None:
        children.ask_all_to_end()
    raise KeyboardInterrupt


def _end_bars(ended: _thread.LockType) -> None:
    for bar in bars:
        with suppress(Exception):  # whatever state the interrupted thread has left it in
            bar.stop()
    ended.release()
