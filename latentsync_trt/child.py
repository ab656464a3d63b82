"""Calls functions in child processes, which exchange Python objects with their parent over a
connection that they inherit.

Native code in a child can be interrupted at once; its crash, or a limit of memory or time, ends
only the child.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from math import inf
from multiprocessing import connection
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from time import monotonic
from typing import Any, Protocol, Self
from weakref import WeakSet

import psutil

from latentsync_trt import child_main
from latentsync_trt.child_main import (
    CallEnded,
    Cancel,
    ChildEvent,
    Handler,
    OnProgress,
    Order,
    Progressed,
)
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.stopping import exit_code

ENDING_S = 10.0
"""Time in which a child removes its temporary folders: it needs that only where the machine is
overloaded.
"""
_ASKED_S = 0.5
"""Time in which a child that has exceeded a limit removes its temporary folders."""
_WAIT_S = 0.1
"""Length of each wait: Windows delivers Ctrl-C only between two."""

_WINDOWS_EXCEPTIONS = range(0xC0000000, 0xD0000000)
"""Exit codes of processes that Windows has ended, as 0xC0000005 for an access violation."""
_WINDOWS_CTRL_C = 0xC000013A

_running: "WeakSet[ChildProcess]" = WeakSet()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code, negative for a signal."""
    last_error_line: str
    """The last line it printed."""

    def __str__(self) -> str:
        """For example "signal 11 (SIGSEGV)" or "exit code 1"; on Windows, 3221225477 is an access
        violation.
        """
        if self.code >= 0:
            return f"exit code {self.code}"
        names = {each.value: f" ({each.name})" for each in signal.Signals}
        return f"signal {-self.code}{names.get(-self.code, '')}"

    @property
    def crash(self) -> str:
        """What ended it, as text, if that was the system: a signal, or on Windows an exception;
        else empty.
        """
        if self.code < 0:
            return str(self)
        if self.code in _WINDOWS_EXCEPTIONS and self.code != _WINDOWS_CTRL_C:
            return str(self)
        return ""


class ChildLost(LatentSyncError):
    """A child ended, or was ended, before it had answered. `ended` says how, if by itself."""

    def __init__(self, *args: Any, usage: bool | None = None, ended: Ended = Ended(0, "")) -> None:
        super().__init__(*args, usage=usage)
        self.ended = ended


class MemoryExceeded(ChildLost):
    """A child was ended as it took more memory than one of its `calls` allowed."""

    def __init__(self, *args: Any, calls: int) -> None:
        super().__init__(*args)
        self.calls = calls


class Process(Protocol):
    """What a `Child` talks to."""

    pid: int

    @property
    def memory_bytes(self) -> int:
        """What it occupies; 0 where that is not known, or has no limit."""

    def send(self, message: Order | Cancel) -> None:
        """Sends a message; does nothing if the process has ended, which `events` shows."""

    def events(self) -> Iterator[ChildEvent]:
        """Yields what the process sends; raises `LatentSyncError` when it has ended."""

    def end(self, patience_s: float = 0.0) -> object:
        """Ends it: asks it to, and kills it if it has not ended after `patience_s`."""


class ChildProcess:
    """A process of this machine that carries out orders with `handler`. It ends with this process,
    however that ends.

    All methods may be called from any thread. Raises `OSError` if it cannot be started.
    """

    def __init__(self, handler: Handler, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables in addition to those of this process."""
        # Import this installation of the package, and nothing from the current folder (`-P`).
        package = str(Path(__file__).resolve().parents[1])
        paths = [package, os.environ.get("PYTHONPATH", "")]
        python = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1"}
        self._printed = TemporaryFile()  # noqa: SIM115 -- closed by `wait`
        self._connection, theirs = connection.Pipe()
        start = f"from {child_main.__name__} import serve_parent; serve_parent()"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", start, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={**os.environ, **python, **(environment or {})},
                **_inheriting(theirs.fileno()),
            )
        except BaseException:
            self._printed.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._lock = threading.Lock()
        self._ended: Ended | None = None
        _running.add(self)
        self.send(handler)

    @property
    def memory_bytes(self) -> int:
        """What it occupies; on Linux without files and libraries, which it may share. 0 when it has
        ended.
        """
        with suppress(psutil.Error):
            memory = psutil.Process(self.pid).memory_info()
            return int(memory.rss - getattr(memory, "shared", 0))
        return 0

    def send(self, message: Any) -> None:
        with self._lock, suppress(OSError):
            self._connection.send(message)

    def events(self) -> Iterator[ChildEvent]:
        with suppress(EOFError, OSError):
            while True:
                yield self._connection.recv()
        # If only the connection was lost, it still locks its outputs.
        ended = self.end(ENDING_S)
        line = ended.last_error_line or "no message"
        raise ChildLost(f"its process ended with {ended}: {line}", ended=ended)

    def ask_to_end(self) -> None:
        """Asks the child to remove its temporary folders and end, unless an order still waits."""
        if self._lock.acquire(timeout=_WAIT_S):
            with suppress(OSError):
                self._connection.send(None)
            self._lock.release()

    def end(self, patience_s: float = 0.0) -> Ended:
        if patience_s:
            self.ask_to_end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._process.kill()  # does nothing if it has ended
        return self._wait()

    def _wait(self) -> Ended:
        code = None
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_WAIT_S)
        with self._lock:
            if self._ended is None:
                self._printed.seek(0)
                text = self._printed.read().decode("utf-8", errors="replace")
                self._printed.close()
                lines = [line.strip() for line in text.splitlines() if line.strip()]
                self._ended = Ended(code, lines[-1] if lines else "")
        return self._ended


class Child:
    """Lets a process carry out calls, which may come from any thread, and ends it where it exceeds
    a limit. When it has ended, for whatever reason, each call raises why.
    """

    def __init__(self, process: Process, silent_s: float = inf, cancel_s: float = _ASKED_S) -> None:
        """
        Args:
            silent_s: how long the child may send nothing at all while calls run.
            cancel_s: how long a call may go on after it was canceled.
        """
        self._process = process
        self._silent_s = silent_s
        self._cancel_s = cancel_s
        self._lock = threading.Lock()
        self._numbers = count()
        self._calls: dict[int, SimpleQueue[Progressed | CallEnded]] = {}
        self._heard_s = monotonic()
        self._lost: LatentSyncError | None = None
        threading.Thread(target=self._read, name="events of a child", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """Whether it takes no more calls."""
        return self._lost is not None

    @property
    def is_silent(self) -> bool:
        """Whether it works, and has sent nothing for a tenth of the time after which it is
        ended.
        """
        return self._silence_s() > self._silent_s / 10

    def call(
        self,
        order: Any,
        on_progress: OnProgress = lambda _: None,
        *,
        is_canceled: Callable[[], bool] = lambda: False,
        most_bytes: float = inf,
    ) -> Any:
        """Returns what the handler returns for `order`; raises its `LatentSyncError`.

        Args:
            on_progress: gets what the handler reports.
            is_canceled: asked ten times a second; where it says so, the handler is told to stop. An
                error of these two stops it as well, and is raised when it has stopped.
            most_bytes: of memory that the child may take while the call runs.

        Raises:
            CallCanceled: the handler has stopped early.
            ChildLost: the child has ended, or a limit was exceeded (`MemoryExceeded`).
        """
        events = SimpleQueue[Progressed | CallEnded]()
        number = next(self._numbers)
        with self._lock:
            if self._lost is not None:
                raise self._lost
            if not self._calls:
                self._heard_s = monotonic()
            self._calls[number] = events
        self._process.send(Order(number, order))
        try:
            answer = self._wait(number, on_progress, is_canceled, most_bytes)
        except BaseException:
            self._wait(number, lambda _: None, lambda: True, most_bytes)
            raise
        finally:
            with self._lock:
                del self._calls[number]
        if answer.error is not None:
            raise answer.error
        return answer.result

    def end(self, reason: LatentSyncError | None = None, patience_s: float = ENDING_S) -> None:
        """Ends the process, after which calls raise `reason`; may be called again."""
        with self._lock:
            self._lost = self._lost or reason or ChildLost("was closed")
        self._process.end(patience_s)

    def _wait(
        self,
        number: int,
        on_progress: OnProgress,
        is_canceled: Callable[[], bool],
        most_bytes: float,
    ) -> CallEnded:
        """Waits for the end of a call while it watches the limits."""
        events = self._calls[number]
        canceled_s = inf
        while True:
            with suppress(Empty):
                event = events.get(timeout=_WAIT_S)
                if isinstance(event, CallEnded):
                    return event
                on_progress(event.value)
            if canceled_s == inf and is_canceled():
                canceled_s = monotonic()
                self._process.send(Cancel(number))
            if not self.is_lost:
                self._check_limits(canceled_s, most_bytes)

    def _check_limits(self, canceled_s: float, most_bytes: float) -> None:
        reason: LatentSyncError
        if self._silence_s() > self._silent_s:
            reason = ChildLost(f"did not answer for {self._silent_s:g} s, and was ended")
        elif monotonic() - canceled_s > self._cancel_s:
            text = f"did not obey a cancel within {self._cancel_s:g} s, and was ended"
            reason = ChildLost(text)
        elif self._process.memory_bytes > most_bytes:
            text = f"needs more than {most_bytes / 1e9:.2g} GB of memory"
            reason = MemoryExceeded(text, calls=len(self._calls))
        else:
            return
        self.end(reason, _ASKED_S)

    def _silence_s(self) -> float:
        with self._lock:
            if self._calls:
                return monotonic() - self._heard_s
        return 0.0

    def _read(self) -> None:
        """In a thread: passes events to the calls that wait for them, until the process ends."""
        reason: LatentSyncError = ChildLost("sent what cannot be read")
        try:
            for event in self._process.events():
                self._heard_s = monotonic()
                # The callback for progress may also be called when its call has ended.
                if event is not None and event.number in self._calls:
                    self._calls[event.number].put(event)
        except LatentSyncError as error:
            reason = error
        finally:
            self.end(reason)
            with self._lock:
                for number, events in self._calls.items():
                    events.put(CallEnded(number, error=self._lost))


def run_child(
    handler: Handler,
    order: Any,
    on_progress: OnProgress = lambda _: None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Returns what `handler` returns for `order` in a process of its own. Raises as `Child.call`,
    `OSError` if the process cannot be started, and KeyboardInterrupt if a signal has ended it.
    """
    with Child(ChildProcess(handler, environment)) as child:
        try:
            return child.call(order, on_progress)
        except ChildLost:
            if exit_code():
                raise KeyboardInterrupt from None
            raise


def ask_all_to_end() -> None:
    """Calls `ChildProcess.ask_to_end` of every child of this process."""
    for process in list(_running):
        process.ask_to_end()


def kill_all() -> None:
    """Kills every child of this process, and what these have started."""
    with suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()


def _inheriting(handle: int) -> dict[str, Any]:
    """Returns the arguments of `Popen` that let the child have a connection."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": [handle]}
