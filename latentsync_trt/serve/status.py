"""A job as clients see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from latentsync_trt.batch.ledger import OPEN, Row, State
from latentsync_trt.types import Progress


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The body of answers about a job.

    `label`, `files`: the client's names for the job, and for its files by field. `position`: in the queue, 1 = next.
    `done` of `total` frames (None = unknown) have passed `stage`.
    `frames_per_s`: while it runs, or of the whole run. Times are seconds since 1970. `report`: that of the run.
    """

    id: str
    state: State
    label: str
    files: dict[str, str]
    created_s: float
    started_s: float | None
    ended_s: float | None
    attempts: int
    position: int | None
    worker: str | None
    stage: str | None
    done: int
    total: int | None
    frames_per_s: float | None
    seconds_left: float | None
    error: str | None
    report: dict[str, Any] | None


def status_of(
    row: Row, position: int | None, progress: Progress, age_s: float, hide: Callable[[Any], Any]
) -> JobStatus:
    """The status of a row of the ledger; `progress`: what it did last, `age_s` ago. `hide`: removes folders."""
    found, left_s = row.report or {}, progress.seconds_left
    return JobStatus(
        id=row.task.id,
        state=row.state,
        label=row.task.label,
        files=dict(row.task.names),
        created_s=row.created_s,
        started_s=row.started_s,
        ended_s=None if row.state in OPEN else row.ended_s,
        attempts=row.attempts,
        position=position,
        worker=row.worker,
        stage=progress.stage or None,
        done=found.get("frames", progress.done),
        total=found.get("frames", progress.total),
        frames_per_s=found.get("frames_per_s", progress.frames_per_s or None),
        seconds_left=None if left_s is None else max(left_s - age_s, 0.0),
        error=hide(row.error),
        report=hide(row.report),
    )
