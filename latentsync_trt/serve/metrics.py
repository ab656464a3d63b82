"""Figures of the service for Prometheus."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from latentsync_trt.batch.ledger import State
from latentsync_trt.batch.tasks import WorkerState

_ENDED = "done", "failed", "canceled"
_FAILURES = "input", "run", "worker"
_WORKER_STATES = "starting", "ready", "running", "lost", "closed"


class Metrics:
    """What the service has done since it started, and what it does, which is asked for when `registry` is read."""

    def __init__(
        self,
        counts: Callable[[], Mapping[State, int]],
        workers: Callable[[], Sequence[WorkerState]],
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self.frames = Counter("latentsync_frames", "Frames written.", registry=registry)
        self.windows = Counter("latentsync_windows", "Windows of 16 frames, of finished jobs.", registry=registry)
        self.painting_seconds = Counter(
            "latentsync_painting_seconds", "Seconds of finished jobs after their start-up.", registry=registry
        )
        self.ended = Counter("latentsync_jobs_ended", "Jobs by state at their end.", ["state"], registry=registry)
        for state in _ENDED:
            self.ended.labels(state)
        self.failures = Counter(
            "latentsync_failures",
            "Failures: input = of the client's files or options, worker = lost, the job runs again, run = others.",
            ["kind"],
            registry=registry,
        )
        for kind in _FAILURES:
            self.failures.labels(kind)
        jobs = Gauge("latentsync_jobs", "Jobs that are kept, by state.", ["state"], registry=registry)
        for state in get_args(State):
            jobs.labels(state).set_function(partial(_kept, counts, state))
        busy = Gauge("latentsync_workers", "Workers by state.", ["state"], registry=registry)
        for state in _WORKER_STATES:
            busy.labels(state).set_function(partial(_busy, workers, state))


def _kept(counts: Callable[[], Mapping[State, int]], state: State) -> int:
    return counts().get(state, 0)


def _busy(workers: Callable[[], Sequence[WorkerState]], state: str) -> int:
    return sum(each.state == state for each in workers())
