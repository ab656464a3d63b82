"""A live session: speech goes in from any thread, frames come out at the pace of whoever takes
them.

It has no clock of its own: `next` gives the next 40 ms at once. Windows are painted in a thread
meanwhile, ahead of the frames, as `LivePlanner` decides.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.streaming import AHEAD
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.live.frame import FRAME_S, Counts, LiveFrame
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.painter import Canceled, SessionPainter
from latentsync_trt.live.planner import FADE_FRAMES, LivePlanner, PlannedFrame
from latentsync_trt.live.speech_queue import SpeechQueue
from latentsync_trt.types import Float32Array, Patch, UInt16Array, YuvPlanes

if TYPE_CHECKING:
    from latentsync_trt.live.idle import IdleLoop

_STOPPED_S = 0.02
"""In which sound fades where it is stopped."""

_HEADROOM = 1.1
_REMEMBERED = 8
"""How much longer painting may take than the slowest of the last ones did, and how many these
are.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """A painted frame that waits to be shown."""

    planned: PlannedFrame
    planes: YuvPlanes
    patch: Patch


class LiveSession(AbstractContextManager["LiveSession"], Iterator[LiveFrame]):
    """Speech in, frames out; `LipSync.stream` opens one.

    `say`, `end` and `stop` may be called from any thread, iteration from one. `counts`: what it has
    done so far.

    Args:
        executors: of painting and of compositing; each runs its tasks in order, one at a time. Shut
            down by `close`.
        now: a clock in seconds, for `LiveFrame.delay_s` and to know how long painting takes.
        paint_s: how long it takes until the first frames of a window can be shown, as measured.
        on_close: called once.
    """

    def __init__(
        self,
        painter: SessionPainter,
        loop: "IdleLoop",
        options: LiveOptions,
        *,
        executors: tuple[Executor, Executor] | None = None,
        now: Callable[[], float] = time.perf_counter,
        paint_s: float = 0.0,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.counts = Counts()
        self.options = options
        self.loop = loop
        self._painter = painter
        self._now = now
        self._on_close = on_close
        own = ThreadPoolExecutor(1, "live paint"), ThreadPoolExecutor(1, "live compose")
        self._painting_in, self._composing_in = executors or own
        self._changed = threading.RLock()
        self._rate_hz = int(options.sound_rate_hz)
        self._silence = np.zeros(self._rate_hz // MODEL_FPS, np.float32)
        self._silence.flags.writeable = False
        self._speech = SpeechQueue(self._rate_hz, options.buffer_s, now)
        self._planner = LivePlanner(self._speech, options.hop, options.look_ahead_ms, self._silence)
        self._generation = 0
        self._painting = False
        self._closed = False
        self._error: BaseException | None = None
        self._took_s: deque[float] = deque([paint_s], maxlen=_REMEMBERED)
        self._last = loop.planes[0]  # what was shown last
        self._ready: deque[_Ready] = deque()  # the first planned frames, painted
        self._given = 0, 0  # an utterance, and its samples that were given

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, samples: NDArray[Any], rate_hz: int) -> float:
        """Adds speech; returns the seconds that wait to be heard.

        Args:
            samples: mono `(n,)`, int16, or float32 in [−1, 1]; of any length. rate_hz: 8,000 to
                48,000.

        Raises:
            Busy: more than `options.buffer_s` seconds would wait; none of `samples` is taken.
                InputError: they cannot
            be used, or the session is closed.
        """
        with self._changed:
            self._check_open("say")
            self._speech.say(samples, rate_hz)
            self._planner.said()
            self._go_on()
            return self._speech.left_s + self._planner.waiting * float(FRAME_S)

    def end(self) -> None:
        """The utterance is complete: the rest is painted without look-ahead. Speech after it is
        another one.
        """
        with self._changed:
            self._check_open("end")
            self._planner.end()
            self._go_on()

    def stop(self) -> float:
        """Drops what was not given yet; returns the seconds of the current utterance that were, 0
        in silence.

        Sound fades within the first 20 ms of the next frame, the mouth within 160 ms. Of a window
        that is being painted, the step under way is the last.
        """
        with self._changed:
            self._check_open("stop")
            self._generation += 1
            kept = [*self._ready][: self._planner.stop(len(self._ready))]
            self._ready = deque(self._fading(one, place) for place, one in enumerate(kept))
            given_s = self._given[1] / self._rate_hz
            self._given = (0, 0)
            return given_s

    def close(self) -> None:
        """Ends the session and its iteration; the step under way is the last."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._generation += 1
        self._painting_in.shutdown()
        self._composing_in.shutdown()
        self._on_close()

    @property
    def idle(self) -> bool:
        """Whether nothing is said, and nothing waits to be."""
        with self._changed:
            return self._planner.idle and not self._painting

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise InputError(f"LiveSession.{method}: the session is closed; open another")

    def __next__(self) -> LiveFrame:
        """The next 40 ms, at once. Raises what painting raised, and from then on StopIteration, as
        after `close`.
        """
        with self._changed:
            if self._closed:
                raise StopIteration
            self._go_on()
            if self._planner.is_pressed(self._paint_frames):
                self._go_on(pressed=True)
            if self._error is None:
                frame = self._shown()
                self._last = frame.planes
                self._go_on()
                return frame
        self.close()
        raise self._error

    def _shown(self) -> LiveFrame:
        index = self.counts.frames
        shown = self._planner.show(len(self._ready))
        self.counts.frames += 1
        if shown.late:
            self.counts.late += 1
            return LiveFrame(index, self._last, self._silence, late=True)
        if shown.ended:
            self._given = 0, 0
        if not shown.mouth:
            planes = self.loop.planes[self.loop.index(self._planner.position)]
            return LiveFrame(index, planes, self._silence, shown.ended, ends=bool(shown.ended))
        ready = self._ready.popleft()
        spoken = ready.planned.spoken
        self.counts.painted += 1
        if not spoken.samples:
            return LiveFrame(index, ready.planes, spoken.sound, shown.ended, ends=bool(shown.ended))
        self.counts.spoken += 1
        number, before = self._given
        samples = spoken.samples + (before if number == spoken.utterance else 0)
        self._given = (0, 0) if spoken.ends else (spoken.utterance, samples)
        delay_s = self._now() - spoken.said_s
        return LiveFrame(
            index, ready.planes, spoken.sound, spoken.utterance, True, spoken.ends, delay_s=delay_s
        )

    def _fading(self, ready: _Ready, place: int) -> _Ready:
        """A frame after `stop`, the `place`-th of at most three."""
        planned = ready.planned
        sound = self._silence
        if place == 0:
            ramp = np.arange(len(sound)) / (_STOPPED_S * self._rate_hz)
            sound = (planned.spoken.sound * np.maximum(1 - ramp, 0)).astype(np.float32)
        share = min(planned.share, 1 - (place + 1) / FADE_FRAMES)
        planes = self._painter.picture(planned.position, ready.patch, share)
        silent = replace(planned.spoken, sound=sound, samples=0, ends=False)
        return _Ready(replace(planned, spoken=silent, share=share), planes, ready.patch)

    @property
    def _paint_frames(self) -> int:
        """How many frames pass while the first ones of a window are painted."""
        return ceil(_HEADROOM * max(self._took_s) / FRAME_S)

    def _go_on(self, *, pressed: bool = False) -> None:
        """Begins to paint the next window, if there is speech for it; `pressed`: with the speech
        there is.
        """
        if self._painting or self._closed or self._error is not None:
            return
        if planned := self._planner.window(self._paint_frames, pressed=pressed):
            self._painting = True
            self.counts.starved = self._planner.starved
            task = partial(
                self._paint, self._generation, planned, self._speech.ahead(AHEAD), self._now()
            )
            self._painting_in.submit(task).add_done_callback(self._after_painting)

    # In the threads of the executors.

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise Canceled

    def _paint(
        self, generation: int, planned: Sequence[PlannedFrame], ahead: Float32Array, begun_s: float
    ) -> None:
        check = partial(self._check, generation)
        latents = self._painter.latents(planned, ahead, check)
        for place, (one, painted) in enumerate(
            zip(planned, self._painter.decoded(latents), strict=True)
        ):
            check()
            first_s = begun_s if place == 0 else None
            composing = self._composing_in.submit(
                partial(self._compose, generation, one, painted, first_s)
            )
            composing.add_done_callback(self._note_error)
        self.counts.windows += 1
        self.counts.painting_s += self._now() - begun_s

    def _compose(
        self, generation: int, planned: PlannedFrame, painted: UInt16Array, begun_s: float | None
    ) -> None:
        self._check(generation)
        patch = self._painter.patch(planned.position, painted, begins=planned.begins)
        planes = self._painter.picture(planned.position, patch, planned.share)
        with self._changed:
            if generation == self._generation:
                self._ready.append(_Ready(planned, planes, patch))
                if begun_s is not None:
                    self._took_s.append(self._now() - begun_s)

    def _after_painting(self, done: Future[None]) -> None:
        with self._changed:
            self._painting = False
            self._note_error(done)
            self._go_on()

    def _note_error(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, Canceled):
            with self._changed:
                self._error = self._error or error
