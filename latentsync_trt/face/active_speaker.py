"""Active speaker detection: who of the people in a picture speaks, from the shapes of their mouths
and from the voices that are heard. Pure.

In speech, corners of the mouth, lips and chin all move several times a second, and open with the
sound; in chewing, smiling, turning and nodding one of them does, or slowly. That is the evidence of
each moment. The result is the likeliest course of each shot, in which every change of the speaker
costs something.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.geometry import POINTS
from latentsync_trt.types import (
    BoolArray,
    Float32Array,
    Float64Array,
    SpanSeconds,
    runs_of_true,
    within,
)

_LEAST_TURN_S = 0.4
"""No one speaks for less, and a shorter pause does not divide what somebody says."""

_SAME_FRAME_S = 0.01
"""Times that are nearer belong to one frame: tracks have rounded ones."""

_LEFT_CORNER = 61
_RIGHT_CORNER = 291
_UPPER_LIP_MIDDLE = 0
_CHIN = 152
"""FaceMesh's points that move in speech."""
_LEFT_EYE = [33, 133]
_RIGHT_EYE = [263, 362]
_FOREHEAD = [10, 151, 9]
_BELOW_FOREHEAD = [6, 197, 33, 263]
"""FaceMesh's points by whose means the others are measured."""
MOUTH_VALUES = 4
"""Numbers that `mouth_of` returns."""

# Limits below were chosen on the first halves of three clips of people, and measured on the second
# halves: see benchmarks/speaking-cpu.json. Frames are those of MODEL_FPS.
_CORNER_FRAMES = 25
_LIP_FRAMES = 11
"""Slower changes of the corners of a mouth, and of lip and chin, do not count."""
_NEAR_FRAMES = 3
"""The time around a moment in which the speed of a mouth counts, which tells when it speaks."""
_AROUND_FRAMES = 25
"""The time around a moment in which the size of its changes counts, which bridges sounds that
hardly move it.
"""
_SPOKEN = 0.015
"""The geometric mean of speeds a frame and changes, in units of `mouth_of`, from which a mouth
rather speaks.
"""
_MOST_FOR = 0.6
_MOST_AGAINST = 0.7
"""Limits of the evidence of one frame that a mouth speaks, and that it does not."""
_CHANGE_COST = 8.0
"""What a change of the speaker costs, where one frame with `e * _SPOKEN` is evidence of 1."""

_SOUND_FRAMES = 11
"""Slower changes of opening and sound do not count."""
_CORRELATION_FRAMES = 25
"""The time around a moment in which opening and sound are compared."""
_WIDTH_SHARE = 2.0
"""How much of a mouth's width the opening is less than the place of the chin."""
_CORRELATION_WORTH = 0.4
_CORRELATION_BY_CHANCE = 0.15
"""What the correlation of opening and sound is worth, and what it is without speech."""
_FAINT_DB = -40.0
"""Level below which all sound counts as equally faint."""
_TINY = 1e-24
"""Keeps logarithms and quotients finite."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A span of the source in which one person speaks."""

    person: int | None
    """The number of the person; None = somebody who is not seen."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """What is heard."""

    spans_s: Sequence[SpanSeconds]
    """When somebody speaks."""
    levels_db: Float64Array
    """How loud it is above 700 Hz, where an open mouth is heard, at `MODEL_FPS` from time 0 of the
    picture on: `(n,)`.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Mouth:
    """The mouth of a person in one shot."""

    person: int
    times_s: Float64Array
    """Shape `(n,)`."""
    shapes: Float64Array
    """What `mouth_of` returns at these times: `(n, 4)`."""


def mouth_of(landmarks: Float32Array | None) -> tuple[float, ...]:
    """Returns how far both corners of the mouth are to the right, and upper lip and chin below; NaN
    without FaceMesh's points.

    Along the eyes and from the forehead down, in units of these, so that it hardly changes where a
    head turns or nods.
    """
    if landmarks is None or len(landmarks) < POINTS:
        return (np.nan,) * MOUTH_VALUES

    def middle(points: list[int]) -> Float64Array:
        return landmarks[points].mean(axis=0, dtype=np.float64)

    left_eye = middle(_LEFT_EYE)
    right_eye = middle(_RIGHT_EYE)
    between_eyes = (left_eye + right_eye) / 2
    down_face = middle(_BELOW_FOREHEAD) - middle(_FOREHEAD)
    axes = np.column_stack([right_eye - left_eye, down_face])
    moving = landmarks[[_LEFT_CORNER, _RIGHT_CORNER, _UPPER_LIP_MIDDLE, _CHIN]]
    across, down = np.linalg.solve(axes, (moving - between_eyes).T)
    return *across[:2].tolist(), *down[2:].tolist()


def active_speakers(
    mouths: Sequence[Mouth], shots_s: Sequence[float], voice: Voice | None
) -> tuple[Turn, ...]:
    """Returns who speaks when, by time; without a `voice`, the mouths alone decide.

    Args:
        shots_s: when the shots begin.
    """
    ends_s = [float(mouth.times_s[-1]) for mouth in mouths]
    end_s = max(ends_s, default=0.0) + 1 / MODEL_FPS
    turns = []
    for start_s, stop_s in pairwise((*shots_s, end_s)):
        inside = [mouth for mouth in mouths if start_s <= mouth.times_s[0] + _SAME_FRAME_S < stop_s]
        frames = np.arange(round(start_s * MODEL_FPS), round(stop_s * MODEL_FPS))
        if inside and frames.size:
            turns += _turns_in_shot(inside, frames, voice)
    turns.sort(key=attrgetter("start_s"))
    return tuple(turns)


def _turns_in_shot(
    mouths: Sequence[Mouth], frames: NDArray[np.int64], voice: Voice | None
) -> list[Turn]:
    people = [None, *sorted({mouth.person for mouth in mouths})]
    times_s = frames / MODEL_FPS
    evidence = _evidence_of_people(people, mouths, times_s, voice)
    if voice is None:
        heard = np.ones(len(frames), np.bool_)
    else:
        heard = within(times_s, voice.spans_s)
    speaker = _likeliest(evidence * heard[:, None])
    turns = []
    for number, person in enumerate(people):
        if person is None and voice is None:
            continue
        for start, end in _lasting(heard & (speaker == number)):
            end_s = float((frames[end - 1] + 1) / MODEL_FPS)
            turns.append(Turn(person, float(times_s[start]), end_s))
    return turns


def _evidence_of_people(
    people: Sequence[int | None],
    mouths: Sequence[Mouth],
    times_s: Float64Array,
    voice: Voice | None,
) -> Float64Array:
    """Returns the evidence at each time that each one speaks: `(times, people)`; 0 for somebody who
    is not seen.
    """
    evidence = np.full((len(times_s), len(people)), -_MOST_AGAINST)
    evidence[:, 0] = 0
    for mouth in mouths:
        first_s = mouth.times_s[0] - _SAME_FRAME_S
        last_s = mouth.times_s[-1] + _SAME_FRAME_S
        seen = slice(*np.searchsorted(times_s, (first_s, last_s)))
        column = people.index(mouth.person)
        evidence[seen, column] = _evidence(mouth, times_s[seen], voice)
    return evidence


def _evidence(mouth: Mouth, times_s: Float64Array, voice: Voice | None) -> Float64Array:
    """Returns for each of `times_s (n,)` a number above 0 where it is likelier that the mouth
    speaks than that it does not.
    """
    is_measured = ~np.isnan(mouth.shapes).any(axis=1)
    if not is_measured.any() or times_s.size < 2:
        return np.full(len(times_s), -_MOST_AGAINST)
    measured_s = mouth.times_s[is_measured]
    shapes = mouth.shapes[is_measured]
    left, right, lip, chin = (np.interp(times_s, measured_s, curve) for curve in shapes.T)
    powers = [
        _speed_power(left) + _speed_power(right),
        _change_power(left, _CORNER_FRAMES) + _change_power(right, _CORNER_FRAMES),
        _speed_power(lip),
        _change_power(lip, _LIP_FRAMES),
        _speed_power(chin),
        _change_power(chin, _LIP_FRAMES),
    ]
    logs = np.log(np.maximum(powers, _TINY))
    evidence = logs.mean(axis=0) / 2 - np.log(_SPOKEN)
    if voice is not None:
        opening = chin - _WIDTH_SHARE * (right - left)
        correlation = _correlation_with_sound(opening, times_s, voice)
        evidence += _CORRELATION_WORTH * (correlation - _CORRELATION_BY_CHANCE)
    return np.clip(evidence, -_MOST_AGAINST, _MOST_FOR)


def _speed_power(curve: Float64Array) -> Float64Array:
    return _power(np.gradient(curve), _NEAR_FRAMES)


def _change_power(curve: Float64Array, frames: int) -> Float64Array:
    return _power(_fast(curve, frames), _AROUND_FRAMES)


def _correlation_with_sound(
    opening: Float64Array, times_s: Float64Array, voice: Voice
) -> Float64Array:
    """Returns how far a mouth opens with the sound, around each time: -1 to 1."""
    levels_s = np.arange(len(voice.levels_db)) / MODEL_FPS
    levels_db = np.interp(times_s + 1 / MODEL_FPS, levels_s, voice.levels_db)
    smooth_db = _smoothed(np.maximum(levels_db, _FAINT_DB), 3)
    sound = _fast(smooth_db, _SOUND_FRAMES)
    opening = _fast(opening, _SOUND_FRAMES)
    powers = _power(sound, _CORRELATION_FRAMES) * _power(opening, _CORRELATION_FRAMES)
    size = np.sqrt(np.maximum(powers, _TINY))
    return _smoothed(sound * opening, _CORRELATION_FRAMES) / size


def _smoothed(curve: Float64Array, frames: int) -> Float64Array:
    padded = np.pad(curve, frames // 2, mode="edge")
    return np.convolve(padded, np.full(frames, 1 / frames), "valid")


def _fast(curve: Float64Array, frames: int) -> Float64Array:
    """Returns a curve without its slow changes."""
    return curve - _smoothed(curve, frames)


def _power(curve: Float64Array, frames: int) -> Float64Array:
    return _smoothed(np.square(curve), frames)


def _likeliest(evidence: Float64Array) -> NDArray[np.int64]:
    """Returns the state of each moment, `(n, states)` → `(n,)`, so that evidence less the costs of
    changes is the most.
    """
    score = evidence[0]
    before = np.zeros(evidence.shape, np.int64)
    for moment in range(1, len(evidence)):
        best = int(score.argmax())
        changed_score = score[best] - _CHANGE_COST
        stays = score >= changed_score
        before[moment] = np.where(stays, np.arange(len(score)), best)
        score = np.maximum(score, changed_score) + evidence[moment]
    states = np.zeros(len(evidence), np.int64)
    state = int(score.argmax())
    for moment in range(len(evidence) - 1, -1, -1):
        states[moment] = state
        state = int(before[moment, state])
    return states


def _lasting(speaks: BoolArray) -> list[tuple[int, int]]:
    """Returns the runs of True of at least `_LEAST_TURN_S`, after pauses of less were filled."""
    least = round(_LEAST_TURN_S * MODEL_FPS)
    filled = speaks.copy()
    for (_, stop), (start, _) in pairwise(runs_of_true(speaks)):
        if start - stop < least:
            filled[stop:start] = True
    return [(start, end) for start, end in runs_of_true(filled) if end - start >= least]
