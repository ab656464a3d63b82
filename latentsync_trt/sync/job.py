"""A frame on its way through the stages."""

from dataclasses import dataclass

from latentsync_trt.types import AlignedFace, Frame, UInt16Array


@dataclass(slots=True, eq=False)
class Job:
    """A frame on its way through the stages; each adds what it found or made.

    `track_id` changes where the face is another one or was lost between. `painted`: uint16 `(H, W, 3)`, 257 × level.
    """

    frame: Frame
    face: AlignedFace | None = None
    track_id: int | None = None
    painted: UInt16Array | None = None
    done: bool = False
