"""What the stages of a clip pass on: a frame, and the faces in it that are painted."""

from dataclasses import dataclass

from latentsync_trt.types import AlignedFace, Face, Float64Array, Frame, UInt16Array


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A face of one frame that follows a voice, and the results of the stages so far.

    `track_id`: unique for an unbroken run of one face in one shot; windows never span two.
    `person`: identity through the clip, the number shown by `latentsync-trt faces`. `speaker`:
    index of its voice. `tracked`: box and landmarks in pixels of the stored frame. `matrix (2, 3)`:
    frame pixels → crop pixels. `painted`: the new face, uint16 `(H, W, 3)`, 257 × level.
    """

    track_id: int
    person: int
    speaker: int
    tracked: Face
    matrix: Float64Array
    face: AlignedFace | None = None
    painted: UInt16Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FrameJob:
    """A frame on its way through the stages; it leaves unchanged where it has no targets.

    `shot`: number of the shot that it is part of; None where no face was searched.
    """

    frame: Frame
    targets: tuple[Target, ...] = ()
    shot: int | None = None
