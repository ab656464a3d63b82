"""How much of each painted face shows: it fades in and out where its person begins or ends to be
painted within a shot.
"""

from collections import deque
from collections.abc import Callable, Generator, Set
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

T = TypeVar("T")

FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""
FADE_HELD_S = 2 * FADE_S
"""How long frames wait until it is known whether they fade."""

Opacities = dict[int, Fraction]
"""How much of each person's painted face shows, in ]0, 1]."""


@dataclass(frozen=True, slots=True)
class PaintedPeople:
    """Whose faces are painted in a frame."""

    time_s: Fraction
    people: Set[int]
    shot: int | None
    """The number of the shot; None where no face was searched."""


@dataclass(slots=True, eq=False)
class _Fade:
    """How one person begins and ends to be painted."""

    begins_s: Fraction | None
    """The last frame before those in which the person is painted; None = nothing fades in."""
    last_s: Fraction
    """The last frame in which the person is painted."""
    lost_s: Fraction | None = None
    """The first frame in which the person is not painted any more; None = nothing fades out."""

    def opacity(self, time_s: Fraction) -> Fraction:
        """Returns how much of the face shows in a frame in which it is painted."""
        opacity = Fraction(1)
        if self.begins_s is not None:
            opacity = min(opacity, (time_s - self.begins_s) / FADE_S)
        if self.lost_s is not None:
            opacity = min(opacity, (self.lost_s - time_s) / FADE_S)
        return opacity


@dataclass(frozen=True, slots=True, eq=False)
class _HeldFrame(Generic[T]):
    item: T
    time_s: Fraction
    fades: dict[int, _Fade]
    """By the numbers of the people who are painted."""

    def opacities(self) -> Opacities:
        return {person: fade.opacity(self.time_s) for person, fade in self.fades.items()}


def faded(
    items: Generator[T, None, None], painted_in: Callable[[T], PaintedPeople]
) -> Generator[tuple[T, Opacities], None, None]:
    """Yields every item, one for each frame, in order with the opacities of its faces; holds back
    the items of `FADE_HELD_S`, whose opacities may still change.

    At cuts, and at both ends of the clip, nothing fades; nor around a loss that is over within the
    time of a fade, as in a flash.
    """
    fades = _Fades()
    held_frames: deque[_HeldFrame[T]] = deque()
    with closing(items):
        for item in items:
            frame = painted_in(item)
            held_frames.append(_HeldFrame(item, frame.time_s, fades.add(frame)))
            while held_frames[0].time_s <= frame.time_s - FADE_HELD_S:
                held = held_frames.popleft()
                yield held.item, held.opacities()
    for held in held_frames:
        yield held.item, held.opacities()


class _Fades:
    """How the people of a shot fade."""

    def __init__(self) -> None:
        self._open: dict[int, _Fade] = {}
        self._before: PaintedPeople | None = None

    def add(self, frame: PaintedPeople) -> dict[int, _Fade]:
        """Returns the fades of the people in the next frame, and ends those of others."""
        time_s = frame.time_s
        before = self._before
        begins_s = None
        if before is not None:
            if None in (before.shot, frame.shot) or before.shot == frame.shot:
                begins_s = before.time_s
            else:
                self._cut()
        for person in self._open.keys() - frame.people:
            fade = self._open[person]
            if fade.lost_s is None:
                fade.lost_s = time_s
            if frame.shot is None or time_s - fade.last_s >= FADE_S:
                del self._open[person]
        for person in frame.people:
            fade = self._open.setdefault(person, _Fade(begins_s, time_s))
            fade.last_s = time_s
            fade.lost_s = None
        self._before = frame
        return {person: self._open[person] for person in frame.people}

    def _cut(self) -> None:
        """Ends all fades; nothing fades out."""
        for fade in self._open.values():
            fade.lost_s = None
        self._open.clear()
