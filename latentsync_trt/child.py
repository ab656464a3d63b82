"""Runs a module of this package in a child process; parent and child exchange JSON objects, one a line.

Native code in a child can be interrupted at once, and its crash ends only the child.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryFile
from typing import IO, Any, NoReturn, Self, TypeVar, cast

from latentsync_trt.stopping import requested

Event = dict[str, Any]
Emit = Callable[..., None]
"""Takes the fields of an event as keyword arguments."""

# Bit set in the NTSTATUS that is the exit code of a crash on Windows, e.g. 0xC0000005 for an access violation.
_NTSTATUS = 0x8000_0000
# Windows delivers Ctrl-C only between waits.
_POLL_S = 0.1
_PIPE_BYTES = 65536

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit code, negative for a signal, and its last line on stderr."""

    code: int
    last_error_line: str

    def __str__(self) -> str:
        """For example "signal 11 (SIGSEGV)" or "exit code 1"."""
        if self.code & _NTSTATUS and self.code > 0:
            return f"code 0x{self.code:08X}"
        if self.code >= 0:
            return f"exit code {self.code}"
        with suppress(ValueError):
            return f"signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"signal {-self.code}"


class Child:
    """A process that runs `module`, which calls `serve` or `converse`. It ends when this process ends, too.

    As a context manager it is killed when the block ends. `send`, `wait` and `end` may come from any thread.

    Args:
        environment: variables in addition to those of this process.
        binary: leaves what is exchanged to the caller, through `pipes`, instead of `send` and `events`.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None, *, binary: bool = False) -> None:
        # Import this installation of the package, and nothing from the current folder (`-P`).
        paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1"}
        self._stderr = TemporaryFile()  # noqa: SIM115 -- closed by `wait`
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                encoding=None if binary else "utf-8",
                errors=None if binary else "replace",
                env={**os.environ, **own, **(environment or {})},
            )
        except BaseException:
            self._stderr.close()
            raise
        self.pid, self._binary = self._process.pid, binary
        self._lock = threading.Lock()
        self._ended: Ended | None = None
        self._lines: Queue[str | None] = Queue()
        if not binary:
            threading.Thread(target=self._pump, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """The child's stdin and stdout."""
        return cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def send(self, order: Mapping[str, Any]) -> None:
        """Sends an order; does nothing if the child has ended, which `events` shows."""
        stdin = cast(IO[str], self._process.stdin)
        with self._lock, suppress(OSError, ValueError):
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()

    def events(self) -> Iterator[Event]:
        """Events as they arrive, until the child closes its stdout."""
        for line in _received(self._lines):
            if line is None:
                self._lines.put(None)  # for the next caller
                return
            with suppress(ValueError):  # printed before `converse` redirected stdout
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event

    def wait(self) -> Ended:
        """Waits until the child has ended."""
        code = None
        while code is None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_POLL_S)
        with self._lock:
            if self._ended is None:
                self._stderr.seek(0)
                lines = self._stderr.read().decode("utf-8", errors="replace").splitlines()
                self._stderr.close()
                with suppress(OSError):  # the child did not read the last order
                    cast(IO[str], self._process.stdin).close()
                if self._binary:  # else `_pump` closes it
                    self.pipes[1].close()
                self._ended = Ended(code, next((line.strip() for line in reversed(lines) if line.strip()), ""))
        return self._ended

    def end(self, patience_s: float = 0.0) -> Ended:
        """Ends the child: by closing its stdin, and by force if it has not ended after `patience_s`."""
        if patience_s:
            with self._lock, suppress(OSError):
                cast(IO[str], self._process.stdin).close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        self._process.kill()  # does nothing if it has ended
        return self.wait()

    def _pump(self) -> None:
        """Runs in a thread, so that waiting for events can be interrupted on Windows, too."""
        with cast(IO[str], self._process.stdout) as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put(None)


def run_child(
    module: str,
    order: Mapping[str, Any],
    on_event: Callable[[Event], None],
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Runs `module`, which calls `serve`, to its end. The child also ends when this process ends or is interrupted.

    Args:
        on_event: called for each event as it arrives. environment: variables in addition to those of this process.

    Raises:
        OSError: the process cannot be started. KeyboardInterrupt: also if Ctrl-C reached only the child.
    """
    with Child(module, environment) as child:
        child.send(order)
        for event in child.events():
            on_event(event)
        ended = child.wait()
    if ended.code == -signal.SIGINT or (ended.code == -signal.SIGTERM and requested()):
        raise KeyboardInterrupt
    return ended


def serve(work: Callable[[Event, Emit], None]) -> None:
    """In the child: calls `work` with the first order; as `converse`."""
    converse(lambda orders, emit: work(next(orders), emit))


def converse(work: Callable[[Iterator[Event], Emit], None]) -> None:
    """In the child: calls `work` with the orders as they arrive; redirects other output on stdout to stderr.

    When stdin is closed, by the parent or by its end, this process ends at once, without its temporary folders.
    """
    # Python's own handler would wait until native code returns, which can take minutes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    orders: Queue[Event] = Queue()
    threading.Thread(target=_read_orders, args=(orders,), daemon=True).start()
    lock = threading.Lock()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as events:
        os.dup2(2, 1)

        def emit(**fields: Any) -> None:
            text = "\n" + json.dumps(fields) + "\n"  # an event has a line of its own
            with lock:
                try:
                    events.write(text)
                    events.flush()
                except OSError:  # the parent has ended: `work` must not take that for an error of its own
                    end_process(1)

        work(_received(orders), emit)


def end_process(code: int) -> NoReturn:
    """Removes the temporary folders of this process and ends it at once; from any thread."""
    temporary = sys.modules.get("latentsync_trt.files")
    if temporary is not None:
        temporary.remove_all()
    os._exit(code)


def _read_orders(orders: Queue[Event]) -> None:
    rest = b""
    while piece := os.read(0, _PIPE_BYTES):  # not `sys.stdin`, whose lock a normal exit would wait for
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            orders.put(json.loads(line))
    end_process(1)


def _received(queue: Queue[T]) -> Iterator[T]:
    """Items as they arrive, without end."""
    while True:
        with suppress(Empty):
            yield queue.get(timeout=_POLL_S)
