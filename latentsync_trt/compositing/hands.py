"""Hands in front of a face, by MediaPipe's palm and hand networks (Zhang et al. 2020), and a coarse
mask of them.

`HandFinder` holds the networks and serves all faces. The hands around one face are passed to it and
returned for each frame. `hand_mask` draws hands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan2, cos, hypot, pi, sin
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.compositing.outline import OVAL, drawn
from latentsync_trt.face.align import transformed
from latentsync_trt.face.blaze import BlazeModel, decoded
from latentsync_trt.face.geometry import Region, box_corners, box_middle, longer_side
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.types import Face, Float32Array, Float64Array, Picture, UInt8Array

_NETWORKS = Path(__file__).resolve().parents[1] / "assets" / "face"

_PALM = BlazeModel("palm", 192, ((8, 2), (16, 6)), 7, 0.5)
_HAND = "hand"
_HAND_PX = 224
"""Side of the hand network's input."""
_LEAST_PALM_SCORE = 0.1
_LEAST_NEW_SCORE = 0.6
_LEAST_FOLLOWED_SCORE = 0.5
"""The least probabilities that there is a hand: in the region of a palm, which is coarse, so that a
hand that holds something may have a small one; then in the region of its own points; and of a hand
that is followed. What reaches inside a face's outline and is no hand has at most 0.45 in the second
region, in 1502 frames.
"""
_LEAST_PALM = 0.2
"""Width of the smallest palm in front of a face, in lengths of the face's longer side: it is 0.3 to
0.5 where hand and face are equally far away, and smaller for a hand behind the face.
"""
_MOST_HANDS = 2
"""Hands that are followed at once."""

_SEARCHED = 2.4
"""Side of the square in which palms are searched for, in lengths of the face's longer side: a hand
whose fingers touch the mouth is whole in it.
"""
_SEARCHED_DOWN = 0.15
"""How far its center lies below the face's, in its own lengths: most hands come from below."""
_NEAR = 0.5
"""Hands are examined whose region is closer to the face's box than this, in lengths of its longer
side.
"""
_PALM_SCALE = 2.6
_PALM_SHIFT = 0.5
"""The region of a whole hand, from the box of its palm: its size, and how far it is moved towards
the fingers, in sides of the box. From MediaPipe's graph, as the next two.
"""
_HAND_SCALE = 2.0
_HAND_SHIFT = 0.1
"""The region in which a hand is followed, from the box of its points without the ends of
fingers.
"""
_SAME_HAND = 0.2
"""Regions whose centers are closer, in sides of the larger one, are of the same hand."""
_LEAST_DEPTH = 0.06
"""How far inside the face's outline a point of a hand must be for the hand to be in front of the
face, in lengths of the face's longer side. Necks that are taken for hands end at the chin.
"""

_WRIST = 0
_ACROSS = np.array([0.25, 0.5, 0.25])
"""Weights of the knuckles of three fingers."""
_WITHOUT_ENDS = np.array([0, 1, 2, 3, 5, 6, 9, 10, 13, 14, 17, 18])
_PALM_ASPECT = 1.1
"""Distance from the wrist to the middle knuckle of an open hand, in widths of the palm, as the
network returns them. Where a palm is seen from the side, the network's width is too small, and the
length tells the width.
"""
_FINGERS = (5, 9, 13, 17)
"""Knuckles of the four fingers; the thumb begins at 1."""

_RADII = np.array(
    [
        *(0.3, 0.2, 0.17, 0.14, 0.1),
        *(0.18, 0.16, 0.13, 0.1) * 4,
        0.45,
    ],
    np.float32,
)
"""Half the thickness of a hand at each of its points and at the end of the forearm, in widths of
the palm. Chosen on composed scenes.
"""
_PARTS = [[21, 0], [0, 1, 5, 9, 13, 17], [1, 2, 5], [2, 3], [3, 4]]
_PARTS += [[joint, joint + 1] for knuckle in _FINGERS for joint in range(knuckle, knuckle + 3)]
"""Points of the parts of a hand: each part is the hull of circles around its points."""
_FOREARM = 1.5
"""Length of the forearm that is drawn, in widths of the palm."""
_CORNERS = np.arange(12) * (2 * pi / 12)
_CIRCLE = np.column_stack([np.cos(_CORNERS), np.sin(_CORNERS)]).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Hand:
    """A hand in a frame."""

    points: Float32Array
    """`(21, 2)` in frame pixels: the wrist, then four points of each finger from palm to tip, first
    of the thumb's.
    """
    palm_px: float
    """Width of the palm, between the outer knuckles, also where it is seen from the side."""
    in_front: bool
    """Whether it reaches inside the face's outline; else it is near the face."""

    def knuckles(self) -> Float64Array:
        """Returns the middle of the knuckles, `(2,)`, which a hand points to from its wrist."""
        return _ACROSS @ self.points[[5, 9, 13]]

    def region(self) -> Region:
        """Returns where to look for the hand in the next frame."""
        angle = _angle(self.points[_WRIST], self.knuckles())
        axes = np.array([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]])
        upright = self.points[_WITHOUT_ENDS] @ axes
        low = upright.min(axis=0)
        high = upright.max(axis=0)
        size = high - low
        middle = (low + high) / 2
        middle[1] -= _HAND_SHIFT * size[1]
        x, y = (axes @ middle).tolist()
        side_px = _HAND_SCALE * float(size.max())
        return Region(x, y, side_px, angle)


class HandFinder:
    """Finds hands around faces; on the CPU; thread-safe."""

    def __init__(self) -> None:
        settings = SessionSettings(intra_op_threads=1)
        self._palm_graph = Session(_NETWORKS / f"{_PALM.name}.onnx", settings)
        self._hand_graph = Session(_NETWORKS / f"{_HAND}.onnx", settings)

    def find(
        self, picture: Picture, face: Face, before: Sequence[Hand], *, searches: bool
    ) -> tuple[Hand, ...]:
        """Returns the hands around `face`.

        Args:
            before: the hands around it in the frame before, which are followed.
            searches: whether to search for others; done where a hand is lost, too.
        """
        hands = list[Hand]()
        for hand in before:
            followed = self._hand_in(picture, face, hand.region(), _LEAST_FOLLOWED_SCORE)
            _add(followed, hands)
        is_lost = len(hands) < len(before)
        if (searches or is_lost) and len(hands) < _MOST_HANDS:
            for region in self._palms(picture, face):
                _add(self._new_hand_in(picture, face, region, hands), hands)
        return tuple(hands[:_MOST_HANDS])

    def _new_hand_in(
        self, picture: Picture, face: Face, region: Region, hands: Sequence[Hand]
    ) -> Hand | None:
        """Returns the hand in the `region` of a palm, if that is another one than `hands`."""
        if any(_is_same(region, hand.region()) for hand in hands):
            return None
        hand = self._hand_in(picture, face, region, _LEAST_PALM_SCORE)
        if hand is None:
            return None
        return self._hand_in(picture, face, hand.region(), _LEAST_NEW_SCORE)

    def _hand_in(
        self, picture: Picture, face: Face, region: Region, least_score: float
    ) -> Hand | None:
        """Returns the hand in `region`, if there is one that may be or come in front of `face`."""
        if not _is_near(region, face):
            return None
        image = region.cut(picture, _HAND_PX)
        landmarks, score, *_ = self._hand_graph.run({"image": image})
        spatial = landmarks.reshape(21, 3)
        palm_px = _palm_width(spatial) * region.side_px / _HAND_PX
        if score.item() < least_score or palm_px < _LEAST_PALM * longer_side(face):
            return None
        planar = spatial[:, :2] - np.float32(0.5)
        points = transformed(planar, region.to_frame(_HAND_PX))
        return Hand(points, palm_px, _is_in_front(points, face))

    def _palms(self, picture: Picture, face: Face) -> list[Region]:
        """Returns the regions of hands whose palms are seen near `face`, best first."""
        side_px = _SEARCHED * longer_side(face)
        x, y = box_middle(face).tolist()
        y += _SEARCHED_DOWN * side_px
        searched = Region(x, y, side_px, 0.0)
        boxes, scores = self._palm_graph.run({"image": searched.cut(picture)})
        palms = decoded(_PALM, boxes[0], scores[0, :, 0])
        corner = np.array([x - side_px / 2, y - side_px / 2], np.float32)
        return [_region_of_palm(palm) for palm in palms * side_px + corner]


def hand_mask(
    hands: Sequence[Hand], from_frame: Float64Array, size_px: tuple[int, int]
) -> UInt8Array:
    """Returns a coarse mask of those `hands` that are in front of the face: 255 where they are,
    with soft edges.

    Args:
        from_frame: `(2, 3)`, frame pixels → pixels of the mask.
        size_px: width and height of the mask.
    """
    parts = [part for hand in hands if hand.in_front for part in _outlines(hand)]
    return drawn([transformed(part, from_frame) for part in parts], size_px)


def _outlines(hand: Hand) -> list[Float32Array]:
    """Returns the outlines of the parts of a hand and of its forearm, `(n, 2)` in frame pixels."""
    wrist = hand.points[_WRIST]
    arm = wrist - hand.knuckles()
    arm /= max(float(np.linalg.norm(arm)), 1e-6)
    arm_end = wrist + arm * (_FOREARM * hand.palm_px)
    centers = np.vstack([hand.points, arm_end])
    radii = hand.palm_px * _RADII
    circles = centers[:, None] + radii[:, None, None] * _CIRCLE
    outlines = []
    for part in _PARTS:
        corners = circles[part].reshape(-1, 2).astype(np.float32)
        hull = cv2.convexHull(corners)
        outlines.append(np.asarray(hull[:, 0], np.float32))
    return outlines


def _palm_width(spatial: Float32Array) -> float:
    """Returns the width of a palm by a hand's points `(21, 3)`, in their unit."""
    width = float(np.linalg.norm(spatial[5] - spatial[17]))
    length = float(np.linalg.norm(spatial[_WRIST] - spatial[9]))
    return max(width, length / _PALM_ASPECT)


def _region_of_palm(palm: Float32Array) -> Region:
    """Returns the region of the hand of a palm, `(9, 2)` in frame pixels: two corners of its box,
    the wrist, two knuckles, and others.
    """
    angle = _angle(palm[2], palm[4])
    side_px = float((palm[1] - palm[0]).max())
    x, y = ((palm[0] + palm[1]) / 2).tolist()
    shift_px = _PALM_SHIFT * side_px
    x += shift_px * sin(angle)
    y -= shift_px * cos(angle)
    return Region(x, y, _PALM_SCALE * side_px, angle)


def _angle(wrist: Float32Array, knuckles: Float32Array | Float64Array) -> float:
    """Returns the clockwise rotation of a hand, 0 where it points up."""
    x, y = (knuckles - wrist).tolist()
    return atan2(y, x) + pi / 2


def _is_near(region: Region, face: Face) -> bool:
    """Whether a hand in `region` may be in front of the face within a few frames."""
    reach_px = region.side_px / 2 + _NEAR * longer_side(face)
    left, top, right, bottom = face.box.tolist()
    x_px = max(left - region.x_px, region.x_px - right, 0.0)
    y_px = max(top - region.y_px, region.y_px - bottom, 0.0)
    return hypot(x_px, y_px) < reach_px


def _is_same(one: Region, other: Region) -> bool:
    """Whether two regions are of the same hand."""
    distance_px = hypot(one.x_px - other.x_px, one.y_px - other.y_px)
    return distance_px < _SAME_HAND * max(one.side_px, other.side_px)


def _is_in_front(points: Float32Array, face: Face) -> bool:
    """Whether some of a hand's `points` are well inside the face's outline."""
    outline = box_corners(face) if face.landmarks is None else face.landmarks[OVAL]
    corners = np.ascontiguousarray(outline, np.float32)
    depths_px = [cv2.pointPolygonTest(corners, point, True) for point in points.tolist()]
    return max(depths_px) > _LEAST_DEPTH * longer_side(face)


def _add(hand: Hand | None, hands: list[Hand]) -> None:
    """Adds a hand to `hands` unless it is one of them."""
    if hand is None:
        return
    region = hand.region()
    if not any(_is_same(region, other.region()) for other in hands):
        hands.append(hand)
