"""A live session: speech goes in from any thread, moments come out at the pace of whoever takes them.

It has no clock of its own: `next` gives the next 40 ms at once. Windows are painted in a thread meanwhile, ahead of
the moments. Positions count the pictures shown, late ones apart; a frame is painted for the position at which it will
be shown, so that the idle clip goes on without a jump.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.growing import AHEAD, QUIET_DB
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import InputError
from latentsync_trt.live.moment import MOMENT_S, Counts, Moment
from latentsync_trt.live.options import LiveOptions
from latentsync_trt.live.painter import Canceled, Planned, SessionPainter
from latentsync_trt.live.speech import Speech, SpokenMoment, silent_moment
from latentsync_trt.types import Float32Array, Patch, UInt16Array, YuvPlanes

if TYPE_CHECKING:
    from latentsync_trt.live.idle import IdleLoop

_TAIL = 5
"""Moments of silence that are painted after speech: the mouth closes."""

_FADE = 4
"""In the first and the last 160 ms less of the painted face shows."""

_STOPPED_S = 0.02
"""In which sound fades where it is stopped."""

_SPARE, _HEADROOM = 1, 1.1
"""Moments more than painting takes, as pieces of speech and who takes moments come unevenly; and how much longer it may
take than it did."""

_REMEMBERED = 8
"""Paintings, of which the slowest says how long the next may take."""

_PATIENCE = 10
"""Moments in which more must be said, where there is too little for a window and no end: 400 ms."""

_PAUSE = 3
"""Moments of a pause that are kept where it is shortened."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """A painted frame that waits for its moment."""

    planned: Planned
    planes: YuvPlanes
    patch: Patch


class LiveSession:
    """Speech in, moments out; `LipSync.stream` opens one.

    `say`, `end` and `stop` may be called from any thread, iteration from one. `counts`: what it has done so far.

    Args:
        executors: of painting and of compositing; each runs its tasks in order, one at a time. Shut down by `close`.
        now: a clock in seconds, for `Moment.delay_s` and to know how long painting takes.
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
        self.counts, self.options, self.loop = Counts(), options, loop
        self._painter, self._now, self._on_close = painter, now, on_close
        self._painting_in, self._composing_in = executors or (
            ThreadPoolExecutor(1, "live paint"),
            ThreadPoolExecutor(1, "live compose"),
        )
        self._changed = threading.Condition(threading.RLock())
        self._rate_hz = int(options.sound_rate_hz)
        self._speech = Speech(self._rate_hz, options.buffer_s, now)
        self._silence = np.zeros(self._rate_hz // MODEL_FPS, np.float32)
        self._silence.flags.writeable = False
        self._generation, self._painting, self._closed = 0, False, False
        self._error: BaseException | None = None
        self._took_s: deque[float] = deque([paint_s], maxlen=_REMEMBERED)
        self._position, self._last = -1, Moment(-1, loop.planes[0], self._silence)  # what was shown last
        self._shows_mouth = False
        self._expected: deque[int] = deque()  # positions of frames that are planned and not shown yet
        self._ready: deque[_Ready] = deque()  # the first of them, painted
        self._next: int | None = None  # position of the next frame to plan, while there is speech
        self._faded_in = self._tail = self._debt = self._quiet = 0
        self._loudest = 0.0
        self._heard = 0, 0  # an utterance, and its samples that were given
        # Last positions of utterances that ended after they had been planned.
        self._ends: deque[tuple[int, int]] = deque()
        self._patience = _PATIENCE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Moment]:
        return self

    def say(self, samples: NDArray[Any], rate_hz: int) -> float:
        """Adds speech; returns the seconds that wait to be heard.

        Args:
            samples: mono `(n,)`, int16, or float32 in [−1, 1]; of any length. rate_hz: 8,000 to 48,000.

        Raises:
            Busy: more than `options.buffer_s` seconds would wait; none of `samples` is taken. InputError: they cannot
            be used, or the session is closed.
        """
        with self._changed:
            self._check_open("say")
            self._speech.say(samples, rate_hz)
            self._patience = _PATIENCE
            self._paint_ahead()
            return self._speech.left_s + len(self._expected) * float(MOMENT_S)

    def end(self) -> None:
        """The utterance is complete: the rest is painted without look-ahead. Speech after it is another one."""
        with self._changed:
            self._check_open("end")
            if self._speech.end():  # after all of it was planned
                self._ends.append((max([self._position, *list(self._expected)[-1:]]), self._speech.number))
            self._paint_ahead()

    def stop(self) -> float:
        """Drops what was not given yet; returns the seconds of the current utterance that were, 0 in silence.

        Sound fades within the first 20 ms of the next moment, the mouth within 160 ms. Of a window that is being
        painted, the step under way is the last.
        """
        with self._changed:
            self._check_open("stop")
            self._generation += 1
            self._speech.clear()
            self._ends.clear()
            kept = [one for one in self._ready if self._shows_mouth and one.planned.position < self._position + _FADE]
            self._ready = deque(self._fading(one, place) for place, one in enumerate(kept))
            self._expected = deque(one.planned.position for one in kept)
            self._next, heard_s = None, self._heard[1] / self._rate_hz
            self._heard = 0, 0
            return heard_s

    def close(self) -> None:
        """Ends the session and its iteration; the step under way is the last."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._generation += 1
            self._speech.clear()
            self._ready.clear()
            self._changed.notify_all()
        self._painting_in.shutdown()
        self._composing_in.shutdown()
        self._on_close()

    @property
    def idle(self) -> bool:
        """Whether nothing is said, and nothing waits to be."""
        with self._changed:
            return not (self._expected or self._painting or self._speech.left_s) and self._next is None

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise InputError(f"LiveSession.{method}: the session is closed; open another")

    def __next__(self) -> Moment:
        """The next 40 ms, at once. Raises what painting raised, and from then on StopIteration, as after `close`."""
        with self._changed:
            if self._closed:
                raise StopIteration
            self._go_on()
            self._patience -= 1
            if self._patience < 0 if self._next is None else self._next - self._position - 1 <= self._paint_moments:
                self._go_on(starving=True)
            while self.options.wait and self._is_late and (self._expected or self._painting) and self._error is None:
                self._changed.wait()
            error = self._error
            if error is None:
                self._last = self._moment()
                self._paint_ahead()
                return self._last
        self.close()
        raise error

    @property
    def _is_late(self) -> bool:
        """Whether the next frame should be painted, and is not."""
        due = self._expected[0] if self._expected else self._next
        return due == self._position + 1 and not self._ready

    def _moment(self) -> Moment:
        index = self.counts.moments
        self.counts.moments += 1
        if self._is_late:
            self.counts.late += 1
            self._debt += 1
            return Moment(index, self._last.planes, self._silence, late=True)
        self._position += 1
        self._shows_mouth = bool(self._expected) and self._expected[0] == self._position
        ended = 0
        if self._ends and self._ends[0][0] < self._position:
            ended = self._ends.popleft()[1]
            self._heard = 0, 0
        if not self._shows_mouth:
            planes = self.loop.planes[self.loop.index(self._position)]
            return Moment(index, planes, self._silence, ended, ends=bool(ended))
        self._expected.popleft()
        ready = self._ready.popleft()
        spoken = ready.planned.spoken
        self.counts.painted += 1
        if not spoken.samples:
            return Moment(index, ready.planes, spoken.sound, ended, ends=bool(ended))
        self.counts.spoken += 1
        number, samples = self._heard
        samples = spoken.samples + (samples if number == spoken.utterance else 0)
        self._heard = (0, 0) if spoken.ends else (spoken.utterance, samples)
        delay_s = self._now() - spoken.said_s
        return Moment(index, ready.planes, spoken.sound, spoken.utterance, True, spoken.ends, delay_s=delay_s)

    def _fading(self, ready: _Ready, place: int) -> _Ready:
        """A frame after `stop`, the `place`-th of at most three."""
        planned, sound = ready.planned, self._silence
        if place == 0:
            ramp = np.arange(len(sound)) / (_STOPPED_S * self._rate_hz)
            sound = (planned.spoken.sound * np.maximum(1 - ramp, 0)).astype(np.float32)
        share = min(planned.share, 1 - (place + 1) / _FADE)
        planes = self._painter.picture(planned.position, ready.patch, share)
        silent = replace(planned.spoken, sound=sound, samples=0, ends=False)
        return _Ready(replace(planned, spoken=silent, share=share), planes, ready.patch)

    @property
    def _paint_moments(self) -> int:
        """How many moments pass while the first frames of a window are painted."""
        return 0 if self.options.wait else ceil(_HEADROOM * max(self._took_s) / MOMENT_S)

    def _paint_ahead(self) -> None:
        if not self.options.wait:  # else when a moment needs it, so that only the order of calls matters
            self._go_on()

    def _go_on(self, *, starving: bool = False) -> None:
        """Begins to paint the next window, if there is speech for it; `starving`: with the speech there is."""
        if self._painting or self._closed or self._error is not None:
            return
        if len(self._expected) > self.options.hop + self._paint_moments + _SPARE:
            return  # far enough ahead
        if planned := self._planned_window(starving=starving):
            self._painting = True
            self._expected.extend(one.position for one in planned)
            task = partial(self._paint, self._generation, planned, self._speech.ahead(AHEAD), self._now())
            self._painting_in.submit(task).add_done_callback(self._after_painting)

    def _planned_window(self, *, starving: bool) -> list[Planned]:
        """The frames of the next window; none while more speech should be waited for."""
        hop, (count, is_all) = self.options.hop, self._speech.ready(self.options.look_ahead_ms)
        starved = False
        if count < hop and not starving and not (is_all and self._next is None):
            return []  # more may come until it is needed
        if count < hop and not is_all:
            count, _ = self._speech.ready(0)
            starved = is_all = not count
        if not count and self._next is None:
            return []
        if self._next is None:
            lead = 0 if self.options.wait else self._paint_moments + _SPARE
            self._next = max([self._position + lead, *list(self._expected)[-1:]]) + 1
            self._faded_in = self._debt = self._quiet = 0
        begins = not self._faded_in
        spoken = self._taken(min(count, hop))
        self._tail = _TAIL if spoken else self._tail
        tail = min(hop - len(spoken), self._tail) if is_all and count <= hop else 0
        self.counts.starved += tail * starved
        shares = [min(1.0, (self._faded_in + 1 + place) / _FADE) for place in range(len(spoken))]
        shares += [min(1.0, (self._tail - place) / _FADE) for place in range(tail)]
        moments = [*spoken, *[silent_moment(self._silence)] * tail]
        planned = [
            Planned(self._next + place, moment, share, begins and place == 0)
            for place, (moment, share) in enumerate(zip(moments, shares, strict=True))
        ]
        self._faded_in = round(shares[-1] * _FADE) if shares else self._faded_in
        self._tail -= tail
        self._next = None if tail and not self._tail else self._next + len(moments)
        return planned

    def _taken(self, count: int) -> list[SpokenMoment]:
        """The next `count` moments of speech, without those of a pause that are left out to catch up."""
        found = []
        for _ in range(count):
            spoken = self._speech.take()
            self._loudest = max(self._loudest, spoken.power)
            self._quiet = self._quiet + 1 if spoken.power <= self._loudest * 10 ** (QUIET_DB / 10) else 0
            if self._debt and self._quiet > _PAUSE and not spoken.ends:
                self._debt -= 1
                self.counts.skipped += 1
            else:
                found.append(spoken)
        return found

    # In the threads of the executors.

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise Canceled

    def _paint(self, generation: int, planned: Sequence[Planned], ahead: Float32Array, begun_s: float) -> None:
        check = partial(self._check, generation)
        latents = self._painter.latents(planned, ahead, check)
        for place, (one, painted) in enumerate(zip(planned, self._painter.decoded(latents), strict=True)):
            check()
            first_s = begun_s if place == 0 else None
            composing = self._composing_in.submit(partial(self._compose, generation, one, painted, first_s))
            composing.add_done_callback(self._note_error)
        self.counts.windows += 1
        self.counts.painting_s += self._now() - begun_s

    def _compose(self, generation: int, planned: Planned, painted: UInt16Array, begun_s: float | None) -> None:
        self._check(generation)
        patch = self._painter.patch(planned.position, painted, begins=planned.begins)
        planes = self._painter.picture(planned.position, patch, planned.share)
        with self._changed:
            if generation == self._generation:
                self._ready.append(_Ready(planned, planes, patch))
                if begun_s is not None:
                    self._took_s.append(self._now() - begun_s)
                self._changed.notify_all()

    def _after_painting(self, done: Future[None]) -> None:
        with self._changed:
            self._painting = False
            self._note_error(done)
            self._paint_ahead()
            self._changed.notify_all()

    def _note_error(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, Canceled):
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
