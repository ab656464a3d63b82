"""Cuts the faces of a stream of frames into windows, each of one track. Pure."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import Generic, TypeVar

T = TypeVar("T")

_STREAM_FPS = Fraction(55, 2)
"""About what one stream has: the model was trained at 25 frames/s. It paints 33, 36 and 40 better
in one stream than in two: lips follow more closely, and flicker less."""


def streams_at(frames_per_s: Fraction | None) -> int:
    """Into how many interleaved streams a track is split, so that each has a rate near the model's: 1 up to 41/s."""
    return 1 if frames_per_s is None else max(1, round(frames_per_s / _STREAM_FPS))


@dataclass(frozen=True, slots=True)
class Window(Generic[T]):
    """F frames for the network; the results at the positions `used` are new.

    The others only fill the window: frames of the previous window, or mirrored ones, each with its own audio.
    """

    items: tuple[T, ...]
    used: range


class WindowPlanner(Generic[T]):
    """Returns a window of `frames` as soon as it is complete; keeps fewer than 2F items of a stream.

    A track is a run of frames without a gap. Frame n of a track belongs to its stream n modulo `streams`; windows are
    cut from one stream. Leftover frames get a window that is shifted back over frames already used, or, in a stream
    shorter than a window, mirrored in time (a b c → a b c b a b …).
    """

    def __init__(self, frames: int, *, streams: int = 1) -> None:
        self._frames, self._streams = frames, streams
        self._tracks: dict[Hashable, tuple[list[_Stream[T]], Iterator[_Stream[T]]]] = {}

    def push(self, items: Mapping[Hashable, T]) -> list[Window[T]]:
        """Adds the next frame: its item in each track that it continues or begins; all others end.

        Returns the windows that this completes: first those of ended tracks, each in order.
        """
        ended = [key for key in self._tracks if key not in items]
        ready = [window for key in ended for stream in self._tracks.pop(key)[0] for window in stream.finish()]
        for key, item in items.items():
            if key not in self._tracks:
                streams = [_Stream[T](self._frames) for _ in range(self._streams)]
                self._tracks[key] = streams, cycle(streams)
            ready += next(self._tracks[key][1]).push(item)
        return ready

    def finish(self) -> list[Window[T]]:
        """Ends all tracks; returns the windows of their leftover frames, if there are any."""
        return self.push({})


class _Stream(Generic[T]):
    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._last: list[T] = []
        self._pending: list[T] = []

    def push(self, item: T) -> list[Window[T]]:
        self._pending.append(item)
        if len(self._pending) < self._frames:
            return []
        self._last, self._pending = self._pending, []
        return [Window(tuple(self._last), range(self._frames))]

    def finish(self) -> list[Window[T]]:
        pending, fill = self._pending, self._frames - len(self._pending)
        if not pending:
            return []
        if self._last:
            return [Window((*self._last[-fill:], *pending), range(fill, self._frames))]
        mirrored = tuple(pending[_reflected(position, len(pending))] for position in range(self._frames))
        return [Window(mirrored, range(len(pending)))]


def _reflected(position: int, length: int) -> int:
    """Index at `position` in a back-and-forth walk over `length` items that does not repeat the ends."""
    period = max(2 * (length - 1), 1)
    position %= period
    return min(position, period - position)
