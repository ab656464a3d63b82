"""Speech on its way in: pieces of any length and rate become frames, each with its sound and what
the network gets.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.audio.streaming import FRAME_SAMPLES
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.errors import Busy, InputError
from latentsync_trt.media.audio import SPEECH_RATE_HZ, RateConverter, SampleQueue
from latentsync_trt.types import Float32Array

LEAST_RATE_HZ = 8_000
MOST_RATE_HZ = 48_000

_NO_SAMPLES = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class SpokenFrame:
    """40 ms of speech."""

    utterance: int
    """The number of the utterance, from 1; 0 for silence."""
    sound: Float32Array
    """`(n,)`, at the session's rate."""
    heard: Float32Array
    """`(640,)`, at 16 kHz."""
    samples: int = 0
    """How many of `sound` are speech."""
    said_s: float = 0.0
    """When the last of them was said."""
    ends: bool = False
    """Whether the frame is the last of its utterance."""


def silent_frame(sound: Float32Array) -> SpokenFrame:
    """Returns a frame without speech; `sound` is silent."""
    return SpokenFrame(0, sound, np.zeros(FRAME_SAMPLES, np.float32))


@dataclass(frozen=True, slots=True)
class _UtteranceEnd:
    utterance: int
    added: int
    """How many samples had been added at its end."""


@dataclass(frozen=True, slots=True)
class _Said:
    added: int
    """How many samples had been added then."""
    time_s: float


class SpeechQueue:
    """What was said and is not planned yet: utterances, each from one `say` to `end`, the last of
    which may be open. Samples are counted at the session's rate.

    Args:
        now: the session's clock, in seconds.
    """

    def __init__(self, sound_rate_hz: int, most_s: float, now: Callable[[], float]) -> None:
        self.number = 0
        """The number of the newest utterance."""
        self._rate_hz = sound_rate_hz
        self._per_frame = sound_rate_hz // MODEL_FPS
        self._most_s = most_s
        self._now = now
        self._added = 0
        self._taken = 0
        self.clear()

    def clear(self) -> None:
        """Drops all that waits; what is said next begins an utterance."""
        self._sound = SampleQueue()
        self._heard = SampleQueue()
        self._said = deque[_Said]()
        self._ends = deque[_UtteranceEnd]()
        self._converted_hz = 0
        self._converters = tuple[RateConverter, ...]()
        self._open = False
        self._taken = self._added

    @property
    def left_s(self) -> float:
        return self._sound.size / self._rate_hz

    def say(self, samples: NDArray[np.generic], rate_hz: int) -> None:
        """Adds a piece to the utterance that is open, or begins one. Raises as
        `LiveSession.say`.
        """
        piece = _full_scale(samples, rate_hz)
        if self.left_s + piece.size / rate_hz > self._most_s:
            waits = f"{self.left_s:.1f} s of speech wait, and at most {self._most_s:g} s may"
            raise Busy(f"say: {waits} (--buffer-s); say it again when some has been spoken")
        if not piece.size:
            return
        if not self._open:
            self.number += 1
            self._open = True
        if rate_hz != self._converted_hz:
            self._flush(1)
            self._converted_hz = rate_hz
            self._converters = (
                RateConverter(rate_hz, self._rate_hz),
                RateConverter(rate_hz, SPEECH_RATE_HZ),
            )
        self._convert(piece)

    def end(self) -> bool:
        """Ends the utterance that is open; returns whether there is one of which nothing waits any
        more.
        """
        if not self._open:
            return False
        self._open = False
        begun = self._taken
        if self._ends:
            begun = max(begun, self._ends[-1].added)
        added = self._flush(self._per_frame)
        if self._added <= begun:
            return True
        self._ends.append(_UtteranceEnd(self.number, added))
        return False

    def _convert(self, piece: Float32Array | None) -> None:
        """Adds a piece; None for what converters hold."""
        self._extend(*(converter.convert(piece) for converter in self._converters))

    def _extend(self, sound: Float32Array, heard: Float32Array) -> None:
        self._sound.add(sound)
        self._heard.add(heard)
        self._added += sound.size
        self._said.append(_Said(self._added, self._now()))

    def _flush(self, multiple: int) -> int:
        """Adds what converters hold, and silence to a multiple of samples; returns how many samples
        have been added without that silence.
        """
        if self._converters:
            self._convert(None)
        self._converted_hz = 0
        self._converters = ()
        spoken = self._added
        silence = np.zeros(-self._sound.size % multiple, np.float32)
        self._extend(silence, _NO_SAMPLES)
        # Both wait for the same time, which converters round differently.
        heard = round(self._sound.size * SPEECH_RATE_HZ / self._rate_hz)
        exact = self._heard.take(heard)
        self._heard = SampleQueue()
        self._heard.add(exact)
        return spoken

    def ready(self, look_ahead_ms: int) -> tuple[int, bool]:
        """Returns how many frames can be taken, with so much speech after their beginning, and
        whether these are all.
        """
        heard = self._heard.size // FRAME_SAMPLES
        whole = min(heard, self._sound.size // self._per_frame)
        if not self._open:
            return whole, True
        ended = 0
        if self._ends:
            left = max(self._ends[-1].added - self._taken, 0)
            ended = ceil(left / self._per_frame)
        followed = self._heard.size - look_ahead_ms * SPEECH_RATE_HZ // 1000
        return max(ended, min(whole, followed // FRAME_SAMPLES + 1)), False

    def take(self) -> SpokenFrame:
        """Returns the next frame, of those that are `ready`; the last one of an utterance is filled
        with silence.
        """
        end = _UtteranceEnd(self.number, self._added)
        if self._ends:
            end = self._ends[0]
        samples = min(self._per_frame, end.added - self._taken)
        taken = self._taken + samples
        while len(self._said) > 1 and self._said[0].added < taken:
            self._said.popleft()
        self._taken += self._per_frame
        ends = bool(self._ends) and end.added <= self._taken
        if ends:
            self._ends.popleft()
        sound = self._sound.take(self._per_frame)
        heard = self._heard.take(FRAME_SAMPLES)
        return SpokenFrame(end.utterance, sound, heard, samples, self._said[0].time_s, ends)

    def ahead(self, most: int) -> Float32Array:
        """Returns up to `most` samples at 16 kHz that follow, float32 `(n,)`; silence where nothing
        is to come.
        """
        if self._open:
            most = min(most, self._heard.size)
        return self._heard.peek(most)


def _full_scale(samples: NDArray[np.generic], rate_hz: int) -> Float32Array:
    """Returns `samples` as float32 in full scale ±1; raises `InputError` for unusable ones."""
    if not isinstance(rate_hz, int) or not LEAST_RATE_HZ <= rate_hz <= MOST_RATE_HZ:
        raise InputError(
            f"say: {rate_hz} samples per second, supported are {LEAST_RATE_HZ} to {MOST_RATE_HZ}"
        )
    piece = np.asarray(samples)
    if piece.ndim != 1 or piece.dtype not in (np.int16, np.float32):
        raise InputError(
            f"say: {piece.dtype} {piece.shape}; give mono samples (n,), int16 or float32 in [−1, 1]"
        )
    if piece.dtype == np.int16:
        return np.asarray(piece / np.float32(32768), np.float32)
    if not np.isfinite(piece).all():
        raise InputError("say: has samples that are NaN or infinite")
    return piece.astype(np.float32)
