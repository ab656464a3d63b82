"""How far a build is: in the process that builds, and in words."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

REPORT_S = 10.0
"""Interval of reports; a shorter build reports nothing."""


@dataclass(slots=True)
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


@contextmanager
def progress_reported(trt: Any, config: Any, report: Callable[[float], None]) -> Iterator[None]:
    """Has a build with `config` call `report`, in a thread of its own, with the fraction of it that is done."""
    monitor, ended = _make_monitor(trt), threading.Event()

    def repeat() -> None:
        while not ended.wait(REPORT_S):
            report(monitor.fraction)

    config.progress_monitor = monitor
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _make_monitor(trt: Any) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Counts steps of phases, which are nested, in any thread of the builder.

        `fraction`: of the steps of the outermost phase, with part of the current one by the phases in it; it never
        decreases. Steps do not take equal times.
        """

        def __init__(self) -> None:
            super().__init__()
            self.fraction = 0.0
            self._phases: dict[str, _Phase] = {}
            self._lock = threading.Lock()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """Called by the compiler."""
            with self._lock:
                self._phases[phase_name] = _Phase(parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """Called by the compiler; goes on with the build."""
            with self._lock:
                if phase_name in self._phases:
                    self._phases[phase_name].done = step + 1
                self.fraction = max(self.fraction, self._within(None))
            return True

        def phase_finish(self, phase_name: str) -> None:
            """Called by the compiler."""
            with self._lock:
                self._phases.pop(phase_name, None)

        def _within(self, parent: str | None) -> float:
            """The fraction done of the phases in `parent`."""
            inner = ((name, phase) for name, phase in self._phases.items() if phase.parent == parent)
            return max(
                (min(1.0, (phase.done + self._within(name)) / phase.steps) for name, phase in inner), default=0.0
            )

    return Monitor()


def progress_notices(doing: str, on_notice: Callable[[str], None]) -> Callable[[float], None]:
    """Makes a notice of each fraction of a build, which begins now; with the time left at the rate since the first."""
    began_s = time.monotonic()
    first: list[tuple[float, float]] = []

    def report(fraction: float) -> None:
        now_s = time.monotonic()
        first.append((now_s, fraction))
        start_s, before = first[0]
        left = ""
        if fraction > before:
            left = f", about {_duration((now_s - start_s) * (1 - fraction) / (fraction - before))} left"
        on_notice(f"{doing}, {fraction:.0%} of the steps in {_duration(now_s - began_s)}{left}")

    return report


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
