"""Gathers aligned faces into windows of F frames for the networks."""

from collections import deque
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, islice
from typing import Generic, TypeVar

from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.types import UInt8Array

T = TypeVar("T")

_STREAM_FPS = Fraction(55, 2)
"""About what one stream has: the model was trained at 25 frames/s. It paints 33, 36 and 40 better
in one stream than in two: lips follow more closely, and flicker less."""


def streams_at(frames_per_s: Fraction | None) -> int:
    """Into how many interleaved streams a track is split, so that each has a rate near the model's: 1 up to 41/s."""
    return 1 if frames_per_s is None else max(1, round(frames_per_s / _STREAM_FPS))


@dataclass(frozen=True, slots=True, eq=False)
class FaceView:
    """What painting needs of a face in one frame; not the frame, which would stay in memory as long as its window.

    `index`, `time_s`: of the frame. `image`: the aligned face, uint8 `(H, H, 3)` RGB.
    """

    index: int
    time_s: Fraction
    track_id: int
    speaker: int
    image: UInt8Array


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


class _Stream(Generic[T]):
    def __init__(self, frames: int) -> None:
        self._frames, self._last, self._pending = frames, deque[T](maxlen=frames), 0

    def push(self, item: T) -> list[Window[T]]:
        self._last.append(item)
        self._pending += 1
        if self._pending < self._frames:
            return []
        self._pending = 0
        return [Window(tuple(self._last), range(self._frames))]

    def finish(self) -> list[Window[T]]:
        last, frames, pending = tuple(self._last), self._frames, self._pending
        if not pending:
            return []
        if len(last) == frames:
            return [Window(last, range(frames - pending, frames))]
        return [Window(tuple(islice(cycle((*last, *last[-2:0:-1])), frames)), range(pending))]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The next job (None after the last one), and the windows to paint now."""

    job: FrameJob | None
    windows: Sequence[Window[FaceView]] = ()

    @property
    def used(self) -> int:
        """Faces that are new."""
        return sum(len(window.used) for window in self.windows)


def gather(
    jobs: Generator[FrameJob, None, None], frames: int, streams: int = 1, frames_done: int = 0
) -> Generator[Gathered, None, None]:
    """Every job in order, with the windows that it completes.

    Args:
        frames: F, the length of a window. streams: see `WindowPlanner`.
        frames_done: frames before this one have been written already; windows of such frames alone are left out.
    """
    planner: WindowPlanner[FaceView] = WindowPlanner(frames, streams=streams)

    def gathered(job: FrameJob | None, views: Mapping[Hashable, FaceView]) -> Gathered:
        windows = planner.push(views)
        return Gathered(job, [each for each in windows if each.items[each.used[-1]].index >= frames_done])

    with closing(jobs):
        for job in jobs:
            frame = job.frame
            views: dict[Hashable, FaceView] = {
                each.track_id: FaceView(frame.index, frame.time_s, each.track_id, each.speaker, each.face.image)
                for each in job.targets
                if each.face is not None
            }
            yield gathered(job, views)
    yield gathered(None, {})


def in_batches(gathered: Generator[Gathered, None, None], at_once: int, frames: int) -> Generator[Gathered, None, None]:
    """The same jobs, with windows as soon as `at_once` of them are complete, whoever's faces they show.

    Fewer once frames have waited for the duration of `at_once` windows: without faces no window completes, and frames
    would pile up.
    """
    ready: list[Window[FaceView]] = []
    waited = 0
    with closing(gathered):
        for item in gathered:
            waited = waited + 1 if ready else 0
            ready += item.windows
            is_due = len(ready) >= at_once or waited >= at_once * frames or item.job is None
            yield Gathered(item.job, ready if is_due else ())
            ready = [] if is_due else ready
