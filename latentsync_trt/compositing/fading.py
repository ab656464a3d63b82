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

_FADE_S = Fraction(4, 25)
"""Time between a frame that shows none of a painted face and one that shows all of it."""
FADE_HELD_S = 2 * _FADE_S
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
    """The first frame in which the person is not painted any more."""


@dataclass(frozen=True, slots=True, eq=False)
class _HeldFrame(Generic[T]):
    item: T
    time_s: Fraction
    opacities: Opacities


def faded(
    items: Generator[T, None, None], painted_in: Callable[[T], PaintedPeople]
) -> Generator[tuple[T, Opacities], None, None]:
    """Yields every item, one for each frame, in order with the opacities of its faces; holds back
    the items of `FADE_HELD_S`.

    At cuts, and at both ends of the clip, nothing fades; nor around a loss that is over within the
    time of a fade, as in a flash.
    """
    frames = _FadedFrames[T]()
    with closing(items):
        for item in items:
            painted = painted_in(item)
            frames.add(item, painted)
            yield from frames.until(painted.time_s - FADE_HELD_S)
    yield from frames.end()


class _FadedFrames(Generic[T]):
    """Frames whose opacities may still change."""

    def __init__(self) -> None:
        self._held: deque[_HeldFrame[T]] = deque()
        self._fades: dict[int, _Fade] = {}
        self._before_s: Fraction | None = None
        self._shot: int | None = None

    def add(self, item: T, painted: PaintedPeople) -> None:
        """Adds the next frame, and lowers the opacities of those before in which a person who is
        lost now fades out.
        """
        time_s = painted.time_s
        if None not in (self._shot, painted.shot) and self._shot != painted.shot:
            self._fades = {}
            self._before_s = None
        for person in self._fades.keys() - painted.people:
            fade = self._fades[person]
            fade.lost_s = fade.lost_s or time_s
            if painted.shot is None or time_s - fade.last_s >= _FADE_S:
                self._fade_out(person)
        opacities = {}
        for person in painted.people:
            fade = self._fades.setdefault(person, _Fade(self._before_s, time_s))
            fade.last_s = time_s
            fade.lost_s = None
            opacities[person] = _opacity(fade.begins_s, time_s)
        self._held.append(_HeldFrame(item, time_s, opacities))
        self._before_s = time_s
        self._shot = painted.shot

    def until(self, time_s: Fraction) -> Generator[tuple[T, Opacities], None, None]:
        """Yields the frames that are not later."""
        while self._held and self._held[0].time_s <= time_s:
            held = self._held.popleft()
            yield held.item, held.opacities

    def end(self) -> Generator[tuple[T, Opacities], None, None]:
        """Yields the frames that are left at the end of the clip."""
        for person in list(self._fades):
            self._fade_out(person)
        for held in self._held:
            yield held.item, held.opacities

    def _fade_out(self, person: int) -> None:
        """Lowers the opacity of a person who was lost, in the frames that wait."""
        lost_s = self._fades.pop(person).lost_s
        for held in self._held:
            if lost_s is not None and person in held.opacities:
                opacity = _opacity(held.time_s, lost_s)
                held.opacities[person] = min(held.opacities[person], opacity)


def _opacity(start_s: Fraction | None, end_s: Fraction) -> Fraction:
    """Returns how much of a face shows this long after it began to fade in; all, if it did not."""
    if start_s is None:
        return Fraction(1)
    return min(Fraction(1), (end_s - start_s) / _FADE_S)
