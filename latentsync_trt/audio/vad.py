"""When somebody speaks: voice activity by Silero's network on the CPU; what is between can be
silenced.

The network gets every recording equally loud, and soft parts louder: it misses speech 30 dB below
the usual level; noise, hum and music are no speech to it at any level. Silencing the samples shuts
the mouth as well as replacing the features does, measured on speech over noise and music, and the
audio encoder needs to know nothing of it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.types import (
    BoolArray,
    Float32Array,
    Float64Array,
    SpanSeconds,
    runs_of_true,
    within,
)

NETWORK = Path(__file__).resolve().parents[1] / "assets" / "voice" / "silero_vad.onnx"

STEP = 512
"""Samples per probability: 32 ms."""

STEP_S = STEP / SAMPLE_RATE_HZ

_CONTEXT = 64
"""Samples before a step that the network sees, too."""

_STATE_SIZE = 128
"""Values in each of the two states that the network hands from step to step."""

_STEPS_AT_ONCE = 512
"""Steps of one run of the network: 16 s, 1 MB of samples."""

ENTER = 0.5
LEAVE = 0.35
"""Speech begins where its probability reaches `ENTER`, and lasts until it falls below `LEAVE`: the
network's authors' values. In a pause of noise it is below 0.1, within words it dips to 0.4.
"""

LEAST_SPEECH_S = 0.1
"""The shortest speech: a click or a cough is shorter, and words such as "a" or "no" last longer."""

LEAST_PAUSE_S = 0.25
"""The shortest pause: in shorter ones lips do not rest, but form the next sound."""

BEFORE_S = 0.05
AFTER_S = 0.05
"""What is added to speech at both ends: lips open before the first sound, and the network misses
soft consonants.
"""

# Levels are standard deviations.
_USUAL = 0.12
"""The level of speech in loud recordings."""

_FAINTEST = 6e-5
"""The level below which 16 bits are too coarse for speech."""

_SOFT = 0.02
"""The least level that soft parts, such as a distant voice, are raised to."""

_LOUD = 0.36
"""The highest level that single steps, such as of a cough, are raised to."""

_PART = 16
"""Steps of a part, half a second, which has one gain."""

_PARTS_AROUND = 9
"""Parts that decide about the gain of the one in their middle."""

_RANK = 3
"""The gain of a part is for the third loudest around it, as a voice lasts longer than a cough."""

_RECENT = 125
"""Steps, 4 s, whose level decides the gain of live ones."""

SPEECH_FADE_S = 0.03
"""How long sound fades in before speech and out after it: an abrupt end is the sound of a stop (p,
t).
"""


@dataclass(frozen=True, slots=True)
class Speech:
    """When somebody speaks in a recording."""

    spans_s: tuple[SpanSeconds, ...]
    """Starts and ends of speech in seconds, ascending, apart, with margins."""
    loud_s: tuple[float, ...] = ()
    """When parts of half a second begin that are as loud as the speech, but none."""
    silent: bool = False
    """Whether there is no sound at all."""

    @property
    def notice(self) -> str | None:
        """A sentence about sound that is silenced; None where it is short."""
        cure = "the mouth stays shut; with --silence model it follows any sound"
        if self.silent:
            return (
                "its main audio track is silent, so the "
                "mouth stays shut; give a recording with sound"
            )
        if not self.spans_s:
            return f"no speech found, so {cure}"
        if len(self.loud_s) < 2:
            return None
        where = (
            f"{len(self.loud_s) * _PART * STEP_S:.1f} s as "
            f"loud as the speech, from {self.loud_s[0]:.1f} s on"
        )
        return f"{where}, are not taken for speech: there {cure}"

    def gated(self, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """Yields the recording's blocks `(n,)` at 16 kHz, digitally silent where no one speaks,
        with soft borders.
        """
        times_s = [-1.0]  # before the recording
        gains = [0.0]
        for start_s, end_s in self.spans_s:
            times_s += [start_s - SPEECH_FADE_S, start_s, end_s, end_s + SPEECH_FADE_S]
            gains += [0.0, 1.0, 1.0, 0.0]
        first = 0
        for block in blocks:
            block_s = (first + np.arange(len(block))) / SAMPLE_RATE_HZ
            yield block * np.interp(block_s, times_s, gains).astype(np.float32)
            first += len(block)


def find_speech(open_blocks: Callable[[], Iterable[Float32Array]]) -> Speech:
    """Finds when somebody speaks in a recording, with 1 MB of memory an hour; raises
    `InferenceError`.

    Args:
        open_blocks: opens the recording, twice: float32 `(samples,)` of any lengths, finite: mono,
            16 kHz, full scale ±1.
    """
    levels = np.zeros(0)
    for steps in steps_of(open_blocks()):
        levels = np.append(levels, steps.std(axis=1, dtype=np.float64))
    parts = _levels_of_parts(levels)
    gains = np.repeat(_gains(parts), _PART)[: len(levels)]
    spans_s = speech_spans(_chances(open_blocks(), gains))
    times_s = np.arange(len(levels), dtype=np.float64) * STEP_S
    spoken = within(times_s, spans_s).astype(np.float64)
    is_spoken = _levels_of_parts(spoken) > 0
    is_loud = ~is_spoken
    if is_spoken.any():
        is_loud &= parts > np.median(parts[is_spoken]) / 2
    loud_s = np.flatnonzero(is_loud) * _PART * STEP_S
    return Speech(spans_s, tuple(loud_s.tolist()), silent=not levels.any())


def _levels_of_parts(levels: Float64Array) -> Float64Array:
    """Returns the levels of parts, from those of steps."""
    powers = np.square(np.pad(levels, (0, -len(levels) % _PART)))
    return np.sqrt(powers.reshape(-1, _PART).mean(axis=1))


def _gains(parts: Float64Array) -> Float64Array:
    """Returns the gains for parts of a recording, from the levels of all, `(n,)`."""
    padded = np.pad(parts, (_PARTS_AROUND // 2, _PARTS_AROUND))
    around = sliding_window_view(padded, _PARTS_AROUND)[: len(parts)]
    ranked = np.sort(around, axis=1)[:, -_RANK]
    local = ranked.clip(_FAINTEST)
    # A single word, like a cough, counts with a third of its level.
    loudest = max(local.max(initial=_FAINTEST), parts.max(initial=0) / 3)
    return np.maximum(_USUAL / loudest, _SOFT / local)


def _chances(blocks: Iterable[Float32Array], gains: Float64Array) -> Float32Array:
    """Returns the probability of speech in each step of a recording."""
    chances = np.zeros(0, np.float32)
    with closing(VoiceActivity()) as network:
        for steps in steps_of(blocks):
            first = len(chances)
            newest = network.chances(steps, gains[first : first + len(steps)])
            chances = np.append(chances, newest)
    return chances


class VoiceActivity:
    """The network, which remembers what it heard before; it is open until `close`."""

    def __init__(self) -> None:
        self._session = Session(NETWORK, SessionSettings(intra_op_threads=1))
        self.close = self._session.close
        self._hidden = np.zeros((1, 1, _STATE_SIZE), np.float32)
        self._cell = np.zeros((1, 1, _STATE_SIZE), np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)
        self._recent = deque([_SOFT], maxlen=_RECENT)

    def chances(self, steps: Float32Array, gains: Float64Array | None = None) -> Float32Array:
        """Returns the probability of speech in each of the next steps, `(n, STEP)` → `(n,)`.

        Args:
            gains: of each step, `(n,)`; None for those by which what is soft in the last seconds
                gets louder.

        Raises:
            InferenceError: the network failed.
        """
        levels = steps.std(axis=1, dtype=np.float64).clip(_FAINTEST)
        if gains is None:
            gains = np.array([self._live_gain(level) for level in levels.tolist()])
        gains = np.minimum(gains, _LOUD / levels)
        louder = steps * gains[:, None]
        steps = louder.clip(-1, 1).astype(np.float32)
        ends = np.vstack([self._context, steps[:, -_CONTEXT:]])
        self._context = ends[-1].copy()
        with_context = np.hstack([ends[:-1], steps])
        inputs = {"input": with_context, "h": self._hidden, "c": self._cell}
        chances, self._hidden, self._cell = self._session.run(inputs)
        return chances

    def _live_gain(self, level: float) -> float:
        self._recent.append(level)
        return max(1.0, _SOFT / float(np.quantile(self._recent, 0.8)))


def steps_of(blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
    """Yields what is in blocks as steps `(n, STEP)`, the last one filled with silence."""
    held = np.zeros(0, np.float32)
    wanted = STEP * _STEPS_AT_ONCE
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) >= wanted:
            yield held[:wanted].reshape(-1, STEP)
            held = held[wanted:]
    if len(held):
        yield np.pad(held, (0, -len(held) % STEP)).reshape(-1, STEP)


def speech_spans(chances: Float32Array) -> tuple[SpanSeconds, ...]:
    """Returns spans of speech with their margins, in seconds, from its probability in each step
    `(n,)`.
    """
    spans: list[SpanSeconds] = []
    for start, end in runs_of_true(_is_speech(chances)):
        start_s = start * STEP_S
        if spans and start_s - spans[-1][1] < LEAST_PAUSE_S:
            start_s, _ = spans.pop()
        spans.append((start_s, end * STEP_S))
    with_margins = []
    for start_s, end_s in spans:
        if end_s - start_s >= LEAST_SPEECH_S:
            with_margins.append((start_s - BEFORE_S, end_s + AFTER_S))
    return tuple(with_margins)


def _is_speech(chances: Float32Array) -> BoolArray:
    """Returns which steps are speech: between the two thresholds, a step is what the one before
    is.
    """
    certain = np.flatnonzero((chances >= ENTER) | (chances < LEAVE))
    latest = np.searchsorted(certain, np.arange(len(chances)), side="right") - 1
    # Index −1, before the first certain step, is no speech.
    states = np.append(chances[certain] >= ENTER, False)
    return states[latest]
