"""Pastes painted faces into the frames of a clip; state per track keeps what is pasted steady."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from latentsync_trt.config import Paste
from latentsync_trt.face.align import inverse, moved, moved_face
from latentsync_trt.face.compositor import FEATHER_PERCENT, Finish, composite
from latentsync_trt.face.geometry import POINTS
from latentsync_trt.face.scene import CROP_PX, OVAL, Scene, correction, covering, generated_of, scene_of
from latentsync_trt.types import AlignedFace, Face, Float32Array, Mesher, Patch, Picture, UInt16Array

_CHIN_PERCENT = 2.0
"""How far a chin may reach below its outline, in percent of the crop's side: beards do."""

_SHAPE_HALF_LIFE_S, _COLOR_HALF_LIFE_S = 0.04, 0.125
"""Of what is remembered in running means: light changes slowly, and its estimates are noisy."""

_MEMORY_S = 1
"""The state of tracks that ended is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Pasted:
    """What a frame gets.

    `source_mesh`, `painted_mesh`: FaceMesh's points of the frame's own face and of the painted one,
    float32 `(468, 2)` in frame pixels, None where there is no face.
    """

    patch: Patch
    source_mesh: Float32Array | None
    painted_mesh: Float32Array | None


@dataclass(frozen=True, slots=True, eq=False)
class InspectedFace:
    """What a frame alone tells of a painted face: its `scene`, points `(468, 2)` in it, and color correction."""

    scene: Scene
    source_mesh: Float32Array | None
    painted_mesh: Float32Array | None
    color: Float32Array | None


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Running means of a track: outlines `(36, 2)` in scene pixels, color correction `(2, 3)`; None = not yet."""

    time_s: Fraction
    source: Float32Array | None = None
    painted: Float32Array | None = None
    color: Float32Array | None = None


class Paster:
    """Pastes painted faces, frame by frame.

    Args:
        mesher: finds the outline of painted faces.
        mask: float32 `(R, R)` in [0, 1], 1 = kept.
        paste: "face" pastes within the outline of the source's and the painted face, "mask" all that was painted.
    """

    def __init__(self, mesher: Mesher, mask: Float32Array, *, paste: Paste = "face") -> None:
        self._mesher, self._mask, self._whole = mesher, mask, paste == "mask"
        self._generated = generated_of(mask)
        self._tracks: dict[int, _State] = {}

    def inspect_face(self, picture: Picture, face: AlignedFace, painted: UInt16Array, tracked: Face) -> InspectedFace:
        """What `paste` needs of the frame, with the same arguments; more than half of the work, for another thread."""
        scene = scene_of(picture, face, painted, self._generated)
        source_mesh, painted_mesh = self._meshes(scene, tracked)
        color = None
        if source_mesh is not None and painted_mesh is not None:
            color = correction(scene, source_mesh, painted_mesh)
        return InspectedFace(scene, source_mesh, painted_mesh, color)

    def paste(
        self,
        picture: Picture,
        face: AlignedFace,
        painted: UInt16Array,
        inspected: InspectedFace,
        track_id: int,
        time_s: Fraction,
    ) -> Pasted:
        """Returns the painted face as a patch of the frame; the mask alone decides where no outline is known.

        Args:
            picture: uint8 `(H, W, 3)` RGB. face: the aligned face that was painted.
            painted: uint16 `(r, r, 3)` RGB, 257 × the 8-bit level; r ≥ R, as an enhancer may enlarge it.
            inspected: what `inspect_face` found. track_id: frames of one track share their state.
            time_s: of the frame, not before that of the last one.
        """
        meshes = inspected.source_mesh, inspected.painted_mesh
        source, new = (None if mesh is None else mesh[OVAL] for mesh in meshes)
        state = self._remembered(track_id, time_s, source, new, inspected.color)
        back = inverse(inspected.scene.matrix)
        steady, within = (
            tuple(moved(outline, back) for outline in self._outlines(*outlines))
            for outlines in ((state.source, state.painted), (source, new))
        )
        finish = Finish(steady, within, state.color)
        patch = composite(picture, face, painted, self._mask, finish)
        source_mesh, painted_mesh = (None if mesh is None else moved(mesh, back) for mesh in meshes)
        return Pasted(patch, source_mesh, painted_mesh)

    def restart(self) -> None:
        """Forgets all tracks, so that what follows does not depend on what came before."""
        self._tracks.clear()

    def _meshes(self, scene: Scene, tracked: Face) -> tuple[Float32Array | None, Float32Array | None]:
        """The points of the frame's own face and of the painted one in scene pixels."""
        around = moved_face(tracked, scene.matrix)
        own = around.landmarks
        if own is None or own.shape != (POINTS, 2):
            own = self._mesher.mesh(scene.source, around)
        return own, self._mesher.mesh(scene.painted, around)

    def _remembered(
        self,
        track_id: int,
        time_s: Fraction,
        source: Float32Array | None,
        painted: Float32Array | None,
        color: Float32Array | None,
    ) -> _State:
        """The running means of a track with those of a new frame; None = not found in it."""
        self._tracks = {key: each for key, each in self._tracks.items() if time_s - each.time_s <= _MEMORY_S}
        old = self._tracks.get(track_id, _State(time_s))
        passed_s = float(time_s - old.time_s)
        shape, light = 0.5 ** (passed_s / _SHAPE_HALF_LIFE_S), 0.5 ** (passed_s / _COLOR_HALF_LIFE_S)
        state = self._tracks[track_id] = _State(
            time_s, _mean(old.source, source, shape), _mean(old.painted, painted, shape), _mean(old.color, color, light)
        )
        return state

    def _outlines(self, source: Float32Array | None, painted: Float32Array | None) -> tuple[Float32Array, ...]:
        """What to paste, in scene pixels; empty for the whole mask, or if unknown."""
        if self._whole or source is None:
            return ()
        # A patch fades over twice the feather's width.
        reach_px = (2 * FEATHER_PERCENT + _CHIN_PERCENT) / 100 * prod(CROP_PX) ** 0.5
        return covering(source, source if painted is None else painted, reach_px)


def _mean(old: Float32Array | None, new: Float32Array | None, kept: float) -> Float32Array | None:
    if old is None or new is None:
        return new if old is None else old
    return np.asarray(new + kept * (old - new), np.float32)
