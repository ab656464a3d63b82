"""Cutting the frames of face tracks into windows of fixed length, one frame at a time. Pure."""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Window(Generic[T]):
    """Exactly F items of one track in time order; the results of `items[first_new : first_new + new]` are to be used.

    What comes before `first_new` was in an earlier window; what comes after the new ones mirrors them.
    """

    items: tuple[T, ...]
    first_new: int
    new: int


class WindowPlanner(Generic[T]):
    """Gives each item to exactly one window as a new one, in order; keeps at most 2·F items.

    A window is F consecutive items of one track. What is left at the end of a track makes one more window: shifted back
    to hold the last F items, or, where the track is shorter than F, filled up by mirroring it in time.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._track: int | None = None
        self._before: deque[T] = deque(maxlen=frames)
        self._waiting: list[T] = []

    def push(self, item: T, track_id: int) -> list[Window[T]]:
        """Takes the next item; returns the windows that are complete now, also those of a track that ended."""
        windows = self.finish() if track_id != self._track else []
        self._track = track_id
        self._waiting.append(item)
        if len(self._waiting) == self._frames:
            windows.append(Window(tuple(self._waiting), 0, self._frames))
            self._before.extend(self._waiting)
            self._waiting.clear()
        return windows

    def finish(self) -> list[Window[T]]:
        """Ends the track; returns the window of what was left, if anything was."""
        waiting, before = self._waiting, list(self._before)
        self._track, self._waiting = None, []
        self._before.clear()
        if not waiting:
            return []
        if before:
            kept = self._frames - len(waiting)
            return [Window((*before[-kept:], *waiting), kept, len(waiting))]
        mirrored = tuple(waiting[_reflected(index, len(waiting))] for index in range(self._frames))
        return [Window(mirrored, 0, len(waiting))]


def _reflected(index: int, length: int) -> int:
    """Position in a sequence played forwards and backwards without repeating its ends: a b c b a b c …"""
    if length == 1:
        return 0
    position = index % (2 * length - 2)
    return min(position, 2 * length - 2 - position)
