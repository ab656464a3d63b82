"""What the face of a track looks like, learned while it is seen: what looks different is in front
of it.

All frames are brought to the shape of the track's first mesh. For each pixel of that square, mean
and variance of four features are known, of which none changes with the brightness of the light and
only one along with a soft shadow. A smooth change of the features over the whole face is light.
"""

from dataclasses import dataclass
from functools import cache
from math import log

import cv2
import numpy as np

from latentsync_trt.compositing.outline import LIPS, OVAL, drawn
from latentsync_trt.face.align import mouth_mask
from latentsync_trt.types import BoolArray, Float32Array, Float64Array, UInt8Array

SIDE_PX = 128
"""Side of the square: half of what a network of 256 px sees; noise and small errors of the mesh
matter less.
"""
_GRID_SIDE = 33
"""Points along a side at which the map of the square is computed; it is linear between them."""
_SPLAT_PX = 0.8
_LEAST_SPLAT = 0.1
"""Deviation by which pixels that come from the square are spread; where less than the second of one
comes, there is nothing.
"""
_STIFFNESS = 20.0
"""By how much maps are smoothed: points of a mesh that lie on each other, as those of closed lips
do, need not agree.
"""
_FEATURES = 4
"""The logarithms of red and blue in relation to green, those of brightness in relation to its
surroundings, and brightness itself.
"""
_DARK_LEVELS = 10.0
"""Added to levels before their logarithm: the noise of dark colors would be large there."""
_WHITE = log(250 + _DARK_LEVELS)
"""Channels that should be brighter are clipped."""
_BLUR_PX = 1.0
"""Deviation of the blur before comparing: noise, and pores that a mesh does not follow."""
_SURROUNDINGS_PX = 8.0
"""Deviation of the surroundings: light changes over longer distances, textures over shorter
ones.
"""
_SURROUNDINGS_SHRINK = 4
"""By how much a picture is made smaller before it is blurred so much."""
_LEAST_SPREAD = np.array([0.07, 0.07, 0.12, 0.45], np.float32)
"""Deviation of the features of a face that is not known yet. Shadows on a face change brightness as
much as objects do, so only what is very bright or dark counts.
"""
_PRIOR_FRAMES = 12.0
"""Frames of which as many as this are as sure as the deviation above."""
_MESH_ERROR_PX = 1.3
"""Deviation of a mesh from what the square shows."""
_MEMORY_FRAMES = 500.0
"""A mean is over about this many frames: older ones are forgotten."""
_REFRESH_FRAMES = 8
"""Frames after which the variance, which changes slowly, is computed again."""
_LIGHT_STEP_PX = 5
"""Each fifth pixel along both sides says enough about the light."""
_LIGHT_FEATURES = (0, 1, 3)
"""Those that change with the light."""
_LIGHT_ROUNDS = 3
"""Times that the light is fitted, with less weight for what is far from the fit before."""
_LEAST_LIGHT_SPREAD = 0.02
"""What is closer to the light than this counts fully."""
_MOST_DISTANCE = 60.0
"""Larger squared distances say nothing more."""
_DISTANCE_BLUR_PX = 1.2
"""Deviation of the blur of distances: single far pixels are noise."""

_FAR = 12.0
_NOT_NEAR = 6.0
_NOT_NEAR_AT_LIPS = 10.0
"""Squared distances: where something begins in front of a face, and how far it reaches; an open
mouth is not part of what touches it.
"""
_POOLED_PX = 2.0
_LEAST_POOLED = 2.5
_MOST_POOLED = 14.0
_POOLED_SHARE = 0.5
"""What belongs to an object that was seen differs by this part of what is usual for the object,
within limits: a cup of the color of the skin differs little, but everywhere. Squared distances are
pooled with this deviation, each with at most twice the limit: then the edge stays where it is.
"""
_LEAST_FAR_PX = 25
_MARGIN_PX = 9
_LIPS_MARGIN_PX = 4
"""Something begins at so many pixels where a mouth is painted, below eyes that blink. They lie
farther than these margins from the face's edge, which a head shows more or less of as it turns, and
from the lips, which show teeth and tongue: what covers a mouth covers the skin around it, too.
"""
HALF_LEVEL = 128
"""Level of a pixel, of 255, that is covered by half."""
_HUE_FEATURES = 2
"""The first features, which say what color a pixel has, whatever the light."""
_SKIN_SPREAD = 0.12
"""How far the color of the skin of a face differs from place to place, as a logarithm; further away
is another color.
"""
_FIRST_FRAMES = 3
"""Frames that nothing is compared with."""


@dataclass(frozen=True, slots=True, eq=False)
class FaceInSquare:
    """How a face in one frame looks, in the square of its track."""

    distance: Float32Array
    """Sum of the squared distances of the features, in deviations, `(128, 128)`; 0 where nothing is
    known.
    """
    features: Float32Array
    """Without the light, `(4, 128, 128)`."""
    to_view: Float32Array
    """The place of each pixel of the square in the view, `(128, 128, 2)`."""


class Appearance:
    """What the face of one track looks like.

    Args:
        mesh: the first mesh of the track, float32 `(468, 2)`, in pixels of the aligned view of
            `SIDE_PX`.
    """

    def __init__(self, mesh: Float32Array) -> None:
        self._spline = _spline(mesh, _grid())
        self._mean = np.zeros((_FEATURES, SIDE_PX, SIDE_PX), np.float32)
        self._variance = np.zeros_like(self._mean)
        self._precision = np.zeros_like(self._mean)
        self._frames = np.zeros((SIDE_PX, SIDE_PX), np.float32)
        """Frames in which each pixel was seen."""
        self.learned = 0
        """Frames that were added."""
        size_px = (SIDE_PX, SIDE_PX)
        outline = drawn([mesh[OVAL]], size_px)
        lips = cv2.dilate(drawn([mesh[LIPS]], size_px), disk(_LIPS_MARGIN_PX))
        self._inside = (outline > HALF_LEVEL).astype(np.float32)
        self._reached = np.where(lips < HALF_LEVEL, _NOT_NEAR, _NOT_NEAR_AT_LIPS)
        outline[:, [0, -1]] = 0  # so that the margin is there, too, where a view ends
        is_inner = cv2.erode(outline, disk(_MARGIN_PX)) > HALF_LEVEL
        self._begins = painted_area() & is_inner & (lips < HALF_LEVEL)
        """Where something may begin."""

    def compare(self, view: UInt8Array, mesh: Float32Array) -> FaceInSquare:
        """Returns how far a face is from what is known of it.

        Args:
            view: the aligned face, uint8 `(128, 128, 3)` RGB.
            mesh: float32 `(468, 2)` in its pixels.
        """
        # Not by BLAS, whose threads wait for each other where cores are busy.
        places = np.einsum("ij,kj->ki", self._spline, np.ascontiguousarray(mesh.T))
        to_view = _dense(np.ascontiguousarray(places.T))
        upright = remapped(view.astype(np.float32), to_view)
        features = _features(upright)
        if not self.learned:
            return FaceInSquare(np.zeros((SIDE_PX, SIDE_PX), np.float32), features, to_view)
        light = self._light(features)
        features -= light
        self._restore_clipped(features, light)
        if self.learned % _REFRESH_FRAMES == 1:
            self._precision = self._inverse_variance()
        difference = features - self._mean
        difference *= difference
        difference *= self._precision
        distance = np.minimum(difference.sum(axis=0), np.float32(_MOST_DISTANCE))
        distance *= self._inside
        cv2.GaussianBlur(distance, (0, 0), _DISTANCE_BLUR_PX, dst=distance)
        return FaceInSquare(distance, features, to_view)

    def in_front(self, face: FaceInSquare) -> BoolArray | None:
        """Returns what is in front of the face in the square, `(128, 128)`; None if nothing is."""
        is_far = (face.distance > _FAR) & self._begins
        if self.learned < _FIRST_FRAMES or np.count_nonzero(is_far) < _LEAST_FAR_PX:
            return None
        seen = _areas_around(is_far, face.distance > self._reached, _LEAST_FAR_PX)
        if not seen.any():
            return None
        if self._has_left(face.features, seen):
            self._frames[seen] = 0
            return None
        return seen

    def whole(self, face: FaceInSquare, seen: BoolArray) -> BoolArray:
        """Returns the object of which `seen (128, 128)` was in front, without what it covers of the
        lips, whose own looks vary.
        """
        differs = _pooled(face.distance, _LEAST_POOLED) > _LEAST_POOLED
        differs &= self._reached == _NOT_NEAR
        differs |= seen
        is_object = _areas_around(seen, differs, 1)
        usual = float(np.median(face.distance[is_object]))
        least = float(np.clip(_POOLED_SHARE * usual, _LEAST_POOLED, _MOST_POOLED))
        return is_object & (_pooled(face.distance, least) > least)

    def _has_left(self, features: Float32Array, is_far: BoolArray) -> bool:
        """Returns whether what looks different is the face, and what was there before was in front
        of it: it has the colors of the upper face, which those that were learned have not.
        """
        is_upper = (self._inside > 0) & ~painted_area() & ~is_far
        if not is_upper.any():
            return False
        skin = np.median(features[:_HUE_FEATURES, is_upper], axis=1)
        now = np.median(features[:_HUE_FEATURES, is_far], axis=1)
        learned = np.median(self._mean[:_HUE_FEATURES, is_far], axis=1)
        away = float(np.abs(now - skin).max())
        was_away = float(np.abs(learned - skin).max())
        return away < _SKIN_SPREAD and away + _SKIN_SPREAD < was_away

    def learn(self, face: FaceInSquare, is_free: BoolArray) -> None:
        """Adds a frame; `is_free (128, 128)`: where nothing is in front of the face."""
        self.learned += 1
        np.minimum(self._frames + is_free, np.float32(_MEMORY_FRAMES), out=self._frames)
        rate = is_free / np.maximum(self._frames, np.float32(1))
        difference = face.features - self._mean
        step = difference * rate
        self._mean += step
        difference *= difference - step
        difference -= self._variance
        difference *= rate
        self._variance += difference

    def in_view(self, levels: Float32Array, face: FaceInSquare) -> Float32Array:
        """Returns levels of the square, `(128, 128)`, as they are in the view of a face, outside of
        which they are 0: means of those that come close to a pixel.
        """
        is_inside = self._inside > 0
        nearest = np.rint(face.to_view[is_inside]).clip(0, SIDE_PX - 1)
        x, y = nearest.astype(np.int64).T
        places = y * SIDE_PX + x
        pixels = SIDE_PX * SIDE_PX
        total = np.bincount(places, weights=levels[is_inside], minlength=pixels)
        count = np.bincount(places, minlength=pixels)
        sums = np.stack([total, count], axis=-1).astype(np.float32)
        near = cv2.GaussianBlur(sums.reshape(SIDE_PX, SIDE_PX, 2), (0, 0), _SPLAT_PX)
        total, count = np.moveaxis(near, -1, 0)
        return total / np.maximum(count, _LEAST_SPLAT)

    def _light(self, features: Float32Array) -> Float32Array:
        """Returns what the light changes in features, in comparison with the mean, `(4, 128, 128)`:
        planes, to which what is in front of the face, as the minority, does not count.
        """
        places = slice(None, None, _LIGHT_STEP_PX)
        is_seen = (self._inside * self._frames)[places, places] > 0
        planes = _planes()
        sampled = planes[:, places, places][:, is_seen]
        changes = []
        for index in _LIGHT_FEATURES:
            change = features[index] - self._mean[index]
            changes.append(change[places, places][is_seen])
        light = np.zeros_like(features)
        factors = _robust_fit(sampled, np.array(changes)).tolist()
        for index, (constant, slope_x, slope_y) in zip(_LIGHT_FEATURES, factors, strict=True):
            light[index] += constant + slope_x * planes[1, :1] + slope_y * planes[2, :, :1]
        return light

    def _restore_clipped(self, features: Float32Array, light: Float32Array) -> None:
        """Adds to features what is missing where the light is so bright that a channel of the face
        must be clipped.
        """
        red_green, blue_green, _, bright = self._mean + light
        green = bright - (red_green + blue_green) / 3
        channels = np.stack([green + red_green, green, green + blue_green])
        red, green, blue = np.maximum(channels - _WHITE, 0)
        features[0] += red - green
        features[1] += blue - green

    def _inverse_variance(self) -> Float32Array:
        """Returns one over the variance of each feature at each pixel: that of the frames, at least
        half of what is usual, and what an inexact mesh adds where the face has edges.
        """
        usual = _LEAST_SPREAD[:, None, None] ** 2
        seen = self._variance * self._frames + usual * _PRIOR_FRAMES
        variance = np.maximum(seen / (self._frames + _PRIOR_FRAMES), usual / 2)
        for mean, total in zip(self._mean, variance, strict=True):
            slope_x = cv2.Sobel(mean, cv2.CV_32F, 1, 0, scale=0.125)
            slope_y = cv2.Sobel(mean, cv2.CV_32F, 0, 1, scale=0.125)
            total += (slope_x * slope_x + slope_y * slope_y) * _MESH_ERROR_PX**2
        return 1 / variance


@cache
def painted_area() -> BoolArray:
    """Returns where a mouth is painted in an aligned view, `(128, 128)`."""
    return mouth_mask(2 * SIDE_PX)[::2, ::2] < 0.5


def remapped(picture: Float32Array, places: Float32Array) -> Float32Array:
    """Returns samples of a picture at `places (h, w, 2)`, x and y; outside of the picture, those at
    its edge.
    """
    x = np.ascontiguousarray(places[..., 0])
    y = np.ascontiguousarray(places[..., 1])
    samples = np.empty((*x.shape, *picture.shape[2:]), np.float32)
    cv2.remap(picture, x, y, cv2.INTER_LINEAR, samples, cv2.BORDER_REPLICATE)
    return samples


def _areas_around(seen: BoolArray, reached: BoolArray, least_px: int) -> BoolArray:
    """Returns those connected areas of `reached` of which at least `least_px` were seen."""
    count, labels = cv2.connectedComponents(reached.astype(np.uint8))
    is_part = np.bincount(labels[seen], minlength=count) >= least_px
    return is_part[labels]


def _pooled(distance: Float32Array, limit: float) -> Float32Array:
    """Returns squared distances of at most twice a limit as they are around each pixel."""
    clipped = np.minimum(distance, np.float32(2 * limit))
    return np.asarray(cv2.GaussianBlur(clipped, (0, 0), _POOLED_PX), np.float32)


def _features(picture: Float32Array) -> Float32Array:
    """Returns `(4, h, w)` of a picture; see `_FEATURES`."""
    blurred = cv2.GaussianBlur(picture, (0, 0), _BLUR_PX)
    logs = cv2.log(blurred + np.float32(_DARK_LEVELS))
    features = np.empty((_FEATURES, *picture.shape[:2]), np.float32)
    red, green, blue = cv2.split(logs)
    features[0] = red - green
    features[1] = blue - green
    features[3] = (red + green + blue) / 3
    features[2] = features[3] - _surroundings(features[3])
    return features


def _surroundings(levels: Float32Array) -> Float32Array:
    """Returns a picture that is blurred so much that a fourth of its size is enough for that."""
    small_px = (SIDE_PX // _SURROUNDINGS_SHRINK, SIDE_PX // _SURROUNDINGS_SHRINK)
    small = cv2.resize(levels, small_px, interpolation=cv2.INTER_AREA)
    blurred = cv2.GaussianBlur(small, (0, 0), _SURROUNDINGS_PX / _SURROUNDINGS_SHRINK)
    return np.asarray(cv2.resize(blurred, (SIDE_PX, SIDE_PX)), np.float32)


def _robust_fit(columns: Float32Array, values: Float32Array) -> Float32Array:
    """Returns the factors `(m, 3)` of `columns (3, n)` whose sums are closest to `values (m, n)`;
    those far away count less and less.
    """
    errors = values - np.median(values, axis=1, keepdims=True)
    usual_error = np.median(np.abs(errors), axis=1, keepdims=True)
    spread = 1.5 * usual_error + _LEAST_LIGHT_SPREAD
    ridge = np.diag([0, 2, 2]).astype(np.float32)
    factors = np.zeros((len(values), len(columns)), np.float32)
    for _ in range(_LIGHT_ROUNDS):
        trust = 1 / (1 + (errors / spread) ** 2) ** 2
        weighted = columns * trust[:, None]
        wanted = np.einsum("mcn,mn->mc", weighted, values)
        products = weighted @ columns.T + ridge
        factors = np.linalg.solve(products, wanted[..., None])[..., 0]
        errors = values - factors @ columns
    return factors


@cache
def _planes() -> Float32Array:
    """Returns a constant, and slopes in x and y, from -1 to 1: `(3, 128, 128)`."""
    y, x = np.mgrid[-1 : 1 : SIDE_PX * 1j, -1 : 1 : SIDE_PX * 1j]
    return np.stack([np.ones_like(x), x, y]).astype(np.float32)


def disk(radius_px: int) -> UInt8Array:
    """Returns the kernel that widens or narrows shapes by `radius_px`."""
    side_px = 2 * radius_px + 1
    return np.asarray(cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side_px, side_px)), np.uint8)


def _grid() -> Float32Array:
    """Returns places all over the square, row by row, `(n, 2)`."""
    along = np.linspace(0, SIDE_PX - 1, _GRID_SIDE)
    x, y = np.meshgrid(along, along)
    return np.column_stack([x.ravel(), y.ravel()]).astype(np.float32)


def _dense(values: Float32Array) -> Float32Array:
    """Returns values at the grid `(n, 2)` for each pixel, `(128, 128, 2)`."""
    coarse = values.reshape(_GRID_SIDE, _GRID_SIDE, 2)
    step = (_GRID_SIDE - 1) / (SIDE_PX - 1)
    to_grid = np.array([[step, 0, 0], [0, step, 0]])
    dense = np.empty((SIDE_PX, SIDE_PX, 2), np.float32)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    cv2.warpAffine(coarse, to_grid, (SIDE_PX, SIDE_PX), dense, flags, cv2.BORDER_REPLICATE)
    return dense


def _spline(nodes: Float32Array, places: Float32Array) -> Float32Array:
    """Returns the matrix `(m, n)` that computes a smoothed thin-plate spline at `places (m, 2)`
    from its values at `nodes (n, 2)`.
    """
    count = len(nodes)
    bending = _bending(nodes, nodes) + _STIFFNESS * np.eye(count)
    affine = _affine(nodes)
    system = np.block([[bending, affine], [affine.T, np.zeros((3, 3))]])
    wanted = np.hstack([_bending(places, nodes), _affine(places)])
    factors = np.linalg.solve(system, wanted.T)[:count]
    return np.ascontiguousarray(factors.T, np.float32)


def _affine(places: Float32Array) -> Float64Array:
    return np.hstack([np.ones((len(places), 1)), places])


def _bending(places: Float32Array, nodes: Float32Array) -> Float64Array:
    """Returns the kernel of thin plates, r² log r, `(m, n)`."""
    offsets = places[:, None].astype(np.float64) - nodes[None]
    squared = (offsets * offsets).sum(axis=-1)
    return squared * np.log(np.maximum(squared, 1e-9)) / 2
