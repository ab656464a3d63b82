"""The face of a clip, frame by frame, and how each frame brings it to the network's pose."""

from dataclasses import dataclass

from latentsync_trt.face.align import AlignState, align
from latentsync_trt.face.tracker import FaceTracker
from latentsync_trt.types import FaceDetector, Float64Array, Picture


@dataclass(frozen=True, slots=True, eq=False)
class FollowedFace:
    """`matrices`: frame pixels → crop pixels, `(2, 3)` float64, for each resolution; `track_id` as in `TrackedFace`."""

    track_id: int
    matrices: tuple[Float64Array, ...]


class FaceFollower:
    """Tracks a face and aligns it; what alignment remembers of a face is forgotten with its track.

    Args:
        detector: finds faces. resolutions_px: sides of the networks' pictures.
    """

    def __init__(self, detector: FaceDetector, *resolutions_px: int) -> None:
        self._tracker = FaceTracker(detector)
        self._resolutions_px = resolutions_px
        self._state: AlignState | None = None
        self._track_id = -1

    def update(self, frame: Picture) -> FollowedFace | None:
        """The face in the next frame, uint8 `(H, W, 3)` RGB, or None."""
        tracked = self._tracker.update(frame)
        if tracked is None:
            return None
        before = self._state if tracked.track_id == self._track_id else None
        # Whole pixels, as in training, would make the mouth jitter by as much.
        found = [align(tracked.face.points, before, side, whole_pixels=False) for side in self._resolutions_px]
        self._state, self._track_id = found[0][1], tracked.track_id
        return FollowedFace(tracked.track_id, tuple(matrix for matrix, _ in found))
