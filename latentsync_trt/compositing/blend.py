"""How a painted face fits into its frame: outlines within which it shows, and a change of color."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from latentsync_trt.compositing.color_match import match_color
from latentsync_trt.compositing.head_view import VIEW_CROP_PX, view_head
from latentsync_trt.compositing.outline import FEATHER_PERCENT, OVAL, cover_chin
from latentsync_trt.config import Paste
from latentsync_trt.face.align import inverse, transformed, transformed_face
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import POINTS
from latentsync_trt.types import (
    AlignedFace,
    Face,
    Float32Array,
    Float64Array,
    Picture,
    UInt16Array,
)

_CHIN_PERCENT = 2.0
"""How far a chin may reach below its outline, in percent of the crop's side: beards do."""
_REACH_PX = (2 * FEATHER_PERCENT + _CHIN_PERCENT) / 100 * prod(VIEW_CROP_PX) ** 0.5
"""How far an outline is extended over a neck, in pixels of a view: a patch fades over twice the
feather's width.
"""
_OUTLINE_HALF_LIFE_S = 0.04
_COLOR_HALF_LIFE_S = 0.125
"""After these times, a frame counts half in the running means of a track: light changes slowly, and
its estimates are noisy.
"""
_MEMORY_S = 1
"""The running means of a track are dropped where it has had no frame for longer than this."""


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """What `composite` needs to fit a painted face into one frame."""

    outlines: tuple[Float32Array, ...] = ()
    """Shapes `(n, 2)` in frame pixels: the face fades out before the edge of their union; none =
    the mask alone decides.
    """
    limits: tuple[Float32Array, ...] = ()
    """Shapes `(n, 2)` in frame pixels: nothing changes outside their union; none = no limit."""
    color: Float32Array | None = None
    """An affine change of RGB levels, `(3, 4)`; None leaves the colors as they were painted."""


PLAIN_BLEND = Blend()
"""Shows all that the mask lets through, in the colors that were painted."""


@dataclass(frozen=True, slots=True, eq=False)
class InspectedFace:
    """What one frame alone tells about its painted face."""

    to_frame: Float64Array
    """Shape `(2, 3)`: pixels of the view of the head → frame pixels."""
    source_outline: Float32Array | None
    """Outline `(36, 2)` of the frame's face in the view; None where FaceMesh finds no face."""
    painted_outline: Float32Array | None
    """The same of the painted face."""
    painted_mesh: Float32Array | None
    """FaceMesh's points of the painted face, float32 `(468, 2)` in frame pixels; None without a
    face.
    """
    limits: tuple[Float32Array, ...]
    """See `Blend`."""
    color: Float32Array | None
    """See `match_color`."""


@dataclass(frozen=True, slots=True, eq=False)
class _RunningMeans:
    """Means over the frames of a track until `time_s`; None where no frame had a value."""

    time_s: Fraction
    source_outline: Float32Array | None
    painted_outline: Float32Array | None
    color: Float32Array | None


class FaceBlender:
    """Finds how painted faces fit into their frames: each by `inspect_face`, in any thread, then in
    order by `blend`.

    Args:
        mesher: finds the outline of painted faces.
        paste: "face" pastes within the outlines of the source's and the painted face, "mask" all
            that was painted.
    """

    def __init__(self, mesher: MediaPipeDetector, *, paste: Paste = "face") -> None:
        self._mesher = mesher
        self._pastes_mask = paste == "mask"
        self._tracks: dict[int, _RunningMeans] = {}

    def inspect_face(
        self, picture: Picture, face: AlignedFace, painted: UInt16Array, tracked: Face
    ) -> InspectedFace:
        """Returns what `blend` needs of the frame; more than half of the work."""
        view = view_head(picture, face, painted)
        to_frame = inverse(view.from_frame)
        around = transformed_face(tracked, view.from_frame)
        painted_mesh = self._mesher.mesh(view.painted, around)
        source_mesh = around.landmarks
        if source_mesh is None or source_mesh.shape != (POINTS, 2):
            source_mesh = self._mesher.mesh(view.source, around)

        source_outline = _oval(source_mesh)
        painted_outline = _oval(painted_mesh)
        limits = self._to_paste(source_outline, painted_outline, to_frame)
        color = None
        mesh_in_frame = None
        if painted_mesh is not None:
            mesh_in_frame = transformed(painted_mesh, to_frame)
            if source_mesh is not None:
                color = match_color(view, source_mesh, painted_mesh)
        return InspectedFace(
            to_frame, source_outline, painted_outline, mesh_in_frame, limits, color
        )

    def restart(self) -> None:
        """Forgets all tracks, so that what follows does not depend on what came before."""
        self._tracks.clear()

    def blend(self, track_id: int, time_s: Fraction, inspected: InspectedFace) -> Blend:
        """Adds the frame at `time_s`, not before the last one, to the running means of its track,
        and returns these for the frame. Without an outline of the source, the mask alone decides.
        """
        self._tracks = {
            key: means for key, means in self._tracks.items() if time_s - means.time_s <= _MEMORY_S
        }
        source_outline = inspected.source_outline
        painted_outline = inspected.painted_outline
        color = inspected.color
        before = self._tracks.get(track_id)
        if before is not None:
            passed_s = float(time_s - before.time_s)
            kept = 0.5 ** (passed_s / _OUTLINE_HALF_LIFE_S)
            source_outline = _mean_over_track(before.source_outline, source_outline, kept)
            painted_outline = _mean_over_track(before.painted_outline, painted_outline, kept)
            color = _mean_over_track(before.color, color, 0.5 ** (passed_s / _COLOR_HALF_LIFE_S))
        self._tracks[track_id] = _RunningMeans(time_s, source_outline, painted_outline, color)
        outlines = self._to_paste(source_outline, painted_outline, inspected.to_frame)
        return Blend(outlines, inspected.limits, color)

    def _to_paste(
        self, source: Float32Array | None, painted: Float32Array | None, to_frame: Float64Array
    ) -> tuple[Float32Array, ...]:
        """Returns the shapes to paste, in frame pixels, for two outlines in the view."""
        if self._pastes_mask or source is None:
            return ()
        if painted is None:
            painted = source
        covering = cover_chin(source, painted, _REACH_PX)
        return transformed(covering, to_frame), transformed(painted, to_frame)


def _oval(mesh: Float32Array | None) -> Float32Array | None:
    return None if mesh is None else mesh[OVAL]


def _mean_over_track(
    old: Float32Array | None, new: Float32Array | None, kept: float
) -> Float32Array | None:
    if old is None:
        return new
    if new is None:
        return old
    return np.asarray(new + kept * (old - new), np.float32)
