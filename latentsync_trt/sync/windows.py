"""Gathers aligned faces into windows of F frames for the networks."""

from collections import deque
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, cycle, islice
from typing import Generic, TypeVar

import numpy as np

from latentsync_trt.spans import ALL_FRAMES, FrameRanges
from latentsync_trt.sync.faces import FrameJob, FrameJobs, Target
from latentsync_trt.types import UInt8Array

T = TypeVar("T")

_STREAM_FPS = Fraction(55, 2)
"""The rate that a stream should have: the model was trained at 25 frames/s. It paints 33, 36 and 40
better in one stream than in two: lips follow more closely, and flicker less."""


def streams_at(frames_per_s: Fraction | None) -> int:
    """Returns into how many interleaved streams a track is split, so that each has a rate near the
    model's: 1 up to 41/s.
    """
    if frames_per_s is None:
        return 1
    return max(1, round(frames_per_s / _STREAM_FPS))


@dataclass(frozen=True, slots=True)
class Window(Generic[T]):
    """F frames for the network."""

    items: tuple[T, ...]
    used: range
    """The positions whose results are new. The others only fill the window: frames of the previous
    window, or mirrored ones, each with its own audio."""


Group = list[Window[Target]]
"""Windows that a network processes before the next network does."""

GatheredJobs = Generator[FrameJob | Window[Target], None, None]
"""Frames, each followed by the windows that it completes."""


class WindowPlanner(Generic[T]):
    """Returns a window of `frames` as soon as it is complete.

    A track is a run of frames without a gap. Frame n of a track belongs to its stream n modulo
    `streams`; windows are cut from one stream. Leftover frames get a window that is shifted back
    over frames already used, or, in a stream shorter than a window, mirrored in time (a b c → a b c
    b a b …).
    """

    def __init__(self, frames: int, *, streams: int = 1) -> None:
        self._new_track = partial(_OpenTrack[T], frames, streams)
        self._tracks: dict[Hashable, _OpenTrack[T]] = {}

    def push(self, items: Mapping[Hashable, T]) -> list[Window[T]]:
        """Adds the next frame: its item in each track that it continues or begins; all others end.

        Returns the windows that this completes: first those of ended tracks, each in order.
        """
        ready = list[Window[T]]()
        for key in [*self._tracks]:
            if key not in items:
                ready += self._tracks.pop(key).finish()
        for key, item in items.items():
            if key not in self._tracks:
                self._tracks[key] = self._new_track()
            ready += self._tracks[key].push(item)
        return ready


class _OpenTrack(Generic[T]):
    def __init__(self, frames: int, streams: int) -> None:
        self._streams = [_Stream[T](frames) for _ in range(streams)]
        self._turns = cycle(self._streams)

    def push(self, item: T) -> list[Window[T]]:
        return next(self._turns).push(item)

    def finish(self) -> Iterator[Window[T]]:
        return chain.from_iterable(stream.finish() for stream in self._streams)


class _Stream(Generic[T]):
    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._last = deque[T](maxlen=frames)
        self._pending = 0

    def push(self, item: T) -> list[Window[T]]:
        self._last.append(item)
        self._pending += 1
        if self._pending < self._frames:
            return []
        self._pending = 0
        return [Window(tuple(self._last), range(self._frames))]

    def finish(self) -> list[Window[T]]:
        """Returns a window of the leftover frames, if there are any."""
        last = tuple(self._last)
        if not self._pending:
            return []
        if len(last) == self._frames:
            return [Window(last, range(self._frames - self._pending, self._frames))]
        mirrored = cycle((*last, *last[-2:0:-1]))
        return [Window(tuple(islice(mirrored, self._frames)), range(self._pending))]


def gather(
    jobs: FrameJobs, frames: int, streams: int = 1, paint: FrameRanges = ALL_FRAMES
) -> GatheredJobs:
    """Yields every job in order, each followed by the windows that it completes.

    Args:
        frames: F, the length of a window.
        streams: as for `WindowPlanner`.
        paint: the frames that are painted; windows of others alone are left out.
    """
    planner: WindowPlanner[Target] = WindowPlanner(frames, streams=streams)

    def completed(targets: Iterable[Target]) -> Iterator[Window[Target]]:
        for window in planner.push({target.track_id: target for target in targets}):
            if any(window.items[position].index in paint for position in window.used):
                yield window

    with closing(jobs):
        for job in jobs:
            yield job
            yield from completed(job.targets)
    yield from completed(())


def in_groups(
    gathered: GatheredJobs, most: int, frames: int
) -> Generator[FrameJob | Group, None, None]:
    """Yields the same jobs, and up to `most` windows together, whoever's faces they show.

    Fewer once frames have waited for the duration of `most` windows: without faces no window
    completes, and frames would pile up.
    """
    group: Group = []
    waited = 0
    with closing(gathered):
        for item in gathered:
            if isinstance(item, FrameJob):
                waited += bool(group)
                yield item
            else:
                group.append(item)
            if len(group) >= most or waited >= most * frames:
                yield group
                group = []
                waited = 0
    if group:
        yield group


def faces_of(window: Window[Target]) -> UInt8Array:
    """Returns the aligned faces of a window, uint8 `(F, H, H, 3)`."""
    return np.stack([each.face.image for each in window.items if each.face is not None])
