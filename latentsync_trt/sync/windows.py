"""Cuts a stream of frames into windows of one face track. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from latentsync_trt.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Window(Generic[T]):
    """F frames for the network; only results from `first_new` to `first_new + count_new − 1` are used.

    The other positions fill the window: frames of the previous window, or mirrored ones, each with its own audio.
    """

    items: tuple[T, ...]
    first_new: int
    count_new: int

    @property
    def used(self) -> range:
        """Positions whose result is used."""
        return range(self.first_new, self.first_new + self.count_new)


class WindowPlanner(Generic[T]):
    """Returns a window as soon as it is complete; keeps fewer than 2F items.

    A track is a run of consecutive items with one track id. Its leftover frames get a window that is shifted back over
    frames already used, or, in a track shorter than F, mirrored in time (a b c → a b c b a b …).
    """

    def __init__(self, frames: int) -> None:
        """`frames`: F, the length of a window. Raises `InputError` below 1."""
        if frames < 1:
            raise InputError(f"a window of {frames} frames: it needs at least 1")
        self._frames = frames
        self._track: Hashable = None
        self._last: list[T] = []
        self._pending: list[T] = []

    def push(self, item: T, track_id: Hashable) -> list[Window[T]]:
        """Adds the next frame; `track_id` None = no face. Returns the windows it completes, in order."""
        ready = self.finish() if track_id != self._track else []
        self._track = track_id
        if track_id is not None:
            self._pending.append(item)
        if len(self._pending) == self._frames:
            ready.append(Window(tuple(self._pending), 0, self._frames))
            self._last, self._pending = self._pending, []
        return ready

    def finish(self) -> list[Window[T]]:
        """Ends the track; returns the window of its leftover frames, if there are any."""
        last, pending = self._last, self._pending
        self._track, self._last, self._pending = None, [], []
        if not pending:
            return []
        if last:
            return [Window((*last[len(pending) :], *pending), self._frames - len(pending), len(pending))]
        mirrored = tuple(pending[_reflected(position, len(pending))] for position in range(self._frames))
        return [Window(mirrored, 0, len(pending))]


def _reflected(position: int, length: int) -> int:
    """Index at `position` in a back-and-forth walk over `length` items that does not repeat the ends."""
    period = max(2 * (length - 1), 1)
    position %= period
    return min(position, period - position)
