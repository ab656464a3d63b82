"""How well lips follow speech: the gap between them, from FaceMesh, against the voice.

All curves have one value per frame at the model's rate.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.measures import LipMeasure, Verdict
from latentsync_trt.media.audio import SPEECH_RATE_HZ
from latentsync_trt.types import BoolArray, Float32Array, Float64Array

CLOSED_GAP = 0.042
"""Lips closer than this touch. Touching lips measure 0.02 to 0.041; of gaps of a tenth of the
widest, 19 in 20 measure 0.043 or more."""

SILENCE_DB = -40.0
"""A frame at least this much softer than the loudest one is silent."""

_NEAR_SPEECH_FRAMES = 3
"""So many frames before and after speech, the mouth may move."""

# Opposite points on the inner edges of the upper and the lower lip, and the outer corners of the
# eyes, of FaceMesh.
_UPPER_EDGE = [82, 312, 81, 311, 80, 310]
_LOWER_EDGE = [87, 317, 178, 402, 88, 318]
_EYES = [33, 263]
_GAP_POINTS = np.array([*_UPPER_EDGE, *_LOWER_EDGE, *_EYES])

_SAMPLES_PER_HALF = SPEECH_RATE_HZ // MODEL_FPS // 2
"""Samples in 20 ms: a frame's loudness is that of the halves before and after its time."""

_BANDS_HZ = ((100, 600), (700, 3500))
"""Below the first formant of an open mouth, and above: opening the jaw raises it, so the upper band
gains on the lower. Loudness alone says little about real mouths, where m and n are loud: r = −0.3
to 0 in three clips of people.
"""
_TAPER = np.hanning(_SAMPLES_PER_HALF)
_HZ = np.fft.rfftfreq(_SAMPLES_PER_HALF, 1 / SPEECH_RATE_HZ)
_NO_POWER = 1e-30
"""Keeps logarithms of silent recordings finite."""

_DRIFT_FRAMES = 2 * MODEL_FPS + 1
"""Slower changes are smiles, poses and distances from the microphone: subtracted."""

ON_TIME_FRAMES = 3
"""Right mouths agree best with their speech between 2 frames before and 1 after it, by person and
recording.
"""
_FARTHEST_FRAMES = 12
"""The largest delay that is tried."""
_WRONG_TIMES = 60
"""At how many wrong times the agreement that chance brings is measured."""
FOLLOWS = 2.5
"""Standard deviations above chance from which on lips on time follow. See
benchmarks/verdicts.json.
"""
_FOLLOWS_LATE = 3.0
"""The same for late lips, among which more delays are tried."""
_LEAST_SPOKEN = 3 * MODEL_FPS
"""Frames of speech with less than which unrelated lips follow it by chance."""
_ENOUGH_FRAMES = 8 * MODEL_FPS
"""Frames with less than which lips often follow without being distinct, and unrelated ones agree at
one of many delays.
"""
_RESAMPLINGS = 200
_LIKELY = (0.025, 0.975)
"""Quantiles between which a delay lies with 95 %."""


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """A clip over time."""

    gaps: Float32Array
    """Between the lips, `(n,)`, see `gap_of`; NaN without a face."""
    levels_db: Float32Array
    """How loud the speech is, `(n, 3)`, see `Loudness`."""

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def silent(self) -> BoolArray:
        """Frames in which the mouth has no reason to move."""
        return ~near_speech(self.levels_db)


def near_speech(levels_db: Float32Array) -> BoolArray:
    """Returns in which frames the mouth may move, `(n,)`; `levels_db (n, 3)`: see `Loudness`."""
    loud = np.pad(levels_db[:, 0] > SILENCE_DB, _NEAR_SPEECH_FRAMES)
    near = sliding_window_view(loud, 2 * _NEAR_SPEECH_FRAMES + 1)
    return np.asarray(near.any(axis=1), np.bool_)


def measure_lips(curves: Curves, person: int | None = None) -> LipMeasure:
    """Returns the verdict on a clip, from the voice alone, and its figures."""
    has_face = ~np.isnan(curves.gaps)
    frames = int(has_face.sum())
    spoken = int((has_face & (curves.levels_db[:, 0] > SILENCE_DB)).sum())
    shut = closed_rate(curves.gaps, curves.silent)
    silence = None if math.isnan(shut) else shut
    if spoken < _LEAST_SPOKEN:
        return LipMeasure(person, frames, "cannot tell", shut_in_silence=silence)
    following = measure_following(curves.gaps, curves.levels_db[:, 1:])
    verdict: Verdict = "cannot tell"
    late_ms: int | None = None
    if following.distinct >= FOLLOWS:
        verdict = "follows"
        late_ms = following.late_frames * 1000 // MODEL_FPS or None
    elif spoken >= _ENOUGH_FRAMES:
        verdict = "weak"
    agreement = following.agreement
    return LipMeasure(person, frames, verdict, agreement, following.distinct, late_ms, silence)


def gap_of(mesh: Float32Array) -> float:
    """Returns the gap between the lips of a `mesh (468, 2 or 3)`, in distances between the outer
    corners of the eyes.
    """
    *lips, left_eye, right_eye = mesh[_GAP_POINTS, :2].tolist()
    count = len(_UPPER_EDGE)
    upper = lips[:count]
    lower = lips[count:]
    return fmean(map(math.dist, upper, lower)) / math.dist(left_eye, right_eye)


@dataclass(frozen=True, slots=True)
class Following:
    """How much of the movement of lips the voice explains."""

    agreement: float
    """Correlation, in [0, 1], of the gaps with what fits them best of both bands of the voice, near
    the right time.
    """
    distinct: float
    """By how many standard deviations that exceeds the agreement at wrong times, which is chance:
    lips follow from `FOLLOWS` on.
    """
    late_frames: int
    """Delay of the lips; 0 unless it is certain that it exceeds `ON_TIME_FRAMES`."""


def measure_following(gaps: Float32Array, voice_db: Float32Array) -> Following:
    """Returns how much of the movement of `gaps (n,)`, with at least 3 s of a face, the voice
    explains; `voice_db (n, 2)` are the levels of both bands.
    """
    match = _Match(gaps, np.maximum(voice_db, np.float32(SILENCE_DB)))
    late = match.best(0, _FARTHEST_FRAMES).shift
    has_enough = (~np.isnan(gaps)).sum() >= _ENOUGH_FRAMES
    if has_enough and match.is_surely_off_time(late):
        following = match.following(late)
        if following.distinct >= _FOLLOWS_LATE:
            return following
    return match.following(0)


@dataclass(frozen=True, slots=True, order=True)
class _Fit:
    """How well lips agree with the voice so many frames before."""

    agreement: float
    shift: int


class _Match:
    """The movement of the lips, and what explains it best of the voice at other times."""

    def __init__(self, gaps: Float32Array, voice_db: Float32Array) -> None:
        self._frames = len(gaps)
        self._with_face = np.flatnonzero(~np.isnan(gaps))
        movement = _without_drift(gaps)[self._with_face]
        self._movement = movement - movement.mean()
        self._bands = np.column_stack([_without_drift(band) for band in voice_db.T])
        first = _FARTHEST_FRAMES + 2 * ON_TIME_FRAMES
        times = np.linspace(first, len(gaps) - first, _WRONG_TIMES).astype(int)
        shifts = np.unique(times).tolist()
        self._chance = np.array([self.best(each, ON_TIME_FRAMES).agreement for each in shifts])

    def _voice(self, shift: int) -> Float64Array:
        """Returns the bands `(m, 2)` of the voice `shift` frames before each frame with a face."""
        sound = self._bands[(self._with_face - shift) % self._frames]
        return sound - sound.mean(axis=0)

    def _weights(self, shift: int) -> Float64Array:
        """Returns the weights of both bands, by least squares; 0 where more of the upper band would
        mean a smaller gap.
        """
        weights = np.linalg.lstsq(self._voice(shift), self._movement, rcond=None)[0]
        return weights if weights[1] > 0 else np.zeros(2)

    def best(self, middle: int, reach: int) -> _Fit:
        """Returns the shift around `middle` with the highest correlation."""
        size = float(np.linalg.norm(self._movement)) or 1.0
        fits = list[_Fit]()
        for shift in range(middle - reach, middle + reach + 1):
            explained = self._voice(shift) @ self._weights(shift)
            agreement = float(np.linalg.norm(explained)) / size
            fits.append(_Fit(agreement, shift))
        return max(fits)

    def following(self, shift: int) -> Following:
        """Returns how lips follow that are late by about `shift` frames."""
        agreement = self.best(shift, ON_TIME_FRAMES).agreement
        usual = float(self._chance.mean())
        deviation = float(self._chance.std()) or 1.0
        return Following(agreement, (agreement - usual) / deviation, shift)

    def is_surely_off_time(self, shift: int) -> bool:
        """Returns whether the delay exceeds `ON_TIME_FRAMES` with the weights of `shift`, whichever
        seconds of the clip count (bootstrap).
        """
        shifts = np.arange(-_FARTHEST_FRAMES, _FARTHEST_FRAMES + 1)
        weights = self._weights(shift)
        products = []
        for each in shifts.tolist():
            explained = self._voice(each) @ weights
            products.append(self._movement * explained)
        seconds, starts = np.unique(self._with_face // MODEL_FPS, return_index=True)
        sums = np.add.reduceat(np.column_stack(products), starts)
        count = len(seconds)
        random = np.random.default_rng(0)
        draws = random.multinomial(count, np.full(count, 1 / count), _RESAMPLINGS)
        best = shifts[(draws @ sums).argmax(axis=1)]
        least, most = np.quantile(best, _LIKELY).tolist()
        return bool(least > ON_TIME_FRAMES or most < -ON_TIME_FRAMES)


def closed_rate(gaps: Float32Array, silent: BoolArray) -> float:
    """Returns the share of the `silent (n,)` frames with a face in which the lips touch; NaN
    without any.
    """
    counted = gaps[silent & ~np.isnan(gaps)]
    if not counted.size:
        return math.nan
    return float((counted < CLOSED_GAP).mean())


class Loudness:
    """The loudness of a recording, measured while its blocks pass."""

    def __init__(self) -> None:
        self._powers = np.zeros((0, 3))

    def passing(self, blocks: Iterable[Float32Array]) -> Iterator[Float32Array]:
        """Yields the same blocks: consecutive float32 `(samples,)`, mono at `SPEECH_RATE_HZ`;
        measured when all passed.
        """
        powers = list[Float64Array]()
        rest = np.zeros(0, np.float32)
        for block in blocks:
            yield block
            samples = np.concatenate([rest, block])
            end = len(samples) - len(samples) % _SAMPLES_PER_HALF
            rest = samples[end:]
            powers.append(_powers_per_half(samples[:end]))
        last = np.pad(rest, (0, -len(rest) % _SAMPLES_PER_HALF))
        powers.append(_powers_per_half(last))
        self._powers = np.concatenate(powers)

    def levels_db(self) -> Float32Array:
        """Returns the loudness of the 40 ms around the time of each frame, of all and in both
        `_BANDS_HZ`: float32 `(n, 3)`, each in dB below its loudest, at least −100; of no frame
        where no recording passed.
        """
        after = self._powers[::2]
        before = np.concatenate([self._powers[:1], self._powers[1::2]])
        means = (after + before[: len(after)]) / 2
        peaks = np.maximum(means.max(axis=0, initial=0.0), _NO_POWER)
        shares = np.maximum(means / peaks, 1e-10)
        return np.asarray(10 * np.log10(shares), np.float32)


def loudness_of(blocks: Iterable[Float32Array]) -> Float32Array:
    """Returns the loudness of a whole recording, as `Loudness.levels_db`, of blocks as
    `Loudness.passing` takes.
    """
    loudness = Loudness()
    deque(loudness.passing(blocks), maxlen=0)
    return loudness.levels_db()


def _powers_per_half(samples: Float32Array) -> Float64Array:
    """Returns of each 20 ms the mean power, and the power in both bands, `(n, 3)`."""
    halves = samples.reshape(-1, _SAMPLES_PER_HALF)
    spectra = np.square(np.abs(np.fft.rfft(halves * _TAPER)))
    powers = [np.square(halves).mean(axis=1, dtype=np.float64)]
    for low_hz, high_hz in _BANDS_HZ:
        is_in_band = (low_hz <= _HZ) & (high_hz > _HZ)
        powers.append(spectra[:, is_in_band].sum(axis=1))
    return np.stack(powers, axis=1)


def _without_drift(curve: Float32Array) -> Float64Array:
    """Returns `curve (n,)` less its running mean; NaN where it is NaN."""
    is_number = ~np.isnan(curve)
    total = _running_sum(np.where(is_number, curve, 0))
    count = _running_sum(is_number)
    return curve - total / np.maximum(count, 1)


def _running_sum(values: Float32Array | BoolArray) -> Float64Array:
    padded = np.pad(values.astype(np.float64), _DRIFT_FRAMES // 2)
    return np.convolve(padded, np.ones(_DRIFT_FRAMES), "valid")
