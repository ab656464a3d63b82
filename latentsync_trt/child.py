"""Runs functions in child processes that exchange Python objects with their parent over a
connection they inherit.

Native code in a child can be interrupted at once; its crash, or a limit of memory or time, ends
only the child.
"""

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryFile
from typing import Any, NoReturn, Self
from weakref import WeakSet

import psutil

from latentsync_trt.files import remove_all
from latentsync_trt.stopping import exit_code

Event = dict[str, Any]
Emit = Callable[..., None]
"""Takes the fields of an event as keyword arguments."""
Work = Callable[[Iterator[Any], Emit], None]
"""Of a child: gets its orders as they arrive, without end, and emits events. A function at the top
of a module.
"""

# Windows delivers Ctrl-C only between waits.
_POLL_S = 0.1

# In which a child removes its temporary folders: at once, unless the machine is overloaded.
_PATIENCE_S = 10.0

_WINDOWS_EXCEPTIONS = range(0xC0000000, 0xD0000000)
"""Exit codes of processes that Windows has ended, as 0xC0000005 for an access violation."""
_WINDOWS_CTRL_C = 0xC000013A

_running: "WeakSet[Child]" = WeakSet()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code, negative for a signal, and the last line it printed."""

    code: int
    last_error_line: str

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
        crashed = self.code < 0 or (
            self.code in _WINDOWS_EXCEPTIONS and self.code != _WINDOWS_CTRL_C
        )
        if crashed:
            return str(self)
        return ""


class Child:
    """A process that calls `work`; ends with this process, or with its block.

    `environment`: variables in addition to those of this process. `send`, `wait` and `end` may come
    from any thread. Raises `OSError` if the process cannot be started.
    """

    def __init__(self, work: Work, environment: Mapping[str, str] | None = None) -> None:
        # Import this installation of the package, and nothing from the current folder (`-P`).
        paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1"}
        self._printed = TemporaryFile()  # noqa: SIM115 -- closed by `wait`
        self._connection, theirs = connection.Pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    f"from {__name__} import main; main()",
                    str(theirs.fileno()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={**os.environ, **own, **(environment or {})},
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
        self.send(work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(_PATIENCE_S)

    @property
    def memory_bytes(self) -> int:
        """What it occupies; on Linux without files and libraries, which it may share. 0 when it has
        ended.
        """
        with suppress(psutil.Error):
            memory = psutil.Process(self.pid).memory_info()
            return int(memory.rss - getattr(memory, "shared", 0))
        return 0

    def send(self, order: Any) -> None:
        """Sends an order; does nothing if the child has ended, which `events` shows."""
        with self._lock, suppress(OSError):
            self._connection.send(order)

    def events(self, watch: Callable[[], None] = lambda: None) -> Iterator[Event]:
        """Events as they arrive, until the child ends; calls `watch` before each, and ten times a
        second.
        """
        with suppress(EOFError, OSError):
            while True:
                arrived = self._connection.poll(_POLL_S)
                watch()
                if arrived:
                    yield self._connection.recv()

    def wait(self) -> Ended:
        code = None
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_POLL_S)
        with self._lock:
            if self._ended is None:
                self._printed.seek(0)
                lines = self._printed.read().decode("utf-8", errors="replace").splitlines()
                self._printed.close()
                self._ended = Ended(
                    code, next((line.strip() for line in reversed(lines) if line.strip()), "")
                )
        return self._ended

    def ask_to_end(self) -> None:
        """Asks the child to remove its temporary folders and end, unless an order still waits."""
        if self._lock.acquire(timeout=_POLL_S):
            with suppress(OSError):
                self._connection.send(None)
            self._lock.release()

    def end(self, patience_s: float = 0.0) -> Ended:
        """Ends the child: asks it to, and kills it if it has not ended after `patience_s`."""
        if patience_s:
            self.ask_to_end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._process.kill()  # does nothing if it has ended
        return self.wait()


def run_child(
    work: Work,
    order: Any,
    on_event: Callable[[Event], None],
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Gives `order` to a `Child` and calls `on_event` for each event until it ends. Raises
    `OSError` if it cannot be started, `KeyboardInterrupt` also if Ctrl-C reached only the child.
    """
    with Child(work, environment) as child:
        child.send(order)
        for event in child.events():
            on_event(event)
        ended = child.wait()
    if ended.code == -signal.SIGINT or exit_code():
        raise KeyboardInterrupt
    return ended


def ask_all_to_end() -> None:
    """As `Child.ask_to_end`, for every child of this process."""
    for child in list(_running):
        child.ask_to_end()


def kill_all() -> None:
    """Kills every child of this process, and what these have started."""
    with suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                process.kill()


def main() -> None:
    """In the child. When the parent asks for it or has ended, removes temporary folders and ends at
    once.
    """
    # Python's own handler would wait until native code returns, which can take minutes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = _inherited(int(sys.argv[-1]))
    lock = threading.Lock()
    function: Work = parent.recv()
    orders: Queue[Any] = Queue()
    threading.Thread(target=_read_orders, args=(parent, orders), daemon=True).start()

    def emit(**fields: Any) -> None:
        with lock:
            try:
                parent.send(fields)
            except OSError:  # the parent has ended, which is no error of `function`
                end_process(1)

    function(_received(orders), emit)


def give_memory_back() -> None:
    """Returns to the system what this process has freed, for what follows may need less for hours.
    PyAV's frames form cycles, and glibc keeps what is not at the end of its heaps.
    """
    gc.collect()
    if sys.platform == "linux":
        with suppress(AttributeError):  # of another C library
            ctypes.CDLL(None).malloc_trim(0)


def end_process(code: int) -> NoReturn:
    """Removes the temporary folders of this process and ends it at once; from any thread."""
    remove_all()
    os._exit(code)


def _inheriting(handle: int) -> dict[str, Any]:
    """Arguments of `Popen` that let the child have a connection."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": [handle]}


def _inherited(handle: int) -> "connection.Connection[Any, Any]":
    if sys.platform == "win32":
        return connection.PipeConnection(handle)
    return connection.Connection(handle)


def _read_orders(parent: "connection.Connection[Any, Any]", orders: "Queue[Any]") -> None:
    with suppress(EOFError, OSError):
        while (order := parent.recv()) is not None:
            orders.put(order)
    end_process(1)


def _received(orders: "Queue[Any]") -> Iterator[Any]:
    while True:
        with suppress(Empty):
            yield orders.get(timeout=_POLL_S)
