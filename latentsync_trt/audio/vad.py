"""When somebody speaks, found by Silero's network for voice activity on the CPU; what is between
can be silenced.

The network gets every recording equally loud, and soft parts louder: it misses speech 30 dB below
the usual level, and takes noise, hum and music for none at any. Silencing the samples shuts the
mouth as well as replacing the features does, measured on speech over noise and music, and the audio
encoder needs to know nothing of it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from latentsync_trt.audio.mel import SAMPLE_RATE_HZ
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.types import Float32Array, Float64Array, runs_of_true, within

NETWORK = Path(__file__).resolve().parents[1] / "assets" / "voice" / "silero_vad.onnx"

STEP = 512
"""Samples per probability: 32 ms."""

STEP_S = STEP / SAMPLE_RATE_HZ

_CONTEXT = 64
_STATE = 128
_STEPS_AT_ONCE = 512
"""16 s per run: 1 MB of samples."""

ENTER = 0.5
LEAVE = 0.35
"""Speech begins where its probability reaches the first, and lasts until it falls below the second:
the network's authors' values. In a pause of noise it is below 0.1, within words it dips to 0.4."""

LEAST_SPEECH_S = 0.1
"""Shorter speech is a click or a cough; the shortest words, as "a" or "no", last longer."""

LEAST_PAUSE_S = 0.25
"""Shorter pauses are part of the speech: in them, lips do not rest, but form the next sound."""

BEFORE_S = 0.05
AFTER_S = 0.05
"""Added to speech at both ends: lips open before the first sound, and the network misses soft
consonants.
"""

# Standard deviations: of speech in loud recordings, and where 16 bits are too coarse for it; what
# soft parts, as a distant voice, become at least, and single steps, as of a cough, at most.
_USUAL = 0.12
_FAINTEST = 6e-5
_SOFT = 0.02
_LOUD = 0.36
_PART = 16
_AROUND = 9
_RANK = 3
"""Half a second of steps has the gain for the third loudest of nine around it: a voice lasts longer
than a cough.
"""
_RECENT = 125
"""Steps, 4 s, whose level decides the gain of live ones."""

FADE_S = 0.03
"""How long sound fades in before speech and out after it: an abrupt end is the sound of a stop (p,
t).
"""


@dataclass(frozen=True, slots=True)
class Speech:
    """When somebody speaks: `(start, end)` in seconds of the recording, ascending, apart, with
    margins.

    `loud_s`: when parts of half a second begin that are as loud, but no speech. `silent`: there is
    no sound at all.
    """

    spans_s: tuple[tuple[float, float], ...]
    loud_s: tuple[float, ...] = ()
    silent: bool = False

    @property
    def notice(self) -> str | None:
        """What to say about sound that is silenced, but for a short one."""
        cure = "the mouth stays shut; with --silence model it follows any sound"
        if self.silent:
            return (
                "its first audio track is silent, so the "
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
        """The recording's blocks `(n,)` at 16 kHz, digitally silent where no one speaks, with soft
        borders.
        """
        fades = [
            (start_s - FADE_S, start_s, end_s, end_s + FADE_S) for start_s, end_s in self.spans_s
        ]
        # from before the recording on; after the last one, as there
        points = np.array([-1.0, *chain(*fades)])
        gains = np.array([0.0, *[0.0, 1.0, 1.0, 0.0] * len(fades)])
        at = 0
        for block in blocks:
            times_s = (at + np.arange(len(block))) / SAMPLE_RATE_HZ
            yield block * np.interp(times_s, points, gains).astype(np.float32)
            at += len(block)


def find_speech(open_blocks: Callable[[], Iterable[Float32Array]]) -> Speech:
    """When somebody speaks in a recording, for 1 MB of memory an hour; raises `InferenceError`.

    `open_blocks`: opens it, twice: float32 `(samples,)` of any lengths, finite: mono, 16 kHz, full
    scale ±1.
    """
    none = np.zeros(0, np.float32)
    levels = np.concatenate(
        [none, *(steps.std(axis=1, dtype=np.float64) for steps in steps_of(open_blocks()))]
    )
    parts = _in_parts(levels)
    gains = np.repeat(_gains(parts), _PART)[: len(levels)]
    divided = np.split(gains, range(_STEPS_AT_ONCE, len(levels), _STEPS_AT_ONCE))
    with closing(VoiceActivity()) as network:
        spans_s = spans_of(
            np.concatenate([none, *map(network.chances, steps_of(open_blocks()), divided)])
        )
    spoken = (
        _in_parts(
            within(np.arange(len(levels), dtype=np.float64) * STEP_S, spans_s).astype(np.float64)
        )
        > 0
    )
    if spoken.any():
        loud = ~spoken & (parts > np.median(parts[spoken]) / 2)
    else:
        loud = ~spoken
    return Speech(
        spans_s, tuple((np.flatnonzero(loud) * _PART * STEP_S).tolist()), silent=not levels.any()
    )


def _in_parts(levels: Float64Array) -> Float64Array:
    """Standard deviations of parts, from those of steps."""
    powers = np.square(np.pad(levels, (0, -len(levels) % _PART)))
    return np.sqrt(powers.reshape(-1, _PART).mean(axis=1))


def _gains(parts: Float64Array) -> Float64Array:
    """The gains for parts of a recording, from the standard deviations of all, `(n,)`."""
    around = np.lib.stride_tricks.sliding_window_view(
        np.pad(parts, (_AROUND // 2, _AROUND)), _AROUND
    )[: len(parts)]
    local = np.partition(around, -_RANK, axis=1)[:, -_RANK].clip(_FAINTEST)
    # of a single word, as of a cough, a third
    loudest = max(local.max(initial=_FAINTEST), parts.max(initial=0) / 3)
    return np.maximum(_USUAL / loudest, _SOFT / local)


class VoiceActivity:
    """The network, which remembers what it heard before; open until `close`."""

    def __init__(self) -> None:
        self._session = Session(NETWORK, SessionSettings(intra_op_threads=1))
        self.close = self._session.close
        self._hidden = self._cell = np.zeros((1, 1, _STATE), np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)
        self._recent = deque([_SOFT], maxlen=_RECENT)

    def chances(self, steps: Float32Array, gains: Float64Array | None = None) -> Float32Array:
        """The probability of speech in each of the next steps, `(n, STEP)` → `(n,)`; raises
        `InferenceError`.

        `gains (n,)`: of each; None: so that what is soft in the last seconds is louder.
        """
        levels = steps.std(axis=1, dtype=np.float64).clip(_FAINTEST)
        if gains is None:
            gains = np.array([self._live_gain(level) for level in levels.tolist()])
        else:
            gains = gains
        steps = (steps * np.minimum(gains, _LOUD / levels)[:, None]).clip(-1, 1).astype(np.float32)
        before = np.concatenate([self._context[None], steps[:-1, -_CONTEXT:]])
        self._context = steps[-1, -_CONTEXT:].copy()
        given = {"input": np.hstack([before, steps]), "h": self._hidden, "c": self._cell}
        found, self._hidden, self._cell = self._session.run(given)
        return np.asarray(found, np.float32)

    def _live_gain(self, level: float) -> float:
        self._recent.append(level)
        return max(1.0, _SOFT / float(np.quantile(self._recent, 0.8)))


def steps_of(blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
    """Regroups blocks to `(n, STEP)`, the last step filled with silence."""
    held = np.zeros(0, np.float32)
    wanted = STEP * _STEPS_AT_ONCE
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) >= wanted:
            yield held[:wanted].reshape(-1, STEP)
            held = held[wanted:]
    if len(held):
        yield np.pad(held, (0, -len(held) % STEP)).reshape(-1, STEP)


def spans_of(chances: Float32Array) -> tuple[tuple[float, float], ...]:
    """Spans of speech with their margins, from the probability in each step `(n,)`."""
    certain = np.flatnonzero((chances >= ENTER) | (chances < LEAVE))
    latest = np.searchsorted(certain, np.arange(len(chances)), side="right") - 1
    # before the first certain step: no speech
    known = np.concatenate([chances[certain] >= ENTER, [False]])
    spans: list[tuple[float, float]] = []
    for start, end in runs_of_true(known[latest]):
        start_s = start * STEP_S
        end_s = end * STEP_S
        if spans and start_s - spans[-1][1] < LEAST_PAUSE_S:
            spans[-1] = spans[-1][0], end_s
        else:
            spans.append((start_s, end_s))
    return tuple(
        (start_s - BEFORE_S, end_s + AFTER_S)
        for start_s, end_s in spans
        if end_s - start_s >= LEAST_SPEECH_S
    )
