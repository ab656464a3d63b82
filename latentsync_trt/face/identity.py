"""Tells people apart by their looks. No I/O.

A look is a coarse picture of the upright face and hair, in colors relative to their mean, so that
brightness and a tint of the light do not count. Measured on six people in 75 pictures: pictures of
one person are up to 0.35 apart (95 %), of two people 0.44 or more.
"""

from collections.abc import Sequence, Set
from fractions import Fraction

import numpy as np

from latentsync_trt.face.geometry import MESH_SIDE_PX, REGION_SCALE, Region, overlap
from latentsync_trt.types import Face, Float32Array, Picture

_SAME_PERSON = 0.36
"""Limit for the distance of two looks of one person."""
SAME_PLACE_AND_PERSON = 0.43
"""The same for a face at the place where the person was just seen."""
_SAME_PLACE_IOU = 0.3

_GRID = 16
"""Cells of a look across and down."""
_BLOCK_PX = MESH_SIDE_PX // _GRID
_Y, _X = (np.mgrid[0:_GRID, 0:_GRID] - (_GRID - 1) / 2) / _GRID
_HALF_WIDTH = 0.39
_HALF_HEIGHT = 0.45
"""Half the axes of the ellipse around face and hair, in sides of the face's region."""
_FACE_AND_HAIR = np.hypot(_X / _HALF_WIDTH, _Y / _HALF_HEIGHT) < 1
LOOK_REACH = (REGION_SCALE * _HALF_WIDTH, REGION_SCALE * _HALF_HEIGHT)
"""How far a look reaches from the middle of a face, across and up, in lengths of the longer side of
its box.
"""
_DARK = 8 / 255
"""Keeps the noise of dark places from counting."""
_LEAST_COLOR_CONTRAST = 0.1
"""Norm per sample below which a picture is flat."""
_NEW_LOOK = 0.06
_MOST_LOOKS = 24
"""Looks of a person that are remembered are at least so different, and at most so many."""
_STEADY = 0.12
"""Distance of two looks of a face that stays the same. Measured: while people talk, looks of one
person differ by 0.08 to 0.15 in the mean over seconds; in a dissolve of a second, and while a face
comes in at an edge, by 0.3 or more within 0.4 s.
"""


def look_of(picture: Picture, face: Face) -> Float32Array | None:
    """Returns the look of `face`, float32 `(n,)` of length 1; None if the picture is flat there."""
    upright = Region.around(face).cut(picture)[0]
    grid = upright.reshape(3, _GRID, _BLOCK_PX, _GRID, _BLOCK_PX).mean(axis=(2, 4))
    levels = np.log(grid[:, _FACE_AND_HAIR] + _DARK)
    levels -= levels.mean(axis=1, keepdims=True)
    size = float(np.linalg.norm(levels))
    if size < _LEAST_COLOR_CONTRAST * levels.size**0.5:
        return None
    return levels.ravel() / size


def are_alike(one: Float32Array | None, other: Float32Array | None) -> bool:
    """Whether two looks are of one person; unknown ones are not."""
    return one is not None and other is not None and _distance([one], other) <= _SAME_PERSON


def _distance(looks: Sequence[Float32Array], look: Float32Array) -> float:
    """Returns the distance to the nearest of some looks; 0 if there are none."""
    if looks:
        return 1.0 - float(np.max(np.stack(looks) @ look))
    return 0.0


class Person:
    """Someone who was seen, by `number`, and remembered by looks and the last face.

    As long as all looks are doubtful, for the face is partly hidden, or changes, each is learned.
    The first certain one replaces them; from then on, a doubtful one is learned only if it is like
    a certain one, so that a person does not become another one little by little.
    """

    def __init__(self, number: int, face: Face) -> None:
        self.number = number
        self._face = face
        self._looks: list[Float32Array] = []
        self._certain: list[Float32Array] = []

    @property
    def is_certain(self) -> bool:
        """Whether a certain look is known."""
        return bool(self._certain)

    def is_likely(self, face: Face, look: Float32Array | None) -> bool:
        """Whether `face` can be that of the person; where neither has a look, the place decides."""
        is_here = overlap(self._face, [face]) >= _SAME_PLACE_IOU
        if look is None or not self._looks:
            return is_here and (look is None) == (not self._looks)
        limit = SAME_PLACE_AND_PERSON if is_here else _SAME_PERSON
        return self.distance(look) <= limit

    def distance(self, look: Float32Array | None) -> float:
        """Returns how unlike the person's other looks this one is: 0 = the same, 1 = unrelated; 0
        where nothing is known.
        """
        if look is None:
            return 0.0
        return _distance(self._looks, look)

    def learn(self, face: Face, look: Float32Array | None, *, is_certain: bool) -> None:
        """Remembers where the person was seen last, and how, if there is a look."""
        self._face = face
        if look is None:
            return
        if is_certain:
            _add_look(self._certain, look)
            self._looks = [one for one in self._looks if self._is_near(one)]
        if self._is_near(look):
            _add_look(self._looks, look)

    def _is_near(self, look: Float32Array) -> bool:
        """Whether a look is like a certain one, if there is one."""
        return _distance(self._certain, look) <= SAME_PLACE_AND_PERSON


def _add_look(looks: list[Float32Array], look: Float32Array) -> None:
    """Adds a look to different ones; the first one stays."""
    if not looks or _distance(looks, look) > _NEW_LOOK:
        looks.append(look)
        del looks[1:-_MOST_LOOKS]


class People:
    """All people of a clip, by number."""

    def __init__(self) -> None:
        self._people: dict[int, Person] = {}
        self._next_number = 0

    def __getitem__(self, number: int) -> Person:
        return self._people[number]

    def add(self, face: Face) -> Person:
        """Returns somebody new."""
        person = Person(self._next_number, face)
        self._next_number += 1
        self._people[person.number] = person
        return person

    def likeliest(
        self, face: Face, look: Float32Array | None, excluded: Set[Person]
    ) -> Person | None:
        """Returns the one who is most like a face, if anyone can be the one whose face it is."""
        others = [person for person in self._people.values() if person not in excluded]
        likely = [person for person in others if person.is_likely(face, look)]
        return min(likely, key=lambda person: person.distance(look), default=None)

    def decide(
        self, guess: Person, face: Face, look: Float32Array | None, excluded: Set[Person]
    ) -> Person:
        """Returns whose face it is, now that it can be seen. A `guess` of whom no certain look is
        known is forgotten where it is somebody else's.
        """
        if guess.is_certain:
            return self.likeliest(face, look, excluded) or self.add(face)
        person = self.likeliest(face, look, excluded | {guess})
        if person is None:
            return guess
        del self._people[guess.number]
        return person


class SteadyLook:
    """How long a face has looked the same: then nothing covers it, no light flashes, and it does
    not change into another one.
    """

    def __init__(self) -> None:
        self._look: Float32Array | None = None
        self._since_s = Fraction(0)

    def add(self, look: Float32Array | None, time_s: Fraction) -> Fraction:
        """Adds the look at a time, None = no look, which does not last. Returns how many seconds
        the face has had about this look.
        """
        if look is None or self._look is None or _distance([self._look], look) > _STEADY:
            self._look = look
            self._since_s = time_s
        return time_s - self._since_s
