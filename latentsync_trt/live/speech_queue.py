"""Speech on its way in: pieces of any length and rate become frames, each with its sound and what
the network gets.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.streaming import HEARD
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ, RateConverter, SampleQueue
from latentsync_trt.types import Float32Array

LEAST_RATE_HZ = 8_000
MOST_RATE_HZ = 48_000


@dataclass(frozen=True, slots=True, eq=False)
class SpokenFrame:
    """40 ms of speech. `sound (n,)` at the session's rate, `heard (640,)` at 16 kHz: float32.

    `utterance`: its number, from 1; 0 = silence. `samples`: those of `sound` that are speech.
    `said_s`: when the last of it was said. `ends`: it is the last of its utterance.
    """

    utterance: int
    sound: Float32Array
    heard: Float32Array
    samples: int = 0
    said_s: float = 0.0
    ends: bool = False


def silent_frame(sound: Float32Array) -> SpokenFrame:
    """A frame without speech; `sound` is silent."""
    return SpokenFrame(0, sound, np.zeros(HEARD, np.float32))


class SpeechQueue:
    """What was said and is not planned yet: utterances, each from one `say` to `end`, the last of
    which may be open.

    `number`: of the newest utterance.

    Args:
        now: the session's clock, in seconds.
    """

    def __init__(self, sound_rate_hz: int, most_s: float, now: Callable[[], float]) -> None:
        self._rate_hz = sound_rate_hz
        self._per_frame = sound_rate_hz // MODEL_FPS
        self._most_s = most_s
        self._now = now
        self.number = 0
        self._added = self._taken = 0  # samples of the session's rate
        self.clear()

    def clear(self) -> None:
        """Drops all that waits; what is said next begins an utterance."""
        self._sound = SampleQueue()
        self._heard = SampleQueue()
        self._said = deque[tuple[int, float]]()  # how much had been added, and when
        # number of an utterance, and how much had been added at its end
        self._ends = deque[tuple[int, int]]()
        self._given_hz = 0
        self._converters = tuple[RateConverter, ...]()
        self._open = False
        self._taken = self._added

    @property
    def left_s(self) -> float:
        return self._sound.size / self._rate_hz

    def say(self, samples: NDArray[np.generic], rate_hz: int) -> None:
        """Adds a piece to the utterance that is open, or begins one. Errors as
        `LiveSession.say`.
        """
        piece = _checked(samples, rate_hz)
        if self.left_s + piece.size / rate_hz > self._most_s:
            waits = (
                f"{self.left_s:.1f} s of speech wait, and "
                f"at most {self._most_s:g} s may (--buffer-s)"
            )
            raise Busy(f"say: {waits}; say it again when some has been spoken")
        if not piece.size:
            return
        self.number = self.number + (not self._open)
        self._open = True
        if rate_hz != self._given_hz:
            self._flush(1)
            self._given_hz = rate_hz
            self._converters = tuple(
                RateConverter(rate_hz, to_hz) for to_hz in (self._rate_hz, SPEECH_RATE_HZ)
            )
        self._extend(*(converter.convert(piece) for converter in self._converters))

    def end(self) -> bool:
        """Ends the utterance that is open; returns whether there is one of which nothing waits any
        more.
        """
        if not self._open:
            return False
        self._ends.append((self.number, self._flush(self._per_frame)))
        self._open = False
        before = self._ends[-2][1] if len(self._ends) > 1 else self._taken
        if self._added <= max(before, self._taken):
            self._ends.pop()
            return True
        return False

    def _extend(self, sound: Float32Array, heard: Float32Array) -> None:
        self._sound.add(sound)
        self._heard.add(heard)
        self._added += sound.size
        self._said.append((self._added, self._now()))

    def _flush(self, multiple: int) -> int:
        """Adds what converters hold, and silence to a multiple of samples; returns how much was
        added without that.
        """
        if self._converters:
            self._extend(*(converter.convert(None) for converter in self._converters))
        self._given_hz = 0
        self._converters = ()
        spoken = self._added
        self._extend(np.zeros(-self._sound.size % multiple, np.float32), np.zeros(0, np.float32))
        # The same time waits of both, which converters round differently.
        exact = self._heard.take(round(self._sound.size * SPEECH_RATE_HZ / self._rate_hz))
        self._heard = SampleQueue()
        self._heard.add(exact)
        return spoken

    def ready(self, look_ahead_ms: int) -> tuple[int, bool]:
        """How many frames can be taken, with so much speech after their beginning, and whether
        these are all.
        """
        whole = min(self._heard.size // HEARD, self._sound.size // self._per_frame)
        if not self._open:
            return whole, True
        if self._ends:
            ended = ceil(max(self._ends[-1][1] - self._taken, 0) / self._per_frame)
        else:
            ended = 0
        return max(
            ended,
            min(whole, (self._heard.size - look_ahead_ms * SPEECH_RATE_HZ // 1000) // HEARD + 1),
        ), False

    def take(self) -> SpokenFrame:
        """The next frame, of those that are `ready`; the last one of an utterance is filled with
        silence.
        """
        number, end = self._ends[0] if self._ends else (self.number, self._added)
        samples = min(self._per_frame, end - self._taken)
        while len(self._said) > 1 and self._said[0][0] < self._taken + samples:
            self._said.popleft()
        self._taken += self._per_frame
        ends = bool(self._ends) and end <= self._taken
        if ends:
            self._ends.popleft()
        sound = self._sound.take(self._per_frame)
        heard = self._heard.take(HEARD)
        return SpokenFrame(number, sound, heard, samples, self._said[0][1], ends)

    def ahead(self, most: int) -> Float32Array:
        """Up to `most` samples at 16 kHz that follow, float32 `(n,)`; silence where nothing is to
        come.
        """
        return self._heard.peek(min(most, self._heard.size) if self._open else most)


def _checked(samples: NDArray[np.generic], rate_hz: int) -> Float32Array:
    """`samples` as float32 in full scale ±1."""
    if not isinstance(rate_hz, int) or not LEAST_RATE_HZ <= rate_hz <= MOST_RATE_HZ:
        raise InputError(
            f"say: {rate_hz} samples per second, supported are {LEAST_RATE_HZ} to {MOST_RATE_HZ}"
        )
    given = np.asarray(samples)
    if given.ndim != 1 or given.dtype not in (np.int16, np.float32):
        raise InputError(
            f"say: {given.dtype} {given.shape}; give mono samples (n,), int16 or float32 in [−1, 1]"
        )
    if given.dtype == np.int16:
        piece = given / np.float32(32768)
    else:
        piece = given.astype(np.float32)
    if not np.isfinite(piece).all():
        raise InputError("say: has samples that are NaN or infinite")
    return np.asarray(piece, np.float32)
