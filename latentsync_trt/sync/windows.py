"""Cuts the faces of a stream of frames into windows, each of one track. Pure."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from latentsync_trt.errors import InputError

T = TypeVar("T")

_STREAM_FPS = Fraction(55, 2)
"""About what one stream has: the model was trained at 25 frames/s. It paints 33, 36 and 40 better in one stream than in
two: lips follow more closely, and flicker less."""

_NONE, _WHOLE = Fraction(0), Fraction(1)


def streams_at(frames_per_s: Fraction | None) -> int:
    """Into how many interleaved streams a track is split, so that each has a rate near the model's: 1 up to 41/s."""
    return 1 if frames_per_s is None else max(1, round(frames_per_s / _STREAM_FPS))


def check_overlap(frames: int, overlap: int) -> None:
    """Raises `InputError` if windows of `frames` frames are impossible, or cannot share `overlap` of them."""
    if frames < 1:
        raise InputError(f"a window of {frames} frames: it needs at least 1")
    if 2 * overlap > frames:
        raise InputError(f"--overlap {overlap}: windows of this bundle have {frames} frames; at most half can overlap")


@dataclass(frozen=True, slots=True)
class Window(Generic[T]):
    """F frames for the network, or fewer, and the `weights` of their results, 0 to 1.

    Over all windows, the weights of an item add up to 1. Positions of weight 0 only fill the window: frames of the
    previous window, or mirrored ones, each with its own audio.
    """

    items: tuple[T, ...]
    weights: tuple[Fraction, ...]

    @property
    def used(self) -> Iterator[tuple[int, T, Fraction]]:
        """Position, item and weight where the result is used."""
        return ((position, self.items[position], weight) for position, weight in enumerate(self.weights) if weight)

    @property
    def count_used(self) -> int:
        """Number of results that are used."""
        return sum(map(bool, self.weights))


class WindowPlanner(Generic[T]):
    """Returns a window as soon as it is complete; keeps fewer than 2F items of a stream.

    A track is a run of frames without a gap. Frame n of a track belongs to its stream n modulo `streams`; windows are
    cut from one stream. Leftover frames get a window that is shifted back over frames already used, or, in a stream
    shorter than a window, mirrored in time (a b c → a b c b a b …). It has the first of the lengths `shorter` that they
    fit into, else F. With `overlap`, the last frames of a window are also the first of the next, and fade from one to
    the other; a window then waits for the frame after it.
    """

    def __init__(self, frames: int, *, streams: int = 1, overlap: int = 0, shorter: Sequence[int] = ()) -> None:
        """`frames`: F, the length of a window; `shorter`: lengths below F, ascending.

        Raises `InputError` as `check_overlap`.
        """
        check_overlap(frames, overlap)
        self._lengths, self._streams, self._overlap = (*shorter, frames), streams, overlap
        self._tracks: dict[Hashable, _Track[T]] = {}

    def push(self, items: Mapping[Hashable, T]) -> list[Window[T]]:
        """Adds the next frame: its item in each track that it continues or begins; all others end.

        Returns the windows that this completes: first those of ended tracks, each in order.
        """
        ended = [key for key in self._tracks if key not in items]
        ready = [window for key in ended for window in self._tracks.pop(key).finish()]
        for key, item in items.items():
            if key not in self._tracks:
                self._tracks[key] = _Track(self._lengths, self._streams, self._overlap)
            ready += self._tracks[key].push(item)
        return ready

    def finish(self) -> list[Window[T]]:
        """Ends all tracks; returns the windows of their leftover frames, if there are any."""
        return self.push({})


class _Track(Generic[T]):
    def __init__(self, lengths: tuple[int, ...], streams: int, overlap: int) -> None:
        self._streams: list[_Stream[T]] = [_Stream(lengths, overlap) for _ in range(streams)]
        self._count = 0

    def push(self, item: T) -> list[Window[T]]:
        stream = self._streams[self._count % len(self._streams)]
        self._count += 1
        return stream.push(item)

    def finish(self) -> list[Window[T]]:
        return [window for stream in self._streams for window in stream.finish()]


class _Stream(Generic[T]):
    """`pending` begins with the frames shared with the window before, if there was one; `last` are that window's."""

    def __init__(self, lengths: tuple[int, ...], overlap: int) -> None:
        self._lengths, self._frames, self._overlap = lengths, lengths[-1], overlap
        self._last: list[T] = []
        self._pending: list[T] = []

    def push(self, item: T) -> list[Window[T]]:
        ready = []
        if len(self._pending) == self._frames:  # only with overlap
            ready.append(self._full(fades_out=True))
        self._pending.append(item)
        if len(self._pending) == self._frames and not self._overlap:
            ready.append(self._full())
        return ready

    def finish(self) -> list[Window[T]]:
        pending = self._pending
        if len(pending) == self._frames:
            return [self._full()]
        if not pending:
            return []
        length = next(each for each in self._lengths if each >= len(pending))
        weights, fill = self._weights(len(pending)), length - len(pending)
        if self._last:
            start = self._frames - self._overlap  # of `pending`, in the window before
            return [Window((*self._last[start - fill : start], *pending), (_NONE,) * fill + weights)]
        mirrored = tuple(pending[_reflected(position, len(pending))] for position in range(length))
        return [Window(mirrored, weights + (_NONE,) * fill)]

    def _full(self, *, fades_out: bool = False) -> Window[T]:
        weights = self._weights(self._frames)
        if fades_out:
            weights = weights[: self._frames - self._overlap] + self._ramp()[::-1]
        window = Window(tuple(self._pending), weights)
        self._last, self._pending = self._pending, self._pending[self._frames - self._overlap :]
        return window

    def _weights(self, count: int) -> tuple[Fraction, ...]:
        shared = self._ramp() if self._last else ()
        return shared + (_WHOLE,) * (count - len(shared))

    def _ramp(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(step, self._overlap + 1) for step in range(1, self._overlap + 1))


def _reflected(position: int, length: int) -> int:
    """Index at `position` in a back-and-forth walk over `length` items that does not repeat the ends."""
    period = max(2 * (length - 1), 1)
    position %= period
    return min(position, period - position)
