"""Painted faces fade in and out where they begin and end inside a shot."""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")

FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""

Shares = dict[int, Fraction]
"""How much of each person's painted face shows, in ]0, 1]."""


@dataclass(frozen=True, slots=True)
class People:
    """Whose faces are painted in a frame. `shot`: its number, None where no face was searched."""

    time_s: Fraction
    people: set[int]
    shot: int | None


def faded(items: Generator[T, None, None], people_in: Callable[[T], People]) -> Generator[tuple[T, Shares], None, None]:
    """Every item, one for each frame, in order with the shares of its faces; holds back those of the last `FADE_S`.

    At cuts, and at both ends of the clip, nothing fades.
    """
    held: deque[tuple[T, Fraction, Shares]] = deque()
    begins_s: dict[int, Fraction | None] = {}
    last: People | None = None
    with closing(items):
        for item in items:
            now = people_in(item)
            is_cut = last is None or (None not in (last.shot, now.shot) and last.shot != now.shot)
            if not is_cut:
                _fade_out(held, begins_s.keys() - now.people, now.time_s)
            before_s = None if is_cut or last is None else last.time_s
            begins_s = {person: begins_s.get(person, before_s) for person in now.people}
            held.append((item, now.time_s, {one: _share(begin_s, now.time_s) for one, begin_s in begins_s.items()}))
            while held and held[0][1] <= now.time_s - FADE_S:
                item, _, shares = held.popleft()
                yield item, shares
            last = now
    yield from ((item, shares) for item, _, shares in held)


def _fade_out(held: deque[tuple[T, Fraction, Shares]], people: set[int], end_s: Fraction) -> None:
    for person in people:
        for _, time_s, shares in reversed(held):
            if person not in shares:
                break
            shares[person] = min(shares[person], _share(time_s, end_s))


def _share(start_s: Fraction | None, end_s: Fraction) -> Fraction:
    return Fraction(1) if start_s is None else min(Fraction(1), (end_s - start_s) / FADE_S)
