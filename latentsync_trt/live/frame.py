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
    """40 ms of the session.

    `planes`: the picture, in the idle clip's own format. `sound (n,)` float32 in [−1, 1], mono, at
    the session's rate: what is heard while the picture is shown. `speaking`: the sound is speech.
    `utterance`: its number, from 1, or 0 where nothing is said; `ends`: it is the last of the
    utterance. `late`: the last picture again, as the next one was not painted in time. `delay_s`:
    from `say` with the end of its speech until this frame was given, by the session's clock; None
    without speech.
    """

    index: int
    planes: YuvPlanes
    sound: Float32Array
    utterance: int = 0
    speaking: bool = False
    ends: bool = False
    late: bool = False
    delay_s: float | None = None

    @property
    def time_s(self) -> Fraction:
        """When it begins, in seconds of the session."""
        return self.index * FRAME_S

    @property
    def rgb(self) -> UInt8Array:
        """The picture, uint8 `(H, W, 3)` RGB."""
        return np.asarray(LazyRgb(self.planes))


@dataclass(slots=True)
class Counts:
    """What a session has done so far, in frames.

    `painted`: with a new mouth. `spoken`: with speech. `late`: the last picture again and silence,
    as painting was not done. `starved`: silence painted since speech did not arrive in time.
    `windows`: runs of the networks, which took `painting_s` seconds.
    """

    frames: int = 0
    painted: int = 0
    spoken: int = 0
    late: int = 0
    starved: int = 0
    windows: int = 0
    painting_s: float = 0.0
