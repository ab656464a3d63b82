"""Runs a module of this package in a child process that reads one order and writes events, both as JSON lines.

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
from typing import IO, Any, cast

from latentsync_trt.stopping import requested

Event = dict[str, Any]
Emit = Callable[..., None]
"""Takes the fields of an event as keyword arguments."""

# Bit set in the NTSTATUS that is the exit code of a crash on Windows, e.g. 0xC0000005 for an access violation.
_NTSTATUS = 0x8000_0000
# Windows delivers Ctrl-C only between waits.
_POLL_S = 0.1


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
    # Import this installation of the package, and nothing from the current folder (`-P`).
    paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUTF8": "1"}
    with TemporaryFile() as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **own, **(environment or {})},
        )
        stdin = cast(IO[str], process.stdin)
        try:
            with suppress(OSError):  # the child has ended; its exit code and stderr say why
                stdin.write(json.dumps(order) + "\n")
                stdin.flush()
            for event in _events(cast(IO[str], process.stdout)):
                on_event(event)
            code = None
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_POLL_S)
        finally:
            process.kill()  # does nothing if it has ended
            process.wait()
            with suppress(OSError):  # the child did not read the order
                stdin.close()
        if code == -signal.SIGINT or (code == -signal.SIGTERM and requested()):
            raise KeyboardInterrupt
        stderr.seek(0)
        lines = stderr.read().decode("utf-8", errors="replace").splitlines()
    return Ended(code, next((line.strip() for line in reversed(lines) if line.strip()), ""))


def serve(work: Callable[[Event, Emit], None]) -> None:
    """In the child: calls `work` with the order from stdin; redirects other output on stdout to stderr."""
    # Python's own handler would wait until native code returns, which can take minutes.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as events:
        os.dup2(2, 1)

        def emit(**fields: Any) -> None:
            events.write("\n" + json.dumps(fields) + "\n")  # an event has a line of its own
            events.flush()

        work(order, emit)


def _end_with_the_parent() -> None:
    """Ends this process when stdin is closed, by the parent or by its end."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def _events(stdout: IO[str]) -> Iterator[Event]:
    """Events as they arrive; read in a thread, so that waiting can be interrupted on Windows, too."""
    lines: Queue[str | None] = Queue()

    def pump() -> None:
        with stdout:
            for line in stdout:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        with suppress(Empty, ValueError):  # a line that is not JSON was printed before `serve` redirected stdout
            line = lines.get(timeout=_POLL_S)
            if line is None:
                return
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
