"""Face detection with MediaPipe's BlazeFace and FaceMesh networks; see Bazarevsky et al. 2019."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, inf, pi
from pathlib import Path

import cv2
import numpy as np

from latentsync_trt.face.blaze import BlazeModel, decoded
from latentsync_trt.face.geometry import (
    SAME_FACE_IOU,
    Region,
    box_middle,
    box_size,
    face_of,
    overlap,
)
from latentsync_trt.runtime.engines.session import Session, SessionSettings
from latentsync_trt.types import Face, Float32Array, Picture, UInt8Array

_ASSETS = Path(__file__).resolve().parents[1] / "assets" / "face"

_MESH = "face_mesh"
_LEAST_MESH_LOGIT = 0.0
"""The least score of a mesh: a probability of one half."""
_MAX_CANDIDATES = 8
"""Most candidates that the mesh network examines per frame or tile, best first."""
_UPRIGHT_LOGIT = 14.0
"""The score from which on a mesh is certainly not upside down. A forehead looks like a chin then:
the mesh converges on faces that are turned by 180° to its region, with logits of up to 9.1 in 220
pictures; on those that are not, logits begin at 18.9.
"""
_MAX_MESH_RUNS = 8
"""For a head turned by 45° to 90°, the mesh needs up to seven runs from BlazeFace's box to
converge.
"""
_TILE_PX = 480
"""A tenth of it is the smallest face worth painting: BlazeFace finds 9 of 10 a tenth as high as its
square picture.
"""
_MOST_TILES_ALONG = 9
"""Tiles along the longer side; of larger pictures than 4K, larger tiles are taken."""
_TILE_OVERLAP = 0.25
"""Part of a tile that the next one repeats, so that a face which is too small for the next larger
search is whole in one tile, or nearly so.
"""

_KEYPOINTS = 6
"""Points of a face that BlazeFace returns: the eyes, then those that are not used."""
SHORT_RANGE = BlazeModel("blaze_short", 128, ((8, 2), (16, 6)), _KEYPOINTS, 0.5)
"""Three of its four levels share stride 16, so its cells there have 3 × 2 anchors."""
FULL_RANGE = BlazeModel("blaze_full", 192, ((4, 1),), _KEYPOINTS, 0.6)


class MediaPipeDetector:
    """BlazeFace finds faces, the full-range model first; FaceMesh finds their points. On the CPU;
    thread-safe.
    """

    def __init__(self) -> None:
        # One CPU thread per graph is enough and leaves the others for other stages.
        self._graphs = {
            name: Session(_ASSETS / f"{name}.onnx", SessionSettings(intra_op_threads=1))
            for name in (FULL_RANGE.name, SHORT_RANGE.name, _MESH)
        }

    def detect(self, frame: UInt8Array) -> list[Face]:
        """Returns the faces in `frame`, uint8 `(H, W, 3)` RGB, at any angle, each confirmed by its
        mesh.
        """
        return self.search(frame, frame, ()) or self.search(frame, frame, (), small=True)

    def search(
        self,
        picture: Picture,
        overview: UInt8Array,
        followed: Sequence[Face],
        *,
        small: bool = False,
    ) -> list[Face]:
        """Returns faces in `picture` other than those `followed`, at any angle, each confirmed by
        its mesh.

        Args:
            overview: the whole picture, uint8 `(h, w, 3)` RGB, of any size of at least 192 px.
            small: whether to search in tiles of the picture, too, where faces are seen that are a
                twelfth as high.
        """
        faces = list(followed)
        scale = np.divide(picture.shape[1::-1], overview.shape[1::-1]).astype(np.float32)
        for model in (FULL_RANGE, SHORT_RANGE):
            self._confirm(picture, self._candidates(overview, model) * scale, faces)
            if faces:
                break
        if small:
            whole = np.asarray(picture)
            for rows, columns in _tiles(picture.shape[1], picture.shape[0]):
                candidates = self._candidates(whole[rows, columns], FULL_RANGE)
                corner = np.array([columns.start, rows.start], np.float32)
                self._confirm(picture, candidates + corner, faces)
        return faces[len(followed) :]

    def _confirm(self, picture: Picture, candidates: Float32Array, faces: list[Face]) -> None:
        """Adds those of `candidates (n, 8, 2)` to `faces` that have a mesh and are not in it
        yet.
        """
        for points in candidates[:_MAX_CANDIDATES]:
            if any(_is_middle_in(points, face) for face in faces):
                continue
            box = points[:2].reshape(4)
            face = self._face_in(picture, Region.of(box, points[2], points[3]))
            if face is not None and overlap(face, faces) <= SAME_FACE_IOU:
                faces.append(face)

    def follow(self, frame: Picture, previous: Face) -> Face | None:
        """Returns the face near its position in the previous frame; None if there is none."""
        return self._face_in(frame, Region.around(previous))

    def mesh(self, picture: Picture, around: Face) -> Float32Array | None:
        """Returns the points (x, y) of the face near `around`, float32 `(468, 2)` in pixels, or
        None.
        """
        result = self.mesh_in(picture, Region.around(around))
        return None if result is None else result[0][:, :2]

    def mesh_in(self, frame: Picture, region: Region) -> tuple[Float32Array, float] | None:
        """Returns the mesh `(468, 3)` float32 (x, y, depth in pixels) of the face in `region` and
        its logit, or None.
        """
        landmarks, logits = self._graphs[_MESH].run({"image": region.cut(frame)})
        logit = float(logits.item())
        if logit < _LEAST_MESH_LOGIT:
            return None
        return region.mesh(landmarks), logit

    def _face_in(self, frame: Picture, region: Region) -> Face | None:
        """Returns the face in or near `region`, which may be upside down there."""
        face, logit = self._converged(frame, region)
        if logit >= _UPRIGHT_LOGIT:
            return face
        turned, logit = self._converged(frame, replace(region, angle=region.angle + pi))
        return turned if logit >= _UPRIGHT_LOGIT else face

    def _converged(self, frame: Picture, region: Region) -> tuple[Face | None, float]:
        """Returns the face in or near `region` and the logit of its score; None and -inf if there
        is none.

        The mesh runs again on the region of its own result until that stops moving; before, its
        points lie beside the face although the score is 1.
        """
        for _ in range(_MAX_MESH_RUNS):
            result = self.mesh_in(frame, region)
            if result is None:
                break
            face = face_of(*result)
            next_region = Region.around(face)
            if next_region.is_near(region):
                return face, result[1]
            region = next_region
        return None, -inf

    def _candidates(self, frame: UInt8Array, model: BlazeModel) -> Float32Array:
        """Returns faces as `decoded` does, in pixels of the frame."""
        square, corner = _letterboxed(frame, model.side_px)
        channels_first = np.ascontiguousarray(square.transpose(2, 0, 1)[None])
        image = channels_first / 127.5 - 1
        boxes, scores = self._graphs[model.name].run({"image": image})
        faces = decoded(model, boxes[0], scores[0, :, 0])
        longest_px = max(frame.shape[:2])
        return (faces - corner / model.side_px) * longest_px


def _letterboxed(frame: UInt8Array, side_px: int) -> tuple[Float32Array, Float32Array]:
    """Returns the frame in the middle of a black square, float32 `(side, side, 3)`, and the place
    (x, y) of its upper left corner.
    """
    height, width = frame.shape[:2]
    scale = side_px / max(height, width)
    width = max(1, round(width * scale))
    height = max(1, round(height * scale))
    left = (side_px - width) // 2
    top = (side_px - height) // 2
    square = np.zeros((side_px, side_px, 3), np.float32)
    square[top : top + height, left : left + width] = cv2.resize(
        frame, (width, height), interpolation=cv2.INTER_AREA
    )
    return square, np.array([left, top], np.float32)


def _is_middle_in(points: Float32Array, face: Face) -> bool:
    """Whether the middle of a candidate's box `points[:2]` is in the middle half of a face's."""
    middle = points[:2].mean(axis=0)
    return bool((np.abs(middle - box_middle(face)) < box_size(face) / 4).all())


def _tiles(width_px: int, height_px: int) -> list[tuple[slice, slice]]:
    """Returns rows and columns of overlapping squares that cover a picture; none for one hardly
    larger than a tile.
    """
    longest = max(width_px, height_px)
    step = 1 - _TILE_OVERLAP
    if longest * step < _TILE_PX:
        return []
    side = max(_TILE_PX, ceil(longest / (1 + (_MOST_TILES_ALONG - 1) * step)))
    return list(product(_tiles_along(height_px, side), _tiles_along(width_px, side)))


def _tiles_along(length_px: int, side_px: int) -> Iterator[slice]:
    """Yields where tiles lie along one side of a picture."""
    room = length_px - side_px
    count = 1 + max(0, ceil(room / (side_px * (1 - _TILE_OVERLAP))))
    for number in range(count):
        start = round(number * room / max(1, count - 1))
        yield slice(start, start + side_px)
