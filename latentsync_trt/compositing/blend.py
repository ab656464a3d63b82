"""How a painted face fits into its frame: outlines within which it shows, and a change of color."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from latentsync_trt.compositing.color_match import match_color
from latentsync_trt.compositing.finish import Finish, TrackDetail, gains_of, grain_of
from latentsync_trt.compositing.head_view import VIEW_CROP_PX, view_head
from latentsync_trt.compositing.known_part import known_part
from latentsync_trt.compositing.outline import FEATHER_PERCENT, OVAL, cover_chin
from latentsync_trt.compositing.resize import FittedFace
from latentsync_trt.config import FinishKind, Paste
from latentsync_trt.face.align import inverse, transformed, transformed_face
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.face.geometry import POINTS
from latentsync_trt.types import (
    Face,
    Float32Array,
    Float64Array,
    FrameMask,
    Picture,
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
    finish: Finish = Finish()
    """How the pixels inside are changed."""
    kept: tuple[FrameMask, ...] = ()
    """What stays as it is in the frame."""


@dataclass(frozen=True, slots=True, eq=False)
class FaceComparison:
    """A painted face beside that of the source: in one frame, or in the mean of several."""

    to_frame: Float64Array
    """Shape `(2, 3)`: pixels of the view of the head → frame pixels."""
    source_mesh: Float32Array | None
    """FaceMesh's points of the frame's face, float32 `(468, 2)` in pixels of the view; None where
    it finds no face.
    """
    painted_mesh: Float32Array | None
    """The same of the painted face."""
    color: Float32Array | None
    """See `match_color`."""


@dataclass(frozen=True, slots=True, eq=False)
class InspectedFace:
    """What one frame tells about its painted face."""

    comparison: FaceComparison
    upper_face: Float32Array | None
    """See `known_part`; None where nothing is matched."""

    @property
    def painted_mesh_in_frame(self) -> Float32Array | None:
        """The points of the painted face in frame pixels."""
        if self.comparison.painted_mesh is None:
            return None
        return transformed(self.comparison.painted_mesh, self.comparison.to_frame)


@dataclass(frozen=True, slots=True, eq=False)
class _Track:
    """The frames of a track until `time_s`."""

    time_s: Fraction
    mean: FaceComparison
    detail: TrackDetail


class FaceBlender:
    """Finds how painted faces fit into their frames: each by `inspect_face`, in any thread, then in
    order by `blend`.

    Args:
        mesher: finds the outline of painted faces.
        paste: "face" pastes within the outlines of the source's and the painted face, "mask" all
            that was painted.
        finish: "match" gives detail and grain back, "plain" leaves what was painted.
        seed: of the grain.
    """

    def __init__(
        self,
        mesher: MediaPipeDetector,
        *,
        paste: Paste = "face",
        finish: FinishKind = "match",
        seed: int = 0,
    ) -> None:
        self._mesher = mesher
        self._pastes_mask = paste == "mask"
        self._matches = finish == "match"
        self._seed = seed
        self._tracks: dict[int, _Track] = {}

    def inspect_face(self, picture: Picture, face: FittedFace, tracked: Face) -> InspectedFace:
        """Returns what `blend` needs of the frame; more than half of the work."""
        view = view_head(picture, face.aligned, face.painted)
        around = transformed_face(tracked, view.from_frame)
        painted_mesh = self._mesher.mesh(view.painted, around)
        source_mesh = around.landmarks
        if source_mesh is None or source_mesh.shape != (POINTS, 2):
            source_mesh = self._mesher.mesh(view.source, around)
        color = None
        if source_mesh is not None and painted_mesh is not None:
            color = match_color(view, source_mesh, painted_mesh)
        upper_face = known_part(picture, face, color) if self._matches else None
        to_frame = inverse(view.from_frame)
        comparison = FaceComparison(to_frame, source_mesh, painted_mesh, color)
        return InspectedFace(comparison, upper_face)

    def restart(self) -> None:
        """Forgets all tracks, so that what follows does not depend on what came before."""
        self._tracks.clear()

    def blend(
        self,
        track_id: int,
        time_s: Fraction,
        inspected: InspectedFace,
        following: InspectedFace | None = None,
    ) -> Blend:
        """Adds the frame at `time_s`, not before the last one, to the running means of its track,
        and returns these for the frame. Without an outline of the source, the mask alone decides.

        Args:
            following: the next frame of the track, for the grain of the first one.
        """
        before = self._tracks.get(track_id)
        mean = inspected.comparison
        detail = TrackDetail()
        if before is not None and time_s - before.time_s <= _MEMORY_S:
            mean = _running_mean(before.mean, mean, float(time_s - before.time_s))
            detail = before.detail
        if inspected.upper_face is not None:
            detail = detail.after(
                inspected.upper_face, None if following is None else following.upper_face
            )
        self._tracks[track_id] = _Track(time_s, mean, detail)
        finish = Finish(mean.color)
        if detail.sums is not None:
            gains = gains_of(detail.sums)
            grain = grain_of(detail.sums, gains, self._seed, time_s)
            finish = Finish(mean.color, tuple(gains.tolist()), grain)
        return Blend(self._to_paste(mean), self._to_paste(inspected.comparison), finish)

    def _to_paste(self, face: FaceComparison) -> tuple[Float32Array, ...]:
        """Returns the shapes to paste, in frame pixels."""
        if self._pastes_mask or face.source_mesh is None:
            return ()
        source = face.source_mesh[OVAL]
        painted = source
        if face.painted_mesh is not None:
            painted = face.painted_mesh[OVAL]
        covering = cover_chin(source, painted, _REACH_PX)
        return transformed(covering, face.to_frame), transformed(painted, face.to_frame)


def _running_mean(old: FaceComparison, new: FaceComparison, passed_s: float) -> FaceComparison:
    """Returns a mean in which the old one counts the less, the more time has passed."""
    of_outline = 0.5 ** (passed_s / _OUTLINE_HALF_LIFE_S)
    of_color = 0.5 ** (passed_s / _COLOR_HALF_LIFE_S)
    return FaceComparison(
        new.to_frame,
        _weighted(old.source_mesh, new.source_mesh, of_outline),
        _weighted(old.painted_mesh, new.painted_mesh, of_outline),
        _weighted(old.color, new.color, of_color),
    )


def _weighted(
    old: Float32Array | None, new: Float32Array | None, old_weight: float
) -> Float32Array | None:
    """Returns the mean of what is there."""
    if old is None or new is None:
        return old if new is None else new
    return np.asarray(new + old_weight * (old - new), np.float32)
