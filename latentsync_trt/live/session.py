"""A live session: speech goes in from any thread, frames come out at the pace of whoever takes
them.

It has no clock of its own: `next` gives the next 40 ms at once. Windows are painted in a thread
meanwhile, ahead of the frames, as `LivePlanner` decides.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.streaming import AHEAD
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.live.frame import FRAME_S, Counts, LiveFrame
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.painted_ahead import PaintedAhead, ReadyFrame
from latentsync_trt.live.planner import FADE_FRAMES, LivePlanner
from latentsync_trt.live.speech_queue import SpeechQueue

if TYPE_CHECKING:
    from latentsync_trt.live.painter import SessionPainter

_FADE_OUT_S = 0.02
"""Seconds in which sound fades where it is stopped."""


class LiveSession(AbstractContextManager["LiveSession"], Iterator[LiveFrame]):
    """Speech in, frames out; `LipSync.stream` opens one.

    `say`, `end` and `stop` may be called from any thread, iteration from one.

    Args:
        executors: of painting and of compositing; each runs its tasks in order, one at a time. Shut
            down by `close`.
        now: a clock in seconds, for `LiveFrame.delay_s` and to know how long painting takes.
        paint_s: how long it takes until the first frames of a window can be shown, as measured.
        on_close: called once.
    """

    def __init__(
        self,
        painter: "SessionPainter",
        options: LiveOptions,
        *,
        executors: tuple[Executor, Executor] | None = None,
        now: Callable[[], float] = time.perf_counter,
        paint_s: float = 0.0,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.counts = Counts()
        """What the session has done so far."""
        self.options = options
        self.loop = painter.loop
        """The idle clip."""
        self._painter = painter
        self._now = now
        self._on_close = on_close
        self._closed = False
        self._rate_hz = int(options.sound_rate_hz)
        self._silence = np.zeros(self._rate_hz // MODEL_FPS, np.float32)
        self._silence.flags.writeable = False
        self._speech = SpeechQueue(self._rate_hz, options.buffer_s, now)
        self._planner = LivePlanner(self._speech, options.hop, options.look_ahead_ms, self._silence)
        self._ahead = PaintedAhead(painter, executors, now, paint_s, self.counts, self._go_on)
        self._changed = self._ahead.changed
        self._last_planes = self.loop.planes[0]  # what was shown last
        self._utterance = 0  # the one that is being heard
        self._given_samples = 0  # how many of its samples were given

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, samples: NDArray[Any], rate_hz: int) -> float:
        """Adds speech; returns the seconds that wait to be heard.

        Args:
            samples: mono `(n,)`, int16, or float32 in [−1, 1]; of any length.
            rate_hz: 8,000 to 48,000.

        Raises:
            Busy: more than `options.buffer_s` seconds would wait; none of `samples` is taken.
            InputError: they cannot be used, or the session is closed.
        """
        with self._changed:
            _check_open("say", is_closed=self._closed)
            self._speech.say(samples, rate_hz)
            self._planner.on_speech()
            self._go_on()
            return self._speech.left_s + self._planner.waiting * float(FRAME_S)

    def end(self) -> None:
        """The utterance is complete: the rest is painted without look-ahead. Speech after it is
        another one.
        """
        with self._changed:
            _check_open("end", is_closed=self._closed)
            self._planner.end()
            self._go_on()

    def stop(self) -> float:
        """Drops what was not given yet; returns the seconds of the current utterance that were, 0
        in silence.

        Sound fades within the first 20 ms of the next frame, the mouth within 160 ms. Of a window
        that is being painted, the step under way is the last.
        """
        with self._changed:
            _check_open("stop", is_closed=self._closed)
            self._ahead.cancel()
            ready = self._ahead.ready
            kept = [ready.popleft() for _ in range(self._planner.stop(len(ready)))]
            ready.clear()
            ready.extend(self._fading(frame, place) for place, frame in enumerate(kept))
            given_s = self._given_samples / self._rate_hz
            self._given_samples = 0
            return given_s

    def close(self) -> None:
        """Ends the session and its iteration; the step under way is the last."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._ahead.cancel()
        self._ahead.close()
        self._on_close()

    @property
    def idle(self) -> bool:
        """Whether nothing is said, and nothing waits to be."""
        with self._changed:
            return self._planner.idle and not self._ahead.is_painting

    def __next__(self) -> LiveFrame:
        """Returns the next 40 ms, at once. Raises what painting raised, and from then on
        StopIteration, as after `close`.
        """
        with self._changed:
            if self._closed:
                raise StopIteration
            self._go_on()
            if self._planner.is_pressed(self._ahead.paint_frames):
                self._go_on(pressed=True)
            error = self._ahead.error
            if error is None:
                frame = self._next_frame()
                self._last_planes = frame.planes
                self._go_on()
                return frame
        self.close()
        raise error

    def _next_frame(self) -> LiveFrame:
        index = self.counts.frames
        picture = self._planner.show(len(self._ahead.ready))
        self.counts.frames += 1
        if picture.late:
            self.counts.late += 1
            return LiveFrame(index, self._last_planes, self._silence, late=True)
        if picture.ended:
            self._given_samples = 0
        planes = self.loop.planes[self.loop.index(self._planner.position)]
        sound = self._silence
        if picture.painted:
            self.counts.painted += 1
            ready = self._ahead.ready.popleft()
            if ready.planned.spoken.samples:
                return self._spoken_frame(index, ready)
            planes = ready.planes
            sound = ready.planned.spoken.sound
        return LiveFrame(index, planes, sound, picture.ended, ends=bool(picture.ended))

    def _spoken_frame(self, index: int, ready: ReadyFrame) -> LiveFrame:
        spoken = ready.planned.spoken
        self.counts.spoken += 1
        if spoken.utterance != self._utterance:
            self._utterance = spoken.utterance
            self._given_samples = 0
        self._given_samples += spoken.samples
        if spoken.ends:
            self._given_samples = 0
        return LiveFrame(
            index,
            ready.planes,
            spoken.sound,
            spoken.utterance,
            speaking=True,
            ends=spoken.ends,
            delay_s=self._now() - spoken.said_s,
        )

    def _fading(self, ready: ReadyFrame, place: int) -> ReadyFrame:
        """Returns a frame after `stop`, the `place`-th of at most three."""
        planned = ready.planned
        sound = self._silence
        if place == 0:
            ramp = np.arange(len(sound)) / (_FADE_OUT_S * self._rate_hz)
            gain = np.maximum(1 - ramp, 0)
            sound = (planned.spoken.sound * gain).astype(np.float32)
        opacity = min(planned.opacity, 1 - (place + 1) / FADE_FRAMES)
        planes = self._painter.picture(planned.position, ready.patch, opacity)
        silent = replace(planned.spoken, sound=sound, samples=0, ends=False)
        return ReadyFrame(replace(planned, spoken=silent, opacity=opacity), planes, ready.patch)

    def _go_on(self, *, pressed: bool = False) -> None:
        """Begins to paint the next window, if there is speech for it; `pressed`: with the speech
        there is.
        """
        if self._ahead.is_painting or self._closed or self._ahead.error is not None:
            return
        planned = self._planner.window(self._ahead.paint_frames, pressed=pressed)
        if planned:
            self.counts.starved = self._planner.starved
            self._ahead.paint(planned, self._speech.ahead(AHEAD))


def _check_open(method: str, *, is_closed: bool) -> None:
    if is_closed:
        raise InputError(f"LiveSession.{method}: the session is closed; open another")
