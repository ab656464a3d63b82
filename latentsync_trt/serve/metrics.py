"""Figures of the service in Prometheus's text format."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from latentsync_trt.serve.service import Service

_STATES = ("waiting", "running", "done", "failed", "cancelled")
_WORKER_STATES = ("starting", "ready", "running", "lost", "closed")
_FAILURES = ("input", "run", "worker")


def registry_of(service: Service) -> CollectorRegistry:
    """A registry whose metrics are read from the service whenever they are asked for."""
    registry = CollectorRegistry()
    registry.register(_Figures(service))
    return registry


class _Figures(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service, figures = self._service, self._service.figures
        counts = service.counts()
        yield GaugeMetricFamily("latentsync_queue_jobs", "Jobs that wait.", counts.get("waiting", 0))
        jobs = GaugeMetricFamily("latentsync_jobs", "Jobs that are kept, by state.", labels=["state"])
        for state in _STATES:
            jobs.add_metric([state], counts.get(state, 0))  # type: ignore[call-overload]
        yield jobs
        ended = CounterMetricFamily(
            "latentsync_jobs_ended", "Jobs that ended, by state at their end.", labels=["state"]
        )
        for state in _STATES[2:]:
            ended.add_metric([state], figures.ended[state])
        yield ended
        failures = CounterMetricFamily(
            "latentsync_failures",
            "Failures: input = of the client's files or options, worker = lost, the job runs again, run = others.",
            labels=["kind"],
        )
        for kind in _FAILURES:
            failures.add_metric([kind], figures.failures[kind])
        yield failures
        yield CounterMetricFamily("latentsync_frames", "Frames written.", figures.frames)
        yield GaugeMetricFamily("latentsync_frames_per_second", "Of running jobs together.", service.frames_per_s())
        yield SummaryMetricFamily(
            "latentsync_window_seconds",
            "Seconds of runs after their start-up, and the windows of 16 frames they painted.",
            count_value=figures.windows,
            sum_value=figures.painting_s,
        )
        workers = GaugeMetricFamily("latentsync_workers", "Workers by state.", labels=["state"])
        for state in _WORKER_STATES:
            workers.add_metric([state], sum(each.state == state for each in service.workers()))
        yield workers
