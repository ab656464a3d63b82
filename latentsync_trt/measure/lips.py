"""How well lips follow speech: the gap between them, from FaceMesh, against the voice.

All curves have one value per frame at the model's rate.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measures import LipMeasure, Verdict
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.types import BoolArray, Float32Array, Float64Array

CLOSED_GAP = 0.042
"""Lips closer than this touch. Touching lips measure 0.02 to 0.041; of gaps of a tenth of the
widest, 19 in 20 measure 0.043 or more."""

QUIET_DB = -40.0
"""A frame at least this much softer than the loudest one is silent."""

_NEAR_SPEECH_FRAMES = 3

# Opposite points on the inner edges of the upper and the lower lip, and the outer corners of the
# eyes.
_UPPER_LIP = [82, 312, 81, 311, 80, 310]
_LOWER_LIP = [87, 317, 178, 402, 88, 318]
_EYES = [33, 263]
_POINTS = np.array([*_UPPER_LIP, *_LOWER_LIP, *_EYES])

_SAMPLES_PER_HALF = SPEECH_RATE_HZ // MODEL_FPS // 2
"""Of 20 ms: a frame's loudness is that of the halves before and after its time."""

_BANDS_HZ = ((100, 600), (700, 3500))
"""Below the first formant of an open mouth, and above: opening the jaw raises it, so the upper band
gains on the lower. Loudness alone says little about real mouths, where m and n are loud: r = −0.3
to 0 in three clips of people.
"""
_WINDOW = np.hanning(_SAMPLES_PER_HALF)
_HZ = np.fft.rfftfreq(_SAMPLES_PER_HALF, 1 / SPEECH_RATE_HZ)
_LEAST_POWER = 1e-30

_DRIFT_FRAMES = 2 * MODEL_FPS + 1
"""Slower changes are smiles, poses and distances from the microphone: subtracted."""

ON_TIME_FRAMES = 3
"""Right mouths agree best with their speech between 2 frames before and 1 after it, by person and
recording.
"""
_FARTHEST_FRAMES = 12
_WRONG_TIMES = 60
FOLLOWS = 2.5
_FOLLOWS_LATE = 3.0
"""Of lips on time, and of late ones, among which more delays are tried. See
benchmarks/verdicts.json.
"""
_LEAST_SPOKEN = 3 * MODEL_FPS
"""With less speech, unrelated lips follow it by chance."""
_ENOUGH_FRAMES = 8 * MODEL_FPS
"""With less, lips often follow without being distinct, and unrelated ones agree at one of many
delays.
"""
_RESAMPLINGS = 200


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """A clip over time, float32: `gaps (n,)` between the lips, see `gap_of`; `levels_db (n, 3)` of
    the speech, see `Loudness`.
    """

    gaps: Float32Array
    levels_db: Float32Array

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def silent(self) -> BoolArray:
        """Frames without speech; the mouth may move in the three before and after it."""
        loud = np.pad(self.levels_db[:, 0] > QUIET_DB, _NEAR_SPEECH_FRAMES)
        near = np.lib.stride_tricks.sliding_window_view(loud, 2 * _NEAR_SPEECH_FRAMES + 1)
        return np.asarray(~near.any(axis=1), np.bool_)


def joined(gaps: Float32Array, levels_db: Float32Array) -> Curves:
    """Curves cut to the length of the shortest."""
    count = min(len(gaps), len(levels_db))
    return Curves(gaps[:count], levels_db[:count])


def measured(curves: Curves, person: int | None = None) -> LipMeasure:
    """The verdict on a clip, from the voice alone, and its figures."""
    known = ~np.isnan(curves.gaps)
    frames = int(known.sum())
    spoken = int((known & (curves.levels_db[:, 0] > QUIET_DB)).sum())
    shut = closed_rate(curves.gaps, curves.silent)
    silence = None if math.isnan(shut) else shut
    if spoken < _LEAST_SPOKEN:
        return LipMeasure(person, frames, "cannot tell", shut_in_silence=silence)
    alike, distinct, late_frames = following(curves.gaps, curves.levels_db[:, 1:])
    follows = distinct >= FOLLOWS
    verdict: Verdict = (
        "follows" if follows else "weak" if spoken >= _ENOUGH_FRAMES else "cannot tell"
    )
    late_ms = late_frames * 1000 // MODEL_FPS if follows and late_frames else None
    return LipMeasure(person, frames, verdict, alike, distinct, late_ms, silence)


def gap_of(mesh: Float32Array) -> float:
    """The gap between the lips of `mesh (468, 2 or 3)`, in distances between the outer corners of
    the eyes.
    """
    *lips, left, right = mesh[_POINTS, :2].tolist()
    gaps = map(math.dist, lips[: len(_UPPER_LIP)], lips[len(_UPPER_LIP) :])
    return fmean(gaps) / math.dist(left, right)


def following(gaps: Float32Array, voice_db: Float32Array) -> tuple[float, float, int]:
    """How much of the movement of `gaps (n,)`, NaN without a face, at least 3 s with one, `voice_db
    (n, 2)` explains.

    Returns:
        The correlation in [0, 1] of the gaps with what fits them best of both bands, near the right
            time; by how many
        standard deviations it exceeds that at wrong times, which is chance: lips follow from
            `FOLLOWS` on; the delay
        of the lips in frames, 0 unless it is certain that it exceeds `ON_TIME_FRAMES`.
    """
    match = _Match(gaps, np.maximum(voice_db, np.float32(QUIET_DB)))
    first = _FARTHEST_FRAMES + 2 * ON_TIME_FRAMES
    wrong = np.unique(np.linspace(first, len(gaps) - first, _WRONG_TIMES).astype(int)).tolist()
    chance = np.array([match.best(middle, ON_TIME_FRAMES)[0] for middle in wrong])

    def near(shift: int) -> tuple[float, float, int]:
        found, _ = match.best(shift, ON_TIME_FRAMES)
        return found, (found - float(chance.mean())) / (float(chance.std()) or 1.0), shift

    _, late = match.best(0, _FARTHEST_FRAMES)
    least, most = match.delays(late)
    if (~np.isnan(gaps)).sum() >= _ENOUGH_FRAMES and (
        least > ON_TIME_FRAMES or most < -ON_TIME_FRAMES
    ):
        found = near(late)
        if found[1] >= _FOLLOWS_LATE:
            return found
    return near(0)


class _Match:
    """The movement of the lips, and what explains it best of the voice so many frames before."""

    def __init__(self, gaps: Float32Array, voice_db: Float32Array) -> None:
        self._at = np.flatnonzero(~np.isnan(gaps))
        self._frames = len(gaps)
        opened = _steady(gaps)[self._at]
        self._opened = opened - opened.mean()
        self._bands = np.column_stack([_steady(band) for band in voice_db.T])

    def _heard(self, shift: int) -> Float64Array:
        sound = self._bands[(self._at - shift) % self._frames]
        return np.asarray(sound - sound.mean(axis=0), np.float64)

    def _weights(self, shift: int) -> Float64Array:
        """Of the bands, by least squares; 0 where more of the upper band would mean a smaller
        gap.
        """
        found = np.asarray(
            np.linalg.lstsq(self._heard(shift), self._opened, rcond=None)[0], np.float64
        )
        if found[1] > 0:
            return found
        return np.zeros(2)

    def best(self, middle: int, reach: int) -> tuple[float, int]:
        """The highest correlation of shifts around `middle`, and its shift."""
        size = float(np.linalg.norm(self._opened)) or 1.0
        shifts = range(middle - reach, middle + reach + 1)
        return max(
            (float(np.linalg.norm(self._heard(each) @ self._weights(each))) / size, each)
            for each in shifts
        )

    def delays(self, shift: int) -> tuple[float, float]:
        """The least and the most delay that is likely (95 %), with the weights of `shift`:
        bootstrap over seconds.
        """
        shifts = np.arange(-_FARTHEST_FRAMES, _FARTHEST_FRAMES + 1)
        weights = self._weights(shift)
        alike = np.column_stack(
            [self._opened * (self._heard(each) @ weights) for each in shifts.tolist()]
        )
        seconds, starts = np.unique(self._at // MODEL_FPS, return_index=True)
        sums = np.add.reduceat(alike, starts)
        count = len(seconds)
        draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _RESAMPLINGS)
        least, most = np.quantile(shifts[(draws @ sums).argmax(axis=1)], (0.025, 0.975)).tolist()
        return least, most


def closed_rate(gaps: Float32Array, silent: BoolArray) -> float:
    """Share of the `silent (n,)` frames with a face in which the lips touch; NaN without any."""
    counted = gaps[silent & ~np.isnan(gaps)]
    if counted.size:
        return float((counted < CLOSED_GAP).mean())
    return math.nan


class Loudness:
    """The loudness of a recording, measured while its blocks pass."""

    def __init__(self) -> None:
        self._powers: list[Float64Array] = []

    def passing(self, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """The same blocks: consecutive float32 `(samples,)`, mono at `SPEECH_RATE_HZ`; measured
        when all passed.
        """
        powers = list[Float64Array]()
        rest = np.zeros(0, np.float32)
        for block in blocks:
            yield block
            samples = np.concatenate([rest, block])
            whole, rest = np.split(samples, [len(samples) - len(samples) % _SAMPLES_PER_HALF])
            powers.append(_powers(whole))
        powers.append(_powers(np.pad(rest, (0, -len(rest) % _SAMPLES_PER_HALF))))
        self._powers = powers

    def levels_db(self) -> Float32Array:
        """The loudness of the 40 ms around the time of each frame, of all and in both `_BANDS_HZ`:
        float32 `(n, 3)`, each in dB below its loudest, at least −100; of no frame where no
        recording passed.
        """
        halves = np.concatenate([np.zeros((0, 3)), *self._powers])
        after = halves[::2]
        before = np.concatenate([halves[:1], halves[1::2]])
        means = (after + before[: len(after)]) / 2
        peaks = np.maximum(means.max(axis=0, initial=0.0), _LEAST_POWER)
        return np.asarray(10 * np.log10(np.maximum(means / peaks, 1e-10)), np.float32)


def _powers(samples: Float32Array) -> Float64Array:
    """Of each 20 ms: the mean power, and the power in both bands, `(n, 3)`."""
    halves = samples.reshape(-1, _SAMPLES_PER_HALF)
    spectra = np.square(np.abs(np.fft.rfft(halves * _WINDOW)))
    bands = [spectra[:, (low <= _HZ) & (high > _HZ)].sum(axis=1) for low, high in _BANDS_HZ]
    return np.stack([np.square(halves).mean(axis=1, dtype=np.float64), *bands], axis=1)


def _steady(curve: Float32Array) -> Float64Array:
    """`curve (n,)` less its running mean; NaN where it is NaN."""
    known = ~np.isnan(curve)
    total, count = (
        np.convolve(
            np.pad(values.astype(np.float64), _DRIFT_FRAMES // 2), np.ones(_DRIFT_FRAMES), "valid"
        )
        for values in (np.where(known, curve, 0), known)
    )
    return np.asarray(curve - total / np.maximum(count, 1), np.float64)
