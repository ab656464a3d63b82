"""What is in front of faces: hands, and what does not look like the face, with exact and steady
edges.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import cv2
import numpy as np

from latentsync_trt.compositing.appearance import (
    HALF_LEVEL,
    SIDE_PX,
    Appearance,
    FaceInSquare,
    disk,
    painted_area,
    remapped,
)
from latentsync_trt.compositing.hands import Hand, HandFinder, hand_mask
from latentsync_trt.compositing.outline import OVAL, drawn
from latentsync_trt.compositing.steady_cover import LEAST_COVERED_PX, Covered, FaceView, steadied
from latentsync_trt.face.align import (
    align,
    crop_size_px,
    cut,
    scaled_matrix,
    transformed,
)
from latentsync_trt.face.covered import UncoveredFace, covered_face, free_face
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import POINTS, face_of
from latentsync_trt.types import Face, Float32Array, Float64Array, FrameMask, Picture, UInt8Array

MASK_PX = 256
_EVIDENCE = 9.0
"""Squared distance from the face's appearance from which on a pixel is taken for something else
before edges are refined.
"""
_SURE_PX = 220
_BROAD_PX = 24.0
"""From so many pixels of the painted region on, in an area of at least this width, something is
there, and what differs less around them belongs to it; in free frames there are fewer than 180.
"""
_CLOSED_PX = 3
"""Holes and gaps of twice this width are closed."""
_CERTAIN_PX = 4
"""Pixels that lie deeper than this in what was seen are certain."""
_UNCERTAIN_PX = 7
"""An edge is searched for up to this far outside of what was seen."""
_CUT_MARGIN_PX = 6
"""What surrounds that: its colors are those of the face."""
_COVERED_LABELS = (cv2.GC_FGD, cv2.GC_PR_FGD)
"""What GrabCut calls a pixel that is certainly or probably covered."""
_CUT_ROUNDS = 1
"""A second round changed IoU by at most 0.013 in the 13 scenes in which that was compared."""
_CUT_SEED = 0
"""Edges do not depend on what else has drawn random numbers."""
_LEAST_BESIDE_PX = 10
"""With fewer pixels beside an object, nothing tells its colors from the face's."""

_FREE = 0.1
"""A pixel that is covered by less is learned."""
_LEARNED_MARGIN_PX = 3
"""The face is not learned so close to what is in front of it."""
_SOFT_PX = 1.2
_EDGE_GAIN = 1.6
"""A mask's edge is blurred by the first, and made steeper by the second: it is two pixels wide."""
_MOST_GAP_S = Fraction(1, 2)
"""After a longer gap, a mask begins anew; what the face looks like stays."""
_COVERED = 0.6
_COVERED_STILL = 0.45
"""Parts of a mouth, and what moves with it: from the first on it counts as covered, until less than
the second is: what is left would flicker.
"""
_LONGEST_COVER_S = Fraction(4)
"""Where FaceMesh sees a face, but the mouth looks different and covered for longer than this and no
hand is there, something else than the face was learned, as from a moment in which it was covered:
it is learned anew.
"""
_SEARCH_STEP_S = Fraction(1, 10)
"""Hands are searched for after so much time, where each frame is looked at."""
_LEARNED_FRAMES = 12
"""Frames from which on a face is known well enough not to be looked at in each."""
_MOST_TRACKS = 12
"""Tracks of which it is known what they look like."""


@dataclass(frozen=True, slots=True, eq=False)
class FrontMask(FrameMask):
    """What is in front of a face in one frame, `(256, 256)`; its edge is two pixels wide."""

    mouth_share: float
    """Part of the mouth mask within the face's outline that is covered, 0 to 1."""
    is_most: bool
    """Whether that is so much that the face is not to be painted."""


@dataclass(slots=True, eq=False)
class _FaceMemory:
    """What is remembered of the face of one track."""

    appearance: Appearance
    time_s: Fraction
    """Of its last frame."""
    visible_s: Fraction
    """When at least a part of the mouth was last seen."""
    step_s: Fraction = Fraction(0)
    """Time between that and the frame before, of those that were looked at."""
    motion_share: float = 1.0
    """See `covered_face`."""
    bias: complex | None = None
    """See `align`."""
    hands: tuple[Hand, ...] = ()
    searched_s: Fraction = -_SEARCH_STEP_S
    """When hands were searched for last."""
    covered: Covered | None = None
    """None where nothing was in front in the frame before."""
    is_most: bool = False
    """See `FrontMask`; in the frame before."""
    face: UncoveredFace | None = None
    """In the frame before; None before the first."""

    def is_quiet(self) -> bool:
        return self.covered is None and self.appearance.learned >= _LEARNED_FRAMES


OccluderState = dict[Hashable, _FaceMemory]
"""What is remembered of each track."""


class OccluderFinder:
    """Finds what is in front of the faces of tracks, frame by frame in their order; memory does not
    grow.
    """

    def __init__(self, mesher: MediaPipeDetector) -> None:
        self._mesher = mesher
        self._hands = HandFinder()
        self._tracks: dict[Hashable, _FaceMemory] = {}

    def find(
        self, picture: Picture, track_id: Hashable, face: Face, time_s: Fraction
    ) -> tuple[Face, FrontMask | None]:
        """Returns the face, with its points corrected behind an object, and what is in front of it;
        None if nothing is, or where FaceMesh finds no face.
        """
        landmarks = face.landmarks
        if landmarks is None or len(landmarks) != POINTS:
            landmarks = self._mesher.mesh(picture, face)
        if landmarks is None:
            return face, None
        track = self._track(track_id, time_s)
        bias = None if track is None else track.bias
        matrix, bias = align(face.points, bias, MASK_PX)
        from_frame = _square_from_frame(matrix)
        whole_view = cut(picture, from_frame, (MASK_PX, MASK_PX), outside=None)
        view = _small_view(whole_view, from_frame, landmarks, picture.shape)
        if track is None:
            track = _FaceMemory(Appearance(view.mesh), time_s, visible_s=time_s)
            self._tracks[track_id] = track
        track.bias = bias
        searches = track.is_quiet() or abs(time_s - track.searched_s) >= _SEARCH_STEP_S
        track.hands = self._hands.find(picture, face, track.hands, searches=searches)
        if searches:
            track.searched_s = time_s
        hands = hand_mask(track.hands, view.from_frame, (SIDE_PX, SIDE_PX))
        cover = _find_cover(track, view, hands)
        if cover is None:
            track.is_most = False
            track.visible_s = time_s
            track.face = free_face(picture, landmarks, track.face)
            return face, None
        mask = _front_mask(cover, view, from_frame, was_most=track.is_most)
        track.is_most = mask.is_most
        if mask.mouth_share < _COVERED or track.hands:
            track.visible_s = time_s
        elif time_s - track.visible_s > _LONGEST_COVER_S:
            del self._tracks[track_id]
            return face, None
        if track.face is None:
            return face, mask
        track.face = covered_face(
            self._mesher, picture, track.face, mask.levels, from_frame, track.motion_share
        )
        return _with_mesh(face, track.face.mesh), mask

    def is_quiet(self, track_ids: Iterable[Hashable]) -> bool:
        """Returns whether all these tracks are known well, and nothing was in front last."""
        tracks = [self._tracks.get(each) for each in track_ids]
        return all(each is not None and each.is_quiet() for each in tracks)

    def state(self) -> "OccluderState":
        """Returns what is remembered, to go back to by `restore`; what faces look like stays."""
        return {key: replace(track) for key, track in self._tracks.items()}

    def restore(self, state: "OccluderState") -> None:
        """Goes back to `state`, to look at frames before the last ones."""
        self._tracks = state

    def _track(self, track_id: Hashable, time_s: Fraction) -> _FaceMemory | None:
        """Returns what is remembered of a track; forgets the oldest of too many."""
        track = self._tracks.pop(track_id, None)
        if track is None:
            while len(self._tracks) >= _MOST_TRACKS:
                self._tracks.pop(next(iter(self._tracks)))
            return None
        self._tracks[track_id] = track
        if not 0 <= time_s - track.time_s <= _MOST_GAP_S:
            track.bias = None
            track.hands = ()
            track.covered = None
            track.face = None
        step_s = time_s - track.time_s
        if track.step_s > 0:
            track.motion_share = min(1.0, float(step_s / track.step_s))
        track.step_s = step_s
        track.time_s = time_s
        return track


def _square_from_frame(matrix: Float64Array) -> Float64Array:
    """Returns `(2, 3)`: frame pixels → pixels of the mask; `matrix`: to the upright crop."""
    width_px, height_px = crop_size_px(MASK_PX)
    return scaled_matrix(matrix, MASK_PX / width_px, MASK_PX / height_px)


def _small_view(
    whole: UInt8Array, from_frame: Float64Array, mesh: Float32Array, shape: tuple[int, ...]
) -> FaceView:
    """Returns a view of `SIDE_PX`; `mesh`: in pixels of a frame of this shape."""
    scale = SIDE_PX / MASK_PX
    to_small = scaled_matrix(from_frame, scale, scale)
    pixels = np.empty((SIDE_PX, SIDE_PX, 3), np.uint8)
    cv2.resize(whole, (SIDE_PX, SIDE_PX), dst=pixels, interpolation=cv2.INTER_AREA)
    bottom, right = shape[0] - 1, shape[1] - 1
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float32)
    inside = drawn([transformed(corners, to_small)], (SIDE_PX, SIDE_PX))
    small_mesh = transformed(mesh, to_small)
    outline = drawn([small_mesh[OVAL]], (SIDE_PX, SIDE_PX))
    is_face = np.minimum(outline, inside) >= HALF_LEVEL
    region = (painted_area() & is_face).astype(np.uint8)
    return FaceView(to_small, pixels, small_mesh, inside, region)


def _find_cover(track: _FaceMemory, view: FaceView, hands: UInt8Array) -> Float32Array | None:
    """Returns how much of each pixel of a view is covered, `(128, 128)` in [0, 1], or None, if
    nothing is; learns what the face looks like.
    """
    in_square = track.appearance.compare(view.pixels, view.mesh)
    is_inside = remapped(view.inside.astype(np.float32), in_square.to_view) >= HALF_LEVEL
    in_square = replace(in_square, distance=in_square.distance * is_inside)
    coarse = _coarse_cover(track.appearance, in_square, view, hands)
    exact = None if coarse is None else _with_exact_edges(coarse, view)
    covered = steadied(exact, view, track.covered)
    track.covered = covered
    is_free = is_inside
    if covered is not None:
        seen = covered.cover if coarse is None else np.maximum(covered.cover, coarse)
        seen = cv2.dilate(seen, disk(_LEARNED_MARGIN_PX))
        is_free &= remapped(np.asarray(seen, np.float32), in_square.to_view) < _FREE
    track.appearance.learn(in_square, is_free)
    return None if covered is None else covered.cover


def _coarse_cover(
    appearance: Appearance, in_square: FaceInSquare, view: FaceView, hands: UInt8Array
) -> Float32Array | None:
    """Returns where hands are or the face looks different, 1 or 0, before edges are exact; None if
    that is nowhere in the painted region.
    """
    cover = (hands >= HALF_LEVEL).astype(np.uint8)
    different = appearance.in_front(in_square)
    if different is not None:
        evidence = appearance.in_view(np.where(different, in_square.distance, 0), in_square)
        seen = (evidence > _EVIDENCE).astype(np.uint8)
        if not cover.any() and _is_broad(seen & view.region):
            whole = appearance.whole(in_square, different)
            seen |= appearance.in_view(whole.astype(np.float32), in_square) > 0.5
        cv2.morphologyEx(seen, cv2.MORPH_CLOSE, disk(_CLOSED_PX), dst=seen)
        outlines, _ = cv2.findContours(seen, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(seen, outlines, -1, 1, cv2.FILLED)
        cover |= seen
    if np.count_nonzero(cover & view.region) < LEAST_COVERED_PX:
        return None
    return cover.astype(np.float32)


def _is_broad(seen: UInt8Array) -> bool:
    """Returns whether what was seen, 1 or 0, is so large and wide that something is there."""
    if np.count_nonzero(seen) < _SURE_PX:
        return False
    _, size_px, _ = cv2.minAreaRect(np.asarray(cv2.findNonZero(seen)))
    return min(size_px) >= _BROAD_PX


def _with_exact_edges(coarse: Float32Array, view: FaceView) -> Float32Array:
    """Returns a cover whose edges in and near the painted region are those of the picture (GrabCut,
    Rother et al. 2004).
    """
    labels = _labels_of(coarse.astype(np.uint8))
    near = cv2.dilate(view.region, disk(_UNCERTAIN_PX + _CUT_MARGIN_PX))
    x, y, width, height = cv2.boundingRect(near & (labels != cv2.GC_BGD))
    rows = slice(max(y - _CUT_MARGIN_PX, 0), y + height + _CUT_MARGIN_PX)
    columns = slice(max(x - _CUT_MARGIN_PX, 0), x + width + _CUT_MARGIN_PX)
    part = np.ascontiguousarray(labels[rows, columns])
    is_covered = np.isin(part, _COVERED_LABELS)
    if is_covered.any() and np.count_nonzero(~is_covered) >= _LEAST_BESIDE_PX:
        cv2.setRNGSeed(_CUT_SEED)
        pixels = np.ascontiguousarray(view.pixels[rows, columns])
        of_face = np.zeros((1, 65))
        of_object = np.zeros((1, 65))
        whole = (0, 0, *pixels.shape[1::-1])
        cv2.grabCut(pixels, part, whole, of_face, of_object, _CUT_ROUNDS, cv2.GC_INIT_WITH_MASK)
    exact = coarse.copy()
    exact[rows, columns] = np.isin(part, _COVERED_LABELS)
    return exact


def _labels_of(cover: UInt8Array) -> UInt8Array:
    """Returns what GrabCut is told of each pixel of a cover, 1 or 0: whether it is certainly or
    probably covered, or not.
    """
    labels = np.full(cover.shape, cv2.GC_BGD, np.uint8)
    labels[cv2.dilate(cover, disk(_UNCERTAIN_PX)) > 0] = cv2.GC_PR_BGD
    labels[cover > 0] = cv2.GC_PR_FGD
    labels[cv2.erode(cover, disk(_CERTAIN_PX)) > 0] = cv2.GC_FGD
    return labels


def _front_mask(
    cover: Float32Array, view: FaceView, from_frame: Float64Array, *, was_most: bool
) -> FrontMask:
    """Returns the mask of a cover; `from_frame`: to the mask; `was_most`: in the frame before."""
    large = cv2.resize(cover, (MASK_PX, MASK_PX), interpolation=cv2.INTER_LINEAR)
    soft = cv2.GaussianBlur(large, (0, 0), _SOFT_PX)
    steep = np.clip((soft - 0.5) * _EDGE_GAIN + 0.5, 0, 1)
    levels = np.rint(steep * 255).astype(np.uint8)
    covered_px = int(np.count_nonzero((cover >= 0.5) & (view.region > 0)))
    share = covered_px / max(int(np.count_nonzero(view.region)), 1)
    is_most = share >= (_COVERED_STILL if was_most else _COVERED)
    return FrontMask(from_frame, levels, share, is_most)


def _with_mesh(face: Face, mesh: Float32Array) -> Face:
    """Returns the face with other points and the same score."""
    placed = face_of(mesh, 0)
    return Face(placed.box, placed.points, face.score, placed.landmarks)
