"""Fades painted faces in and out where they begin and end inside a shot, as at turns, gaps and parts. Pure."""

from collections import deque
from collections.abc import Generator
from contextlib import closing
from fractions import Fraction

from latentsync_trt.sync.jobs import Job

FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""

Shares = dict[int, Fraction]
"""How much of each person's painted face shows, in ]0, 1]."""


def faded(jobs: Generator[Job, None, None]) -> Generator[tuple[Job, Shares], None, None]:
    """Every job in order with the shares of its faces; holds back those of the last `FADE_S`.

    At cuts, and at both ends of the clip, nothing fades.
    """
    held: deque[tuple[Job, Shares]] = deque()
    begins_s: dict[int, Fraction | None] = {}
    last: Job | None = None
    with closing(jobs):
        for job in jobs:
            now_s, people = job.frame.time_s, {target.person for target in job.targets}
            is_cut = last is None or (None not in (last.shot, job.shot) and last.shot != job.shot)
            if not is_cut:
                _fade_out(held, begins_s.keys() - people, now_s)
            before_s = None if is_cut or last is None else last.frame.time_s
            begins_s = {person: begins_s.get(person, before_s) for person in people}
            held.append((job, {person: _share(begin_s, now_s) for person, begin_s in begins_s.items()}))
            while held and held[0][0].frame.time_s <= now_s - FADE_S:
                yield held.popleft()
            last = job
    yield from held


def _fade_out(held: deque[tuple[Job, Shares]], people: set[int], end_s: Fraction) -> None:
    for person in people:
        for job, shares in reversed(held):
            if person not in shares:
                break
            shares[person] = min(shares[person], _share(job.frame.time_s, end_s))


def _share(start_s: Fraction | None, end_s: Fraction) -> Fraction:
    return Fraction(1) if start_s is None else min(Fraction(1), (end_s - start_s) / FADE_S)
