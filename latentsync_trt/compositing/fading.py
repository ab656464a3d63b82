"""How much of each painted face shows: it fades in and out where its person begins or ends to be
painted within a shot.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")

FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""
FADE_HELD_S = 2 * FADE_S
"""So long frames wait until it is known whether they fade."""
Shares = dict[int, Fraction]
"""How much of each person's painted face shows, in ]0, 1]."""
PaintedPeople = tuple[Fraction, set[int], int | None]
"""Time of a frame, whose faces are painted in it, and the number of its shot, None where no face
was searched.
"""


@dataclass(slots=True, eq=False)
class _Fading:
    """Of one person. `begins_s`: last frame before those in which it is painted; None = none,
    nothing fades in. `last_s`: the last in which it is. `lost_s`: the first in which it is not any
    more.
    """

    begins_s: Fraction | None
    last_s: Fraction
    lost_s: Fraction | None = None


def faded(
    items: Generator[T, None, None], painted_in: Callable[[T], PaintedPeople]
) -> Generator[tuple[T, Shares], None, None]:
    """Every item, one for each frame, in order with the shares of its faces; holds back those of
    `FADE_HELD_S`.

    At cuts, and at both ends of the clip, nothing fades; nor around a loss that is over within
    `FADE_S`, as in a flash.
    """
    held: deque[tuple[T, Fraction, Shares]] = deque()
    people: dict[int, _Fading] = {}
    last_s: Fraction | None = None
    last_shot: int | None = None
    with closing(items):
        for item in items:
            time_s, painted, shot = painted_in(item)
            if None not in (last_shot, shot) and last_shot != shot:
                people = {}
                last_s = None
            for person, fading in list(people.items()):
                if person in painted:
                    continue
                fading.lost_s = fading.lost_s or time_s
                if shot is None or time_s - fading.last_s >= FADE_S:
                    _fade_out(held, person, people.pop(person))
            for person in painted:
                fading = people.setdefault(person, _Fading(last_s, time_s))
                fading.last_s = time_s
                fading.lost_s = None
            shares = {person: _share(people[person].begins_s, time_s) for person in painted}
            held.append((item, time_s, shares))
            while held[0][1] <= time_s - FADE_HELD_S:
                item, _, shares = held.popleft()
                yield item, shares
            last_s = time_s
            last_shot = shot
    for person, fading in people.items():
        _fade_out(held, person, fading)
    yield from ((item, shares) for item, _, shares in held)


def _fade_out(held: deque[tuple[T, Fraction, Shares]], person: int, fading: _Fading) -> None:
    """Lowers the shares of a person who was lost, in the frames that wait."""
    for _, time_s, shares in held:
        if fading.lost_s is not None and person in shares:
            shares[person] = min(shares[person], _share(time_s, fading.lost_s))


def _share(start_s: Fraction | None, end_s: Fraction) -> Fraction:
    if start_s is None:
        return Fraction(1)
    return min(Fraction(1), (end_s - start_s) / FADE_S)
