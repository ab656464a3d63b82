"""Speech on its way in: pieces of any length and rate become moments, each with its sound and what the network gets."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.growing import HEARD
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ, RateConverter
from latentsync_trt.types import Float32Array

LEAST_RATE_HZ, MOST_RATE_HZ = 8_000, 48_000

_PER_MS = SPEECH_RATE_HZ // 1000
_FULL_SCALE = np.float32(32768)


@dataclass(frozen=True, slots=True, eq=False)
class SpokenMoment:
    """One moment of an utterance. `sound (n,)` at the session's rate, `heard (640,)` at 16 kHz: float32.

    `samples`: those of `sound` that are speech. `said_s`: when the last of it was said.
    """

    utterance: int
    sound: Float32Array
    heard: Float32Array
    samples: int
    said_s: float
    ends: bool

    @property
    def power(self) -> float:
        """The mean power of what is heard."""
        return float(np.square(self.heard, dtype=np.float64).mean())


def silent_moment(sound: Float32Array) -> SpokenMoment:
    """A moment without speech; `sound` is silent."""
    return SpokenMoment(0, sound, np.zeros(HEARD, np.float32), 0, 0.0, False)


class _Queue:
    """Samples in order: added at the end, taken from the start."""

    def __init__(self) -> None:
        self._parts: deque[Float32Array] = deque()
        self.size = 0

    def add(self, samples: Float32Array) -> None:
        if samples.size:
            self._parts.append(samples)
            self.size += samples.size

    def take(self, count: int) -> Float32Array:
        """The first `count` samples, filled with silence at the end."""
        found = self.peek(count)
        dropped = min(count, self.size)
        self.size -= dropped
        while dropped:
            first = self._parts.popleft()
            if first.size > dropped:
                self._parts.appendleft(first[dropped:])
            dropped -= min(first.size, dropped)
        return found

    def peek(self, count: int) -> Float32Array:
        made, at = np.zeros(count, np.float32), 0
        for part in self._parts:
            if at >= count:
                break
            piece = part[: count - at]
            made[at : at + piece.size] = piece
            at += piece.size
        return made


class Utterance:
    """Speech from one `say` to `end`."""

    def __init__(self, number: int, sound_rate_hz: int) -> None:
        self.number, self.ended = number, False
        self._rate_hz, self._per_moment = sound_rate_hz, sound_rate_hz // MODEL_FPS
        self._sound, self._heard = _Queue(), _Queue()
        self._said: deque[tuple[int, float]] = deque()
        self._given_hz = self._added = self._taken = 0
        self._converters: tuple[RateConverter, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds that wait."""
        return self._sound.size / self._rate_hz

    def add(self, samples: Float32Array, rate_hz: int, now_s: float) -> None:
        """Adds a piece, float32 `(n,)`."""
        if rate_hz != self._given_hz:
            self._finish()
            self._given_hz = rate_hz
            self._converters = tuple(RateConverter(rate_hz, to_hz) for to_hz in (self._rate_hz, SPEECH_RATE_HZ))
        self._extend(*(converter.convert(samples) for converter in self._converters))
        self._said.append((self._added, now_s))

    def end(self, now_s: float) -> None:
        """Nothing is added any more."""
        self._finish()
        self._said.append((self._added, now_s))
        self.ended = True

    def _extend(self, sound: Float32Array, heard: Float32Array) -> None:
        self._sound.add(sound)
        self._heard.add(heard)
        self._added += sound.size

    def _finish(self) -> None:
        if self._converters:
            self._extend(*(converter.finish() for converter in self._converters))
            # Rounded differently; of both, the same time has been added.
            missing = ceil(self._sound.size * SPEECH_RATE_HZ / self._rate_hz) - self._heard.size
            self._heard.add(np.zeros(max(missing, 0), np.float32))
            self._converters, self._given_hz = (), 0

    def moments(self, look_ahead_ms: int) -> int:
        """How many have so much speech after their beginning, or all that is to come."""
        if self.ended:
            return ceil(self._sound.size / self._per_moment)
        ahead = look_ahead_ms * _PER_MS
        seen = (self._heard.size - ahead) // HEARD + 1 if self._heard.size >= ahead else 0
        return min(seen, self._heard.size // HEARD, self._sound.size // self._per_moment)

    def take(self) -> SpokenMoment:
        """The next moment; the last one is filled with silence."""
        samples = min(self._sound.size, self._per_moment)
        self._taken += samples
        while len(self._said) > 1 and self._said[0][0] < self._taken:
            self._said.popleft()
        sound, heard = self._sound.take(self._per_moment), self._heard.take(HEARD)
        ends = self.ended and not self._sound.size
        return SpokenMoment(self.number, sound, heard, samples, self._said[0][1], ends)

    def ahead(self, most: int) -> Float32Array:
        """Up to `most` samples at 16 kHz that follow, float32 `(n,)`; silence follows an utterance that has ended."""
        return self._heard.peek(most if self.ended else min(most, self._heard.size))


class Speech:
    """The utterances that have not been planned yet.

    Args:
        now: the session's clock, in seconds.
    """

    def __init__(self, sound_rate_hz: int, most_s: float, now: Callable[[], float]) -> None:
        self._rate_hz, self._most_s, self._now = sound_rate_hz, most_s, now
        self._waiting: deque[Utterance] = deque()
        self._number = 0

    @property
    def left_s(self) -> float:
        """Seconds that wait."""
        return sum(each.left_s for each in self._waiting)

    def say(self, samples: NDArray[np.generic], rate_hz: int) -> None:
        """Adds a piece to the utterance that is open, or begins one. Errors as `LiveSession.say`."""
        piece = _checked(samples, rate_hz)
        if self.left_s + piece.size / rate_hz > self._most_s:
            raise Busy(
                f"say: {self.left_s:.1f} s of speech wait, and with {piece.size / rate_hz:.2f} s more it would exceed "
                f"{self._most_s:g} s (--buffer-s); wait until some has been spoken"
            )
        if not piece.size:
            return
        if not self._waiting or self._waiting[-1].ended:
            self._number += 1
            self._waiting.append(Utterance(self._number, self._rate_hz))
        self._waiting[-1].add(piece, rate_hz, self._now())

    def end(self) -> None:
        """Ends the utterance that is open, if there is one."""
        if self._waiting and not self._waiting[-1].ended:
            self._waiting[-1].end(self._now())

    def clear(self) -> None:
        """Drops all that waits."""
        self._waiting.clear()

    def ready(self, look_ahead_ms: int) -> tuple[int, bool]:
        """How many moments can be taken, and whether these are all that is to come."""
        self._drop_spoken()
        count = 0
        for each in self._waiting:
            count += each.moments(look_ahead_ms)
            if not each.ended:
                return count, False
        return count, True

    def take(self) -> SpokenMoment:
        """The next moment, of those that are `ready`."""
        self._drop_spoken()
        return self._waiting[0].take()

    def ahead(self, most: int) -> Float32Array:
        """Up to `most` samples at 16 kHz that follow; silence where nothing is to come."""
        self._drop_spoken()
        return self._waiting[0].ahead(most) if self._waiting else np.zeros(most, np.float32)

    def _drop_spoken(self) -> None:
        while self._waiting and self._waiting[0].ended and not self._waiting[0].left_s:
            self._waiting.popleft()


def _checked(samples: NDArray[np.generic], rate_hz: int) -> Float32Array:
    """`samples` as float32 in full scale ±1."""
    if not isinstance(rate_hz, int) or not LEAST_RATE_HZ <= rate_hz <= MOST_RATE_HZ:
        raise InputError(f"say: {rate_hz} samples per second, supported are {LEAST_RATE_HZ} to {MOST_RATE_HZ}")
    given = np.asarray(samples)
    if given.ndim != 1 or given.dtype not in (np.int16, np.float32):
        raise InputError(f"say: {given.dtype} {given.shape}; give mono samples (n,), int16 or float32 in [−1, 1]")
    piece = given / _FULL_SCALE if given.dtype == np.int16 else given.astype(np.float32)
    if not np.isfinite(piece).all():
        raise InputError("say: has samples that are NaN or infinite")
    return np.asarray(piece, np.float32)
