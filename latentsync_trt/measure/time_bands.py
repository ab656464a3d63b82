"""What a report tells of times of the output, as bands of a timeline."""

from collections.abc import Sequence
from dataclasses import dataclass

from latentsync_trt.measures import Interval
from latentsync_trt.types import SyncReport


@dataclass(frozen=True, slots=True)
class TimeBand:
    """Times of one kind, which a timeline shows in one row."""

    kind: str
    """What the times have in common, a word that also names the band's color."""
    label: str
    intervals: tuple[Interval, ...]


def time_bands_of(report: SyncReport) -> list[TimeBand]:
    """Returns the bands of a result from top to bottom, without empty ones; speech and painted
    faces have one for each person.
    """
    misfits = report.quality.misfits if report.quality else ()
    bands = [
        *_of_each_person("speech", "Speech", report.speech),
        *_of_each_person("painted", "Painted", report.painted),
        TimeBand("untouched", "Left as it was", report.untouched),
        TimeBand("front", "In front", report.in_front),
        TimeBand("alarm", "Look here", misfits),
    ]
    return [band for band in bands if band.intervals]


def _of_each_person(kind: str, label: str, intervals: Sequence[Interval]) -> list[TimeBand]:
    """Returns a band for each reason of the intervals, which is the name of a person; names them
    where there are several.
    """
    people = dict[str, list[Interval]]()
    for interval in intervals:
        people.setdefault(interval.reason, []).append(interval)
    bands = []
    for person, times in people.items():
        name = label
        if len(people) > 1:
            name += f", {person}"
        bands.append(TimeBand(kind, name, tuple(times)))
    return bands
