"""How much of a painted face shows where its head turns aside: the networks know faces that look
ahead, and a profile is soon lost. Pure.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from latentsync_trt.face.align import transformed
from latentsync_trt.face.geometry import POINTS, turned_aside
from latentsync_trt.types import Face, Float64Array

_EARS_AND_BRIDGE = np.array([234, 454, 168])
"""FaceMesh's points before both ears, and the bridge of the nose. They lie at one height, so that a
nod hardly changes what they tell: of a head turned by 40°, 0.39 to 0.53 where it nods by up to 15°;
brows and the tip of the nose tell 0.07 to 0.45.
"""
_WHOLE_UNTIL = 0.42
"""How far aside a face looks that still shows fully, about 36°: people who talk to somebody beside
the camera reach 0.32.
"""
_GONE_FROM = 0.72
"""How far aside one looks of which nothing shows, about 51°: the far eye begins to hide. Heads that
turn were lost from there on.
"""
_UNPAINTED_FROM = 0.77
"""A face that looks so far aside is not painted until it shows again: else, one at the limit would
be painted in every other frame.
"""
_TURN_HALF_LIFE_S = 0.08
"""After this time, a frame counts half in the running mean: measures of turned faces jitter by
0.015, which is five percent of the range in which they fade.
"""
_LONGEST_GAP_S = 1
"""After a longer gap, a running mean begins anew."""


@dataclass(frozen=True, slots=True)
class HeadTurn:
    """How far aside the head of a track looks, in the frames until `time_s`."""

    time_s: Fraction
    aside: float
    """The running mean, see `aside_of`."""
    is_away: bool
    """Whether the face need not be painted."""

    @property
    def opacity(self) -> float:
        """How much of the painted face shows, in [0, 1]."""
        return opacity_at(self.aside)


def opacity_at(aside: float) -> float:
    """Returns how much shows of a face that looks so far aside: from 1 to 0, without a kink."""
    part = (aside - _WHOLE_UNTIL) / (_GONE_FROM - _WHOLE_UNTIL)
    part = min(max(part, 0.0), 1.0)
    return 1 - part * part * (3 - 2 * part)


def aside_of(face: Face, to_square: Float64Array) -> float:
    """Returns how far aside a face looks: 0 ahead, 0.58 at 45°, by its ears; by brows and nose
    where only these are known.

    Args:
        to_square: shape `(2, 3)`: pixels of the face's frame → square pixels.
    """
    points = face.points
    if face.landmarks is not None and len(face.landmarks) == POINTS:
        points = face.landmarks[_EARS_AND_BRIDGE]
    return float(turned_aside(transformed(points, to_square)))


def next_turn(before: HeadTurn | None, time_s: Fraction, aside: float) -> HeadTurn:
    """Returns the turn of a head that looks so far aside in the next frame of its track; None
    before = its first one.
    """
    was_away = False
    if before is not None and time_s - before.time_s <= _LONGEST_GAP_S:
        old_weight = 0.5 ** (float(time_s - before.time_s) / _TURN_HALF_LIFE_S)
        aside += old_weight * (before.aside - aside)
        was_away = before.is_away
    return HeadTurn(time_s, aside, aside >= (_GONE_FROM if was_away else _UNPAINTED_FROM))
