"""Two stages: gather faces into windows, then run the networks on them.

The networks have their own threads, so that a GPU never waits for a picture to be converted or encoded. Where they can
run side by side, a window is encoded and another one decoded while the one between them is denoised.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import cycle, islice
from time import perf_counter
from typing import Any, Generic, TypeVar

import numpy as np

from latentsync_trt.runtime.networks.devices import DEVICE_FAILURES
from latentsync_trt.runtime.networks.threads import Stage
from latentsync_trt.sync.faces import FrameJob, Target
from latentsync_trt.sync.inpaint import Inpainter
from latentsync_trt.sync.threads import StageClock, spread
from latentsync_trt.types import Float32Array, Frame, UInt8Array, UInt16Array

T = TypeVar("T")

Sight = tuple[Frame, Target]
"""A face in one frame."""

AudioWindows = Callable[[int, Sequence[Frame]], Float32Array]
"""Audio features `(n, S, D)` float32 of a speaker, by number, at these frames."""

_STREAM_FPS = Fraction(55, 2)
"""About what one stream has: the model was trained at 25 frames/s. It paints 33, 36 and 40 better
in one stream than in two: lips follow more closely, and flicker less."""

# For each of several devices: the batch that it paints, and one that waits, while the oldest is still being painted.
# Where stages run side by side: the batches that are encoded and denoised, while the oldest is decoded.
_BATCHES_AHEAD = 2

_STAGES = 3


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


Encoded = Future[list[Float32Array] | None]
"""What `Inpainter.encode` returns, None if it failed."""

Batch = tuple[Sequence[Window[Sight]], Sequence[Float32Array], Encoded | None]
"""Windows to paint together, the audio features of each, float32 `(F, S, D)`, and whether they are encoded already."""


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
        self._frames = frames
        self._held: list[T] = []  # the last complete window, if there is one, and what follows it
        self._used = 0

    def push(self, item: T) -> list[Window[T]]:
        self._held.append(item)
        if len(self._held) - self._used < self._frames:
            return []
        self._held, self._used = self._held[-self._frames :], self._frames
        return [Window(tuple(self._held), range(self._frames))]

    def finish(self) -> list[Window[T]]:
        held, pending = self._held, len(self._held) - self._used
        if not pending:
            return []
        if self._used:
            return [Window(tuple(held[-self._frames :]), range(self._frames - pending, self._frames))]
        return [Window(tuple(islice(cycle((*held, *held[-2:0:-1])), self._frames)), range(pending))]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """The next job (None after the last one), the windows to paint now, and whether those are encoded already."""

    job: FrameJob | None
    windows: Sequence[Window[Sight]] = ()
    encoded: Encoded | None = None


@dataclass(slots=True, eq=False)
class PaintDevice:
    """A device that paints, and what it has painted so far.

    `inpainter`: runs its networks on windows. `run(action)` runs all that it does for a batch, and
    inside that `stage(name, action)` what "encode", "denoise" or "decode" does; both return the
    action's result. `side_by_side`: stages of several batches run at the same time.
    """

    inpainter: Inpainter
    run: Callable[[Callable[[], Any]], Any] = lambda action: action()
    stage: Callable[[Stage, Callable[[], Any]], Any] = lambda _, action: action()
    side_by_side: bool = False
    windows: int = 0
    busy_s: float = 0.0
    busy_until_s: float = 0.0


class Painter:
    """Paints the mouths of a clip.

    `devices`: each takes the next windows when it is free; to be set before `paint`. `frames_done`: frames before this
    one have been written already, and are left out; their windows are cut as usual. `first`: when the first windows
    were painted, on `time.perf_counter`'s scale, and the index after their frames. `last`: the same of the newest.

    Args:
        frames: F, the length of a window.
        audio_windows: runs a network, so it is called in one thread.
        streams: see `WindowPlanner`.
        at_once: how many windows to paint together; called for every frame.
        on_failure: called with the position of a device and its error, in a thread of its own; returns whether
            others go on without it.
        encode_ahead: begins to encode windows while networks open, or returns None.
    """

    def __init__(
        self,
        frames: int,
        audio_windows: AudioWindows,
        clock: StageClock,
        *,
        streams: int = 1,
        at_once: Callable[[], int] = lambda: 1,
        on_failure: Callable[[int, Exception], bool] = lambda *_: False,
        encode_ahead: Callable[[Sequence[Window[Sight]]], Encoded | None] = lambda _: None,
    ) -> None:
        self.devices: tuple[PaintDevice, ...] = ()
        self.frames_done = 0
        self.first: tuple[float, int] | None = None
        self.last: tuple[float, int] | None = None
        self.streams, self._frames, self._audio_windows = streams, frames, audio_windows
        self._clock, self._at_once, self._on_failure = clock, at_once, on_failure
        self._encode_ahead = encode_ahead
        self._lock = threading.Lock()

    def gather(self, jobs: Generator[FrameJob, None, None]) -> Generator[Gathered, None, None]:
        """Every job in order, with windows as soon as `at_once` of them are complete, whoever's faces they show.

        Fewer once frames have waited for the duration of `at_once` windows: without faces no window
        completes, and frames would pile up. No frame is held back by more than (`at_once` +
        `streams`)·F frames after it. Each holds one crop for each of its faces.
        """
        planner: WindowPlanner[Sight] = WindowPlanner(self._frames, streams=self.streams)
        ready: list[Window[Sight]] = []
        waited = 0
        with closing(jobs):
            for job in jobs:
                waited = waited + 1 if ready else 0
                ready += self._wanted(planner.push({target.track_id: (job.frame, target) for target in job.targets}))
                at_once = self._at_once()
                if ready and (len(ready) >= at_once or waited >= at_once * self._frames):
                    yield Gathered(job, ready, self._encode_ahead(ready))
                    ready = []
                else:
                    yield Gathered(job)
        yield Gathered(None, ready + self._wanted(planner.push({})))

    def _wanted(self, windows: Sequence[Window[Sight]]) -> list[Window[Sight]]:
        return [window for window in windows if window.items[window.used[-1]][0].index >= self.frames_done]

    def paint(self, gathered: Generator[Gathered, None, None]) -> Generator[FrameJob, None, None]:
        """Every job in order, with its painted faces, as soon as their windows are done.

        An error of `DEVICE_FAILURES` leaves a device out and gives its windows to others, except for the last device.

        Frames in memory: with one device whose stages run in turn, those that `gather` holds back.
        Several devices need windows to choose from, and finish them out of order, and so do stages
        that run side by side: for each device, up to 2·`at_once`·F frames more wait.
        """
        queue: deque[FrameJob] = deque()
        painted: dict[tuple[int, int], UInt16Array] = {}
        workers = [device for device in self.devices for _ in range(_STAGES if device.side_by_side else 1)]
        results = spread(
            gathered,
            self._batches,
            [partial(self._paint, device) for device in workers],
            ahead=lambda: _BATCHES_AHEAD * len(self.devices) * self._at_once() * self._frames,
            failures=DEVICE_FAILURES,
            on_failure=lambda worker, error: self._on_failure(self.devices.index(workers[worker]), error),
        )
        with closing(results):
            for item, batches in results:
                if item.job is not None:
                    queue.append(item.job)
                for faces in batches:
                    painted.update(faces)
                while queue:
                    job, index = queue[0], queue[0].frame.index
                    keys = [(index, target.track_id) for target in job.targets]
                    if index >= self.frames_done and not painted.keys() >= set(keys):
                        break
                    new = [painted.pop(key, None) for key in keys]
                    targets = (replace(each, painted=face) for each, face in zip(job.targets, new, strict=True))
                    queue.popleft()
                    yield replace(job, targets=tuple(targets))

    def _batches(self, item: Gathered) -> list[Batch]:
        if not item.windows:
            return []
        with self._clock.measure("encode audio", frames=0):
            audio = [
                self._audio_windows(window.items[0][1].speaker, [frame for frame, _ in window.items])
                for window in item.windows
            ]
        size = self._at_once()
        starts = range(0, len(item.windows), size)
        encoded = item.encoded if len(starts) == 1 else None
        return [(item.windows[start : start + size], audio[start : start + size], encoded) for start in starts]

    def _paint(self, device: PaintDevice, batch: Batch) -> dict[tuple[int, int], UInt16Array]:
        """The new faces of frames that have not been written yet, by the frame's index and the track."""
        windows, audio, ahead = batch
        start_s, inpainter, count = perf_counter(), device.inpainter, sum(len(window.used) for window in windows)

        def timed(name: str, action: Callable[..., T], *given: object) -> T:
            with self._clock.measure(name, frames=count):
                return action(*given)

        def encoded() -> list[Float32Array]:
            if ahead is not None and (known := ahead.result()) is not None:
                return known
            # Not where windows are gathered: a track of one frame makes a window of F faces, and as
            # many windows may wait in the queue as frames.
            stacked = timed("gather", lambda: [faces_of(window) for window in windows])
            return device.stage("encode", partial(timed, "encode faces", inpainter.encode, stacked))

        def paint() -> Any:
            known = encoded()
            latents = device.stage("denoise", partial(timed, "denoise", inpainter.denoise, known, audio))
            return device.stage("decode", partial(timed, "decode faces", inpainter.decode, latents))

        results = device.run(paint)
        with self._lock:
            end_s = perf_counter()
            device.windows += len(windows)
            device.busy_s += end_s - max(start_s, device.busy_until_s)  # others may have been painted meanwhile
            device.busy_until_s = end_s
            done = 1 + max(window.items[window.used[-1]][0].index for window in windows)
            self.first = self.first or (end_s, done)
            self.last = end_s, max(done, self.last[1] if self.last else 0)
        new: dict[tuple[int, int], UInt16Array] = {}
        for window, faces in zip(windows, results, strict=True):
            whole = len(window.used) == len(window.items)
            for position in window.used:
                frame, target = window.items[position]
                if frame.index >= self.frames_done:
                    # Copied from a window with unused results, which are part of the same array.
                    new[frame.index, target.track_id] = faces[position] if whole else faces[position].copy()
        return new


def faces_of(window: Window[Sight]) -> UInt8Array:
    """The aligned faces of a window, uint8 `(F, H, W, 3)`."""
    return np.stack([target.face.image for _, target in window.items if target.face is not None])
