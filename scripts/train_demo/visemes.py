"""From phonemes to mouth shapes at 25 frames a second, with lips closed for m, b, p, and the upper
teeth on the lower lip for f, v.

The shape at a time is a weighted mean over neighboring phonemes, with weights that decay with
distance (after Cohen and Massaro's model of co-articulation). Closures are not blended: they
multiply the opening by zero, with a ramp around.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import BoolArray, Float32Array, Float64Array

FINE_HZ = 200  # rate at which phonemes are blended, before sampling at the frame rate
_REACH_S = 0.04
_SMOOTH_S = 0.018
_SMOOTH_REACH = 3
"""The smoothing ends at so many standard deviations."""
_SHORTEST_PAUSE_S = 0.06
# the mouth closes after the last sound, and opens before the first, within this time
_PAUSE_MARGIN_S = 0.09
_RAMP_S = 0.055  # lips open and close over this time
_SHORTEST_CLOSURE_S = 0.05  # longer than a frame, so that at least one frame shows every closure
_RELEASE_S = 0.012
# espeak-ng times p at its burst; the lips are together in the silence before
_VOICELESS_HOLD_S = 0.05


@dataclass(frozen=True, slots=True)
class Phoneme:
    """An IPA symbol ("" = a pause) with its start and end in seconds from the start of the
    utterance.
    """

    symbol: str
    start_s: float
    end_s: float


Shape = tuple[float, float, float, float, float, float]
"""The mouth of a sound: opening in [0, 1], width in [−1, 1], rounding, tuck and tongue in [0, 1] as
in `MouthTrack`; and its weight.
"""

_SILENCE = (0.0, -0.15, 0.0, 0.0, 0.0, 1.5)
_GROUPS: tuple[tuple[str, Shape], ...] = (
    ("aɑ", (1.0, 0.2, 0.0, 0.0, 0.0, 1.1)),
    ("æ", (0.92, 0.35, 0.0, 0.0, 0.0, 1.0)),
    ("ɐʌ", (0.75, 0.1, 0.0, 0.0, 0.0, 0.9)),
    ("ɛ", (0.6, 0.4, 0.0, 0.0, 0.0, 0.9)),
    ("e", (0.45, 0.55, 0.0, 0.0, 0.0, 0.9)),
    ("i", (0.25, 0.85, 0.0, 0.0, 0.0, 1.0)),
    ("ɪᵻɨɯ", (0.3, 0.5, 0.0, 0.0, 0.0, 0.8)),
    ("əɚ", (0.35, 0.0, 0.1, 0.0, 0.0, 0.5)),
    ("ɜɝɤ", (0.4, -0.2, 0.4, 0.0, 0.0, 0.8)),
    ("ɔɒ", (0.75, -0.55, 0.7, 0.0, 0.0, 1.0)),
    ("oø", (0.5, -0.8, 0.95, 0.0, 0.0, 1.0)),
    ("œ", (0.5, -0.5, 0.7, 0.0, 0.0, 1.0)),
    ("uyʉɵ", (0.22, -1.0, 1.0, 0.0, 0.0, 1.1)),
    ("ʊʏ", (0.28, -0.7, 0.8, 0.0, 0.0, 0.9)),
    ("w", (0.12, -1.0, 1.0, 0.0, 0.0, 1.1)),
    ("fvʋβɱ", (0.07, 0.05, 0.0, 1.0, 0.0, 1.5)),
    ("sz", (0.14, 0.3, 0.0, 0.0, 0.0, 1.0)),
    ("ʃʒɕʑʂʐ", (0.15, -0.6, 0.8, 0.0, 0.0, 1.0)),
    ("θð", (0.24, 0.1, 0.0, 0.0, 1.0, 0.9)),
    ("tdnɾɲɟɽʈɖɳ", (0.2, 0.1, 0.0, 0.0, 0.6, 0.6)),
    ("lɫʎɬɭ", (0.34, 0.05, 0.0, 0.0, 0.8, 0.7)),
    ("rɹʁʀɻ", (0.25, -0.4, 0.5, 0.0, 0.0, 0.6)),
    ("kɡgŋxɣçhʔcqχħɦʝɰ", (0.28, 0.0, 0.0, 0.0, 0.0, 0.25)),
    ("j", (0.25, 0.6, 0.0, 0.0, 0.0, 0.7)),
    ("mbp", (0.0, 0.0, 0.1, 0.0, 0.0, 1.2)),
)
_VALUES = 5
_OPENING = 0
_TUCK = 3
SHAPES = {symbol: shape for symbols, shape in _GROUPS for symbol in symbols}


@dataclass(frozen=True, slots=True, eq=False)
class MouthTrack:
    """A mouth at 25 frames a second; frame i is at i/25 s. All `(n,)`.

    float32, in [−1, 1]: `width`; in [0, 1]: `opening`, `rounding`, `tuck`, which brings the lower
    lip below the upper teeth, and `tongue`, which raises its tip, at 1 between the teeth. `shut`:
    lips together for m, b or p; `silent`: no speech, and the mouth is at rest.
    """

    opening: Float32Array
    width: Float32Array
    rounding: Float32Array
    tuck: Float32Array
    tongue: Float32Array
    shut: BoolArray
    silent: BoolArray

    def __len__(self) -> int:
        return len(self.opening)

    def values(self) -> Float32Array:
        """The pose of each frame, `(n, 5)`, in the order of the fields."""
        parts = [self.opening, self.width, self.rounding, self.tuck, self.tongue]
        return np.stack(parts, axis=1)


def mouth_track(phonemes: Sequence[Phoneme], duration_s: float) -> MouthTrack:
    """The mouth while `phonemes` are spoken, at rest before, between and after them.

    Raises:
        ValueError: a phoneme's symbol is unknown.
    """
    spoken = [part for phoneme in phonemes for part in _parts(phoneme)]
    pauses = list(_pauses(spoken, duration_s))
    time = np.arange(ceil(duration_s * FINE_HZ) + 1) / FINE_HZ
    targets = [(SHAPES[part.symbol], part) for part in spoken]
    targets += [(_SILENCE, pause) for pause in pauses]
    # Lips have inertia.
    blend = _smoothed(_blended(targets, time))
    lips = list(_closures(phonemes))
    gate = _gate(time, lips) * _gate(time, _quiet(pauses))
    blend[:, [_OPENING, _TUCK]] *= gate[:, None]
    # Rounded first: 49/25 s is a hair more than 49 frames.
    frames = np.arange(ceil(round(duration_s * MODEL_FPS, 6))) / MODEL_FPS
    values = np.stack([np.interp(frames, time, column) for column in blend.T], axis=1)
    shut = _within(frames, lips)
    silent = _within(frames, _quiet(pauses))
    values[shut | silent, _OPENING] = 0.0
    opening, width, rounding, tuck, tongue = values.astype(np.float32).T
    return MouthTrack(opening, width, rounding, tuck, tongue, shut, silent)


def _smoothed(values: Float64Array) -> Float64Array:
    """Returns `values (n, v)` at `FINE_HZ`, smoothed along the first axis."""
    spread = _SMOOTH_S * FINE_HZ
    reach = round(_SMOOTH_REACH * spread)
    weights = np.exp(-((np.arange(-reach, reach + 1) / spread) ** 2) / 2)
    weights /= weights.sum()
    padded = np.pad(values, ((reach, reach), (0, 0)), mode="edge")
    columns = [np.convolve(column, weights, "valid") for column in padded.T]
    return np.stack(columns, axis=1)


def _parts(phoneme: Phoneme) -> Iterator[Phoneme]:
    """The sounds of a phoneme in order: a diphthong has two, a pause none."""
    known = [symbol for symbol in phoneme.symbol if symbol in SHAPES]
    if phoneme.symbol and not known and phoneme.symbol != "ʲ":
        raise ValueError(f"phoneme {phoneme.symbol!r} has no mouth shape")
    edges = np.linspace(phoneme.start_s, phoneme.end_s, len(known) + 1).tolist()
    for symbol, start, end in zip(known, edges, edges[1:], strict=False):
        yield Phoneme(symbol, start, end)


def _pauses(spoken: Sequence[Phoneme], duration_s: float) -> Iterator[Phoneme]:
    """Gaps between sounds that are long enough to be pauses."""
    edges = [(0.0, 0.0), *((part.start_s, part.end_s) for part in spoken), (duration_s, duration_s)]
    for (_, end), (start, _) in pairwise(edges):
        if start - end >= _SHORTEST_PAUSE_S:
            yield Phoneme("", end, start)


def _quiet(pauses: Iterable[Phoneme]) -> list[tuple[float, float]]:
    """Start and end, in seconds, of the part of each pause in which the mouth is at rest."""
    margin = _PAUSE_MARGIN_S
    intervals = [
        (pause.start_s + margin * (pause.start_s > 0), pause.end_s - margin) for pause in pauses
    ]
    return [(start, end) for start, end in intervals if end > start]


def _closures(phonemes: Iterable[Phoneme]) -> Iterator[tuple[float, float]]:
    """Start and end, in seconds, of each time that the lips are together."""
    for phoneme in phonemes:
        if "m" in phoneme.symbol or "b" in phoneme.symbol:
            start = phoneme.start_s
            end = phoneme.end_s - _RELEASE_S
        elif "p" in phoneme.symbol:
            start = phoneme.start_s - _VOICELESS_HOLD_S
            end = phoneme.start_s + _RELEASE_S
        else:
            continue
        lacking = max(0.0, _SHORTEST_CLOSURE_S - (end - start))
        yield start - lacking / 2, end + lacking / 2


def _blended(targets: Sequence[tuple[Shape, Phoneme]], time: Float64Array) -> Float64Array:
    """The pose at each of `time`: `(n, 5)`."""
    total = np.zeros((len(time), _VALUES))
    weights = np.full((len(time), 1), 1e-9)
    for shape, part in targets:
        center = (part.start_s + part.end_s) / 2
        hold = (part.end_s - part.start_s) / 3
        first, last = np.searchsorted(time, (part.start_s - 0.4, part.end_s + 0.4))
        distance = np.maximum(np.abs(time[first:last] - center) - hold, 0.0)
        pull = shape[_VALUES] * np.exp(-distance / _REACH_S)[:, None]
        total[first:last] += pull * shape[:_VALUES]
        weights[first:last] += pull
    return total / weights


def _gate(time: Float64Array, closed: Iterable[tuple[float, float]]) -> Float64Array:
    """0 inside the intervals `closed`, 1 away from them, a smooth step between."""
    gate = np.ones(len(time))
    for start, end in closed:
        first, last = np.searchsorted(time, (start - _RAMP_S, end + _RAMP_S))
        inner = time[first:last]
        outside = np.clip(np.maximum(start - inner, inner - end) / _RAMP_S, 0.0, 1.0)
        gate[first:last] *= outside * outside * (3 - 2 * outside)
    return gate


def _within(time: Float64Array, intervals: Iterable[tuple[float, float]]) -> BoolArray:
    inside = [(time >= start) & (time <= end) for start, end in intervals]
    return np.any([np.zeros(len(time), np.bool_), *inside], axis=0)
