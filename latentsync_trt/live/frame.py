"""What a session gives: 25 frames a second, each a picture and exactly its sound."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from latentsync_trt.config import MODEL_FPS
from latentsync_trt.media.pictures import LazyRgb
from latentsync_trt.types import Float32Array, UInt8Array, YuvPlanes

FRAME_S = Fraction(1, MODEL_FPS)


@dataclass(frozen=True, slots=True, eq=False)
class LiveFrame:
    """40 ms of the session."""

    index: int
    planes: YuvPlanes
    """The picture, in the idle clip's own format."""
    sound: Float32Array
    """What is heard while the picture is shown, `(n,)` float32 in [−1, 1], mono, at the session's
    rate."""
    utterance: int = 0
    """The number of what is said, from 1; 0 where nothing is."""
    speaking: bool = False
    """Whether the sound is speech."""
    ends: bool = False
    """Whether the frame is the last of the utterance."""
    late: bool = False
    """Whether the picture is the last one again, as the next one was not painted in time."""
    delay_s: float | None = None
    """Seconds from `say` with the end of its speech until this frame was given, by the session's
    clock; None without speech."""

    @property
    def time_s(self) -> Fraction:
        """When the frame begins, in seconds of the session."""
        return self.index * FRAME_S

    @property
    def rgb(self) -> UInt8Array:
        """The picture, uint8 `(H, W, 3)` RGB."""
        return np.asarray(LazyRgb(self.planes))


@dataclass(slots=True)
class Counts:
    """What a session has done so far, in frames."""

    frames: int = 0
    painted: int = 0
    """Frames with a new mouth."""
    spoken: int = 0
    """Frames with speech."""
    late: int = 0
    """Frames with the last picture again and silence, as painting was not done."""
    starved: int = 0
    """Frames of silence that were painted since speech did not arrive in time."""
    windows: int = 0
    """Runs of the networks."""
    painting_s: float = 0.0
    """Seconds that these runs took."""
