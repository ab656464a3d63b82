"""Runs a part of the self-test in a process of its own, and keeps what it says until it ends, or dies."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import psutil

from latentsync_trt.bench.rows import Memory
from latentsync_trt.bench.selftest.worker import GraphRun, Order
from latentsync_trt.errors import LatentSyncError
from latentsync_trt.runtime.compiler.process import module_process

_WORKER = "latentsync_trt.bench.selftest.worker"

# Windows reports a crash as an NTSTATUS of this size as its exit code, e.g. 0xC0000005 for an access violation.
_NTSTATUS = 0x8000_0000

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Painted:
    """Windows that were painted with a preset: seconds, and the providers that ran the graphs."""

    preset: str
    paint_s: float
    providers: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """What a process has said so far.

    `provider`: the one that runs, empty if none loaded. `passed_over`: what to tell of better ones. `graphs`, `painted`
    by name. `failures`: of all that is no single graph's. `notices`: of `Networks`, while it painted. `said`: all
    notices. `died`: how the process ended, empty if it did all that was ordered. `doing`: its last announcement.
    """

    environment: dict[str, str] = field(default_factory=dict)
    provider: str = ""
    passed_over: list[str] = field(default_factory=list)
    graphs: dict[str, GraphRun] = field(default_factory=dict)
    painted: dict[str, Painted] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    memory: Memory | None = None
    doing: str = "starting"
    died: str = ""
    done: bool = False

    def take(self, event: str, fields: Mapping[str, Any]) -> None:
        """Takes an event of `worker.carry_out`."""
        if event == "machine":
            self.environment = fields["environment"]
        elif event == "selected":
            self.provider, self.passed_over = fields["provider"], list(fields["notices"])
        elif event == "doing":
            self.doing = fields["text"]
        elif event == "notice":
            self.said.append(fields["text"])
        elif event == "graph":
            self.graphs[fields["graph"]] = GraphRun(**fields)
        elif event == "painted":
            self.painted[fields["preset"]] = Painted(fields["preset"], fields["paint_s"], tuple(fields["providers"]))
            self.notices += fields["notices"]
        elif event == "failed":
            self.failures.append(fields["text"])
        elif event == "memory":
            self.memory = Memory(**fields)
        elif event == "done":
            self.done = True

    @property
    def problems(self) -> list[str]:
        """Failures of all that is no single graph's, and how the process died."""
        return [*self.failures, *filter(None, [self.died])]


def run_part(order: Order, folder: Path, say: Callable[[str], None]) -> Outcome:
    """Has a new process carry out `order`; it ends with this one, by Ctrl-C, too.

    Args:
        folder: takes what the process writes to stderr. say: told what it is doing.

    Raises:
        LatentSyncError: the process cannot be started.
    """
    outcome, errors = Outcome(), folder / "stderr.txt"
    with errors.open("wb") as stderr:
        process = _start(stderr)
    try:
        with suppress(OSError):  # it died before it read; its exit code says of what
            process.stdin.write(json.dumps(asdict(order)))
            process.stdin.close()
        for line in _lines(process.stdout):
            event = _parsed(line)
            if event is not None:
                outcome.take(event.pop("event"), event)
                if "text" in event:
                    say(event["text"])
        code = process.wait()
    finally:
        _end(process)
    if not outcome.done:
        outcome.died = _how_it_died(code, outcome.doing, errors.read_text(encoding="utf-8", errors="replace"))
    return outcome


def _start(stderr: Any) -> Any:
    command, variables = module_process(_WORKER)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            env=variables,
        )
    except OSError as error:
        raise LatentSyncError(f"the self-test's process cannot be started ({error})") from error


def _lines(stdout: Any) -> Iterator[str]:
    """Lines as they come, read by another thread: Windows delivers Ctrl-C between waits, never inside one."""
    read: Queue[str | None] = Queue()

    def pump() -> None:
        with stdout:
            for line in stdout:
                read.put(line)
        read.put(None)

    threading.Thread(target=pump, name="selftest", daemon=True).start()
    while True:
        try:
            line = read.get(timeout=_POLL_S)
        except Empty:
            continue
        if line is None:
            return
        yield line


def _parsed(line: str) -> dict[str, Any] | None:
    """An event; None for what the process wrote before its libraries were kept from stdout, or while it died."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _end(process: Any) -> None:
    """Ends the process and those that it started, if it still runs."""
    if process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()
    with suppress(OSError):
        process.stdin.close()


def _how_it_died(code: int, doing: str, stderr: str) -> str:
    """For example "the process died with signal 11 (SIGSEGV) while opening vae_encoder: …"."""
    if code < 0:
        how = f"died with signal {-code}{_signal_name(-code)}"
    elif code & _NTSTATUS:
        how = f"died with code 0x{code & 0xFFFF_FFFF:08X}"
    else:
        how = f"ended early with exit code {code}"
    last_words = next((f": {line.strip()}" for line in reversed(stderr.splitlines()) if line.strip()), "")
    return f"the process {how} while {doing}{last_words}"


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""
