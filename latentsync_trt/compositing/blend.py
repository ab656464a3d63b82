"""How a painted face fits into its frame: outlines within which it shows, and a change of color."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from latentsync_trt.compositing.color_match import CROP_PX, match_color, scene_of
from latentsync_trt.compositing.outline import FEATHER_PERCENT, OVAL, covering
from latentsync_trt.config import Paste
from latentsync_trt.face import align
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

# A patch fades over twice the feather's width.
_REACH_PX = (2 * FEATHER_PERCENT + _CHIN_PERCENT) / 100 * prod(CROP_PX) ** 0.5

_HALF_LIVES_S = (0.04, 0.04, 0.125)
"""In the running means of both outlines and the color: light changes slowly, and its estimates are
noisy.
"""
_MEMORY_S = 1
"""The state of tracks that ended is dropped."""


@dataclass(frozen=True, slots=True, eq=False)
class Blend:
    """How what is pasted is fitted in. `outlines`, `within`: shapes `(n, 2)` in frame pixels; where
    given, it fades out before the edge of the union of `outlines`, and nothing changes outside that
    of `within`. `gain_and_offset (2, 3)`: of each channel, in levels; None = 1 and 0.
    """

    outlines: tuple[Float32Array, ...] = ()
    within: tuple[Float32Array, ...] = ()
    gain_and_offset: Float32Array | None = None


PLAIN_BLEND = Blend()
"""Shows all that the mask lets through, in the colors that were painted."""


@dataclass(frozen=True, slots=True, eq=False)
class InspectedFace:
    """What a frame alone tells of a painted face. `to_frame (2, 3)`: scene → frame pixels.
    `painted_mesh`: FaceMesh's points of it, float32 `(468, 2)` in frame pixels, None where there is
    no face. `outlines (36, 2)`: of the frame's own face and the painted one in the scene. `within`:
    see `Blend`. `color`: see `match_color`.
    """

    to_frame: Float64Array
    painted_mesh: Float32Array | None
    outlines: tuple[Float32Array | None, ...]
    within: tuple[Float32Array, ...]
    color: Float32Array | None


class FaceBlender:
    """How painted faces are fitted in: each by `inspect_face`, in any thread, then in order by
    `blend`.

    Args:
        mesher: finds the outline of painted faces.
        paste: "face" pastes within the outline of the source's and the painted face, "mask" all
            that was painted.
    """

    def __init__(self, mesher: MediaPipeDetector, *, paste: Paste = "face") -> None:
        self._mesher = mesher
        self._whole = paste == "mask"
        # Of each: the time and the running means of the outlines `(36, 2)` in scene pixels, and of
        # the color.
        self._tracks: dict[int, tuple[Fraction, tuple[Float32Array | None, ...]]] = {}

    def inspect_face(
        self, picture: Picture, face: AlignedFace, painted: UInt16Array, tracked: Face
    ) -> InspectedFace:
        """What `blend` needs of the frame; more than half of the work."""
        matrix, source, result = scene_of(picture, face, painted)
        around = align.transformed_face(tracked, matrix)
        to_frame = align.inverse(matrix)
        own = around.landmarks
        new = self._mesher.mesh(result, around)
        if own is None or own.shape != (POINTS, 2):
            own = self._mesher.mesh(source, around)
        outlines = tuple(None if mesh is None else mesh[OVAL] for mesh in (own, new))
        within = self._to_paste(outlines, to_frame)
        color = (
            None
            if own is None or new is None
            else match_color(source, result, len(face.image), (own, new))
        )
        return InspectedFace(
            to_frame,
            None if new is None else align.transformed(new, to_frame),
            outlines,
            within,
            color,
        )

    def restart(self) -> None:
        """Forgets all tracks, so that what follows does not depend on what came before."""
        self._tracks.clear()

    def blend(self, track_id: int, time_s: Fraction, inspected: InspectedFace) -> Blend:
        """By the running means of a track with a new frame, at `time_s`, not before that of the
        last one. The mask alone decides where no outline is known.
        """
        found = (*inspected.outlines, inspected.color)
        self._tracks = {
            key: each for key, each in self._tracks.items() if time_s - each[0] <= _MEMORY_S
        }
        last_s, old = self._tracks.get(track_id, (time_s, (None,) * len(found)))
        passed_s = float(time_s - last_s)
        each = zip(old, found, _HALF_LIVES_S, strict=True)
        means = tuple(
            _mean(before, now, 0.5 ** (passed_s / half_s)) for before, now, half_s in each
        )
        self._tracks[track_id] = time_s, means
        *outlines, color = means
        return Blend(self._to_paste(outlines, inspected.to_frame), inspected.within, color)

    def _to_paste(
        self, outlines: Sequence[Float32Array | None], back: Float64Array
    ) -> tuple[Float32Array, ...]:
        """The outlines, by `back` in frame pixels, of what to paste; none for the whole mask, or if
        unknown.
        """
        source, painted = outlines
        if self._whole or source is None:
            return ()
        return tuple(
            align.transformed(each, back)
            for each in covering(source, source if painted is None else painted, _REACH_PX)
        )


def _mean(old: Float32Array | None, new: Float32Array | None, kept: float) -> Float32Array | None:
    if old is None or new is None:
        if old is None:
            return new
        return old
    return np.asarray(new + kept * (old - new), np.float32)
