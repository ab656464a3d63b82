"""Watches each painted face: an alarm where one does not fit its source, or fits it worse than the
faces of its track before.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from latentsync_trt.errors import InputError
from latentsync_trt.measure.mismatch import MAX_COLOR
from latentsync_trt.measure.paint_figures import ComparedFace, PaintFigures, paint_figures
from latentsync_trt.measures import Interval, add_interval
from latentsync_trt.types import Frame

Fault = Literal["smeared", "blurred", "color off", "jumps", "partly outside its mask"]

_LEAST_LIKENESS = 0.5
_LEAST_SHARPNESS = 0.4
_LEAST_LIPS_IN_MASK = 0.9
"""A face beyond these, or `MAX_COLOR`, does not fit, whatever those before were."""

_LIKENESS_DROP = 0.1
_SHARPNESS_DROP = 0.09
_NOSE_LIKENESS_DROP = 0.12
_NOSE_SHARPNESS_DROP = 0.2
_JUMP_PX = 0.6
_COLOR_CHANGE = 4.0
"""A face that is worse by more than what is usual in its track does not fit, unless that varies."""
_LEAST_USUAL_LIKENESS = 0.5
"""A nose that is usually less like the source's belongs to another expression, as where a smile is
painted away: there, a drop is no fault.
"""
_DEVIATIONS = 4.0
"""A face may be worse by so many mean deviations from what is usual, where that is more."""

_LEARNED_FACES = 12
"""Faces of a track after which it is known what is usual."""
_NEW_WEIGHT = 0.02
"""Weight of each face in what is usual: the last two seconds count most."""
_MISFIT_WEIGHT = 0.003
"""That of a face that does not fit."""
_PLACE_WEIGHT = 0.1
"""Weight of a face that fits in the running mean of the place, from which others jump."""

_FACES_AT_ONCE = 4
"""So many faces are compared together, which takes little more of Python's lock than one."""

_GAP_S = 0.12
"""Times of a fault that are so close to each other are one."""
_LEAST_S = 0.2
"""A shorter fault is not told: a blink, a flash, or a head that moved fast."""


@dataclass(slots=True)
class _Usual:
    """What is usual of a figure in a track; higher figures are better."""

    mean: float = 0.0
    deviation: float = 0.0
    """The mean distance from the mean."""
    faces: int = 0

    def is_worse(self, figure: float, least: float) -> bool:
        """Returns whether a figure is below the mean by more than `least`, and than it varies."""
        allowed = max(least, _DEVIATIONS * self.deviation)
        return self.faces >= _LEARNED_FACES and self.mean - figure > allowed

    def add(self, figure: float) -> None:
        """Adds the figure of a face that fits."""
        self.faces += 1
        if self.faces == 1:
            self.mean = figure
        weight = max(1 / self.faces, _NEW_WEIGHT)
        self.deviation += weight * (abs(figure - self.mean) - self.deviation)
        self.mean += weight * (figure - self.mean)

    def approach(self, figure: float) -> None:
        """Moves the mean a little toward the figure of a face that does not fit: what lasts, as a
        new light, is usual at last.
        """
        self.mean += _MISFIT_WEIGHT * (figure - self.mean)


class _TrackCheck:
    """Compares the faces of a track with those before."""

    def __init__(self) -> None:
        self._forehead_likeness = _Usual()
        self._forehead_sharpness = _Usual()
        self._nose_likeness = _Usual()
        self._nose_sharpness = _Usual()
        self._steadiness = _Usual()
        self._color_match = _Usual()
        self._place_px: complex | None = None
        self._color: complex | None = None

    def faults(self, figures: PaintFigures, *, is_free: bool) -> set[Fault]:
        """Returns what is wrong with the next face; `is_free`: nothing is in front of it, so that
        nose and color are those of the source.
        """
        faults = set(_beyond_limits(figures, is_free=is_free))
        if self._place_px is None or self._color is None:
            self._place_px = figures.shift_px
            self._color = figures.color
        jump_px = abs(figures.shift_px - self._place_px)
        change = abs(figures.color - self._color)
        checks: list[tuple[Fault, _Usual, float, float]] = [
            ("smeared", self._forehead_likeness, figures.forehead.likeness, _LIKENESS_DROP),
            ("blurred", self._forehead_sharpness, figures.forehead.sharpness, _SHARPNESS_DROP),
            ("jumps", self._steadiness, -jump_px, _JUMP_PX),
        ]
        if is_free:
            nose = figures.nose
            nose_drop = _NOSE_LIKENESS_DROP
            if self._nose_likeness.mean < _LEAST_USUAL_LIKENESS:
                nose_drop = math.inf
            checks += [
                ("smeared", self._nose_likeness, nose.likeness, nose_drop),
                ("blurred", self._nose_sharpness, nose.sharpness, _NOSE_SHARPNESS_DROP),
                ("color off", self._color_match, -change, _COLOR_CHANGE),
            ]
        for fault, usual, figure, least in checks:
            if usual.is_worse(figure, least):
                faults.add(fault)
        for _, usual, figure, _ in checks:
            if faults:
                usual.approach(figure)
            else:
                usual.add(figure)
        place_weight = _NEW_WEIGHT if faults else _PLACE_WEIGHT
        self._place_px += place_weight * (figures.shift_px - self._place_px)
        if is_free:
            color_weight = _MISFIT_WEIGHT if faults else _NEW_WEIGHT
            self._color += color_weight * (figures.color - self._color)
        return faults


def _beyond_limits(figures: PaintFigures, *, is_free: bool) -> Iterator[Fault]:
    if figures.forehead.likeness < _LEAST_LIKENESS:
        yield "smeared"
    if figures.forehead.sharpness < _LEAST_SHARPNESS:
        yield "blurred"
    if is_free and abs(figures.color) > MAX_COLOR:
        yield "color off"
    if figures.lips_in_mask < _LEAST_LIPS_IN_MASK:
        yield "partly outside its mask"


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingFace:
    """A face that is not compared yet."""

    start_s: float
    end_s: float
    """When its frame is shown."""
    track_id: int
    compared: ComparedFace
    is_free: bool


class PaintCheck:
    """Finds the times at which painted faces do not fit.

    Args:
        strict: compare each face at once, and raise `InputError` at the first one; not for the
            first faces of a run, whose fault `ModelMismatchCheck` explains.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._most_waiting = 1 if strict else _FACES_AT_ONCE
        self._faces = 0
        self._waiting: list[_WaitingFace] = []
        self._tracks: dict[int, _TrackCheck] = {}
        self._times: dict[Fault, list[Interval]] = {}

    def add(self, frame: Frame, track_id: int, compared: ComparedFace, *, is_free: bool) -> None:
        """Adds a painted face; frames in order. `is_free`: nothing is in front of it."""
        end_s = float(frame.time_s + frame.duration_s)
        face = _WaitingFace(float(frame.time_s), end_s, track_id, compared, is_free)
        self._waiting.append(face)
        if len(self._waiting) == self._most_waiting:
            self._check_waiting()

    def _check_waiting(self) -> None:
        faces = self._waiting
        self._waiting = []
        every = paint_figures([face.compared for face in faces])
        for face, figures in zip(faces, every, strict=True):
            self._check(face, figures)

    def _check(self, face: _WaitingFace, figures: PaintFigures) -> None:
        self._faces += 1
        track = self._tracks.setdefault(face.track_id, _TrackCheck())
        for fault in track.faults(figures, is_free=face.is_free):
            times = self._times.setdefault(fault, [])
            add_interval(times, Interval(face.start_s, face.end_s, fault), _GAP_S)
            if self._strict and self._faces > _LEARNED_FACES and _lasts(times[-1]):
                problem = f"the painted face does not fit: {times[-1]} (--strict)"
                raise InputError(problem, usage=False)

    def times(self) -> tuple[Interval, ...]:
        """Returns the times at which a face does not fit, in order and apart, each with all that is
        wrong.
        """
        if self._waiting:
            self._check_waiting()
        every = [time for times in self._times.values() for time in times if _lasts(time)]
        apart: list[Interval] = []
        for time in sorted(every, key=lambda each: each.start_s):
            if not apart or time.start_s > apart[-1].end_s:
                apart.append(time)
                continue
            last = apart.pop()
            reasons = dict.fromkeys([*last.reason.split(", "), time.reason])
            end_s = max(last.end_s, time.end_s)
            apart.append(Interval(last.start_s, end_s, ", ".join(reasons)))
        return tuple(apart)


def _lasts(time: Interval) -> bool:
    return time.end_s - time.start_s >= _LEAST_S
