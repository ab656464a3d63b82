"""Who of the people in a picture speaks, from the shapes of their mouths and from the voices that
are heard. Pure.

In speech, corners of the mouth, lips and chin all move several times a second, and open with the
sound; in chewing, smiling, turning and nodding one of them does, or slowly. That is the evidence of
each moment. What is found is the likeliest course of each shot, in which every change of the
speaker costs something.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, runs_of_true, within

IntArray = NDArray[np.int64]

LEAST_S = 0.4
"""No one speaks for less, and a shorter pause does not divide what somebody says."""

_SAME_TIME_S = 0.01

# Points of FaceMesh: what moves, and what it is measured by: the eyes' corners, the forehead, and
# what is below that.
_LEFT_CORNER = 61
_RIGHT_CORNER = 291
_UPPER_LIP = 0
_CHIN = 152
_LEFT_EYE = [33, 133]
_RIGHT_EYE = [263, 362]
_FOREHEAD = [10, 151, 9]
_BELOW = [6, 197, 33, 263]
_FACEMESH_POINTS = 468
MOUTH_VALUES = 4
"""Of FaceMesh, and of `mouth_of`."""

# Limits below were chosen on the first halves of three clips of people, and measured on the second
# halves: see benchmarks/speaking-cpu.json. Frames are those of MODEL_FPS.
_CORNER_FRAMES = 25
_LIP_FRAMES = 11
"""Slower changes do not count: of the corners of a mouth, and of lip and chin."""
_NEAR_FRAMES = 3
_AROUND_FRAMES = 25
"""The times around a moment that count: of the speed of a mouth, which tells when, and of the size
of its changes, which bridges sounds that hardly move it.
"""
_SPOKEN = 0.015
"""The geometric mean of speeds a frame and changes, in units of `mouth_of`, from which a mouth
rather speaks.
"""
_MOST_FOR = 0.6
_MOST_AGAINST = 0.7
_CHANGE = 8.0
"""What a change of the speaker costs, where one frame with `e * _SPOKEN` is evidence of 1."""

_SOUND_FRAMES = 11
_ALIKE_FRAMES = 25
"""Slower changes of opening and sound do not count; the time around a moment in which they are
compared.
"""
_WIDTH = 2.0
"""How much of a mouth's width the opening is less than the place of the chin."""
_ALIKE = 0.4
_BY_CHANCE = 0.15
"""What their correlation is worth, and what it is without speech."""
_FAINT_DB = -40.0
_TINY = 1e-24


@dataclass(frozen=True, slots=True)
class Turn:
    """A person, by number, speaks from `start_s` to `end_s` of the source; None = somebody who is
    not seen.
    """

    person: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """What is heard: `spans_s`, when somebody speaks; `levels_db (n,)`: how loud it is above 700
    Hz, where an open mouth is heard, at `MODEL_FPS` from time 0 of the picture on.
    """

    spans_s: Sequence[tuple[float, float]]
    levels_db: Float64Array


@dataclass(frozen=True, slots=True, eq=False)
class Mouth:
    """The mouth of a person in one shot: `shapes (n, 4)`, see `mouth_of`, at `times_s (n,)`."""

    person: int
    times_s: Float64Array
    shapes: Float64Array


def mouth_of(landmarks: Float32Array | None) -> tuple[float, ...]:
    """How far both corners of the mouth are to the right, upper lip and chin below; NaN without
    FaceMesh's points.

    Along the eyes and from the forehead down, in units of these, so that it hardly changes where a
    head turns or nods.
    """
    if landmarks is None or len(landmarks) < _FACEMESH_POINTS:
        return (np.nan,) * MOUTH_VALUES
    left, right, forehead, below = (
        landmarks[points].mean(axis=0, dtype=np.float64)
        for points in (_LEFT_EYE, _RIGHT_EYE, _FOREHEAD, _BELOW)
    )
    moving = landmarks[[_LEFT_CORNER, _RIGHT_CORNER, _UPPER_LIP, _CHIN]] - (left + right) / 2
    across, down = np.linalg.solve(np.column_stack([right - left, below - forehead]), moving.T)
    return *across[:2].tolist(), *down[2:].tolist()


def active_speakers(
    mouths: Sequence[Mouth], shots_s: Sequence[float], voice: Voice | None
) -> tuple[Turn, ...]:
    """Who speaks when, by time; without a `voice`, the mouths alone decide. `shots_s`: when the
    shots begin.
    """
    end_s = max((float(mouth.times_s[-1]) for mouth in mouths), default=0.0) + 1 / MODEL_FPS
    found = []
    for start_s, stop_s in pairwise((*shots_s, end_s)):
        inside = [mouth for mouth in mouths if start_s <= mouth.times_s[0] + _SAME_TIME_S < stop_s]
        frames = np.arange(round(start_s * MODEL_FPS), round(stop_s * MODEL_FPS))
        if inside and frames.size:
            found += _in_shot(inside, frames, voice)
    return tuple(sorted(found, key=lambda one: one.start_s))


def _in_shot(mouths: Sequence[Mouth], frames: IntArray, voice: Voice | None) -> list[Turn]:
    times_s = frames / MODEL_FPS
    people = [None, *sorted({mouth.person for mouth in mouths})]
    evidence = np.full((len(frames), len(people)), -_MOST_AGAINST)
    evidence[:, 0] = 0
    for mouth in mouths:
        seen = slice(
            *np.searchsorted(times_s, mouth.times_s[[0, -1]] + (-_SAME_TIME_S, _SAME_TIME_S))
        )
        evidence[seen, people.index(mouth.person)] = _evidence(mouth, times_s[seen], voice)
    if voice is None:
        heard = np.ones(len(frames), np.bool_)
    else:
        heard = within(times_s, voice.spans_s)
    speaker = _likeliest(evidence * heard[:, None])
    found = []
    for number, person in enumerate(people):
        if number or voice is not None:
            spans = _lasting(heard & (speaker == number))
        else:
            spans = []
        for start, end in spans:
            start_s, end_s = (frames[[start, end - 1]] + (0, 1)) / MODEL_FPS
            found.append(Turn(person, float(start_s), float(end_s)))
    return found


def _evidence(mouth: Mouth, times_s: Float64Array, voice: Voice | None) -> Float64Array:
    """For each of `times_s (n,)`: above 0 where it is likelier that the mouth speaks than that it
    does not.
    """
    known = ~np.isnan(mouth.shapes).any(axis=1)
    if not known.any() or times_s.size < 2:
        return np.full(len(times_s), -_MOST_AGAINST)
    left, right, lip, chin = (
        np.interp(times_s, mouth.times_s[known], values) for values in mouth.shapes[known].T
    )
    powers = []
    for curves, frames in (
        ((left, right), _CORNER_FRAMES),
        ((lip,), _LIP_FRAMES),
        ((chin,), _LIP_FRAMES),
    ):
        powers.append(
            np.sum([_power(np.gradient(curve), _NEAR_FRAMES) for curve in curves], axis=0)
        )
        powers.append(
            np.sum([_power(_fast(curve, frames), _AROUND_FRAMES) for curve in curves], axis=0)
        )
    found = np.log(np.maximum(powers, _TINY)).mean(axis=0) / 2 - np.log(_SPOKEN)
    if voice is not None:
        levels_db = np.interp(
            times_s + 1 / MODEL_FPS, np.arange(len(voice.levels_db)) / MODEL_FPS, voice.levels_db
        )
        sound = _fast(_mean(np.maximum(levels_db, _FAINT_DB), 3), _SOUND_FRAMES)
        opening = _fast(chin - _WIDTH * (right - left), _SOUND_FRAMES)
        size = np.sqrt(
            np.maximum(_power(sound, _ALIKE_FRAMES) * _power(opening, _ALIKE_FRAMES), _TINY)
        )
        found += _ALIKE * (_mean(sound * opening, _ALIKE_FRAMES) / size - _BY_CHANCE)
    return np.clip(found, -_MOST_AGAINST, _MOST_FOR)


def _mean(curve: Float64Array, frames: int) -> Float64Array:
    """The running mean over so many frames."""
    return np.convolve(
        np.pad(curve, frames // 2, mode="edge"), np.full(frames, 1 / frames), "valid"
    )


def _fast(curve: Float64Array, frames: int) -> Float64Array:
    return curve - _mean(curve, frames)


def _power(curve: Float64Array, frames: int) -> Float64Array:
    return _mean(np.square(curve), frames)


def _likeliest(evidence: Float64Array) -> IntArray:
    """The state of each moment, `(n, states)` → `(n,)`, so that evidence less the costs of changes
    is the most.
    """
    score = evidence[0]
    before = np.zeros(evidence.shape, np.int64)
    for moment in range(1, len(evidence)):
        best = int(score.argmax())
        stays = score >= score[best] - _CHANGE
        before[moment] = np.where(stays, np.arange(len(score)), best)
        score = np.maximum(score, score[best] - _CHANGE) + evidence[moment]
    states = np.zeros(len(evidence), np.int64)
    state = int(score.argmax())
    for moment in range(len(evidence) - 1, -1, -1):
        states[moment] = state
        state = int(before[moment, state])
    return states


def _lasting(speaks: BoolArray) -> list[tuple[int, int]]:
    """The runs of True of at least `LEAST_S`, after pauses of less were filled."""
    least = round(LEAST_S * MODEL_FPS)
    filled = speaks.copy()
    for (_, end), (start, _) in pairwise(runs_of_true(speaks)):
        filled[end:start] = start - end < least
    return [(start, end) for start, end in runs_of_true(filled) if end - start >= least]
