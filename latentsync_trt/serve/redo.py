"""A part of a job's result is done again: the task for that, and the report of the whole."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from latentsync_trt.batch.tasks import ReportValues, Task
from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.measures import Interval, add_interval
from latentsync_trt.option_fields import field_name, from_texts, from_values, to_texts
from latentsync_trt.types import SpanSeconds, SyncReport

CHANGEABLE = (
    *("redo", "keep_source", "seed", "preset", "steps"),
    *("guidance", "face", "occluders", "finish"),
)
"""Options that a client may send: the spans, and in what they may differ from the rest."""


def redo_task(
    former: Task, job_id: str, folders: tuple[Path, Path], changes: Mapping[str, Any]
) -> Task:
    """Returns a task that does a part of a result again.

    Args:
        folders: that of the former job, and a copy of it for the new one.
        changes: values of options by name.

    Raises:
        InputError: an option may not differ, or has a wrong value; no span is given.
    """
    names = {field_name(text): value for text, value in changes.items()}
    for name in names:
        if name not in CHANGEABLE:
            can = ", ".join(CHANGEABLE)
            raise InputError(f"{name[:40]}: cannot differ in a part of a result; only {can} can")
    if not names.get("redo"):
        raise InputError('redo: is missing; send a span, as in {"redo": ["12.4:14"]}')

    def moved(file: str, _: bool) -> str:
        return str(folders[1] / Path(file).relative_to(folders[0]))

    # What an earlier redo has changed remains so, but not where.
    earlier = replace(former.options, redo=(), keep_source=False)
    options = from_texts(SyncOptions, to_texts(earlier) | names)
    task = replace(former, id=job_id, options=options, redo_of=former.id).with_files(moved)
    if former.preview is not None:
        task = replace(task, preview=moved(former.preview, True))
    return task


def whole_report(former: ReportValues, part: ReportValues) -> ReportValues:
    """Returns the report of a result of which a part was done again, from that of the former result
    and that of the part; the latter where one of them is of another version.
    """
    try:
        before = from_values(SyncReport, former, "report")
        now = from_values(SyncReport, part, "report")
    except ValueError:
        return part
    quality = before.quality
    if quality is not None and now.quality is not None:
        misfits = _with_part(quality.misfits, now.quality.misfits, now.redone)
        quality = replace(quality, misfits=misfits)
    whole = replace(
        now,
        frames=before.frames,
        frames_with_face=before.frames_with_face,
        duration_s=before.duration_s,
        picture_delay_s=before.picture_delay_s,
        quality=quality,
        speech=before.speech,
        untouched=_with_part(before.untouched, now.untouched, now.redone),
        in_front=_with_part(before.in_front, now.in_front, now.redone),
        painted=_with_part(before.painted, now.painted, now.redone),
    )
    return asdict(whole)


def _with_part(
    before: Iterable[Interval], now: Iterable[Interval], redone: Sequence[SpanSeconds]
) -> tuple[Interval, ...]:
    """Returns the intervals outside the times that were done again, and those of these times; by
    reason those that touch are one.
    """
    left = list(before)
    for span_s in redone:
        left = list(chain.from_iterable(_outside(each, span_s) for each in left))
    by_reason = dict[str, list[Interval]]()
    for each in sorted([*left, *now], key=_start_s):
        add_interval(by_reason.setdefault(each.reason, []), each)
    return tuple(sorted(chain.from_iterable(by_reason.values()), key=_start_s))


def _start_s(interval: Interval) -> float:
    return interval.start_s


def _outside(interval: Interval, span_s: SpanSeconds) -> Iterator[Interval]:
    """Yields the parts of an interval before and after a span."""
    start_s, end_s = span_s
    if interval.start_s < start_s:
        yield replace(interval, end_s=min(interval.end_s, start_s))
    if interval.end_s > end_s:
        yield replace(interval, start_s=max(interval.start_s, end_s))
