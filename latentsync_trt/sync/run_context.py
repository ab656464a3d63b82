"""What the stages of one clip share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.notices import Notices
from latentsync_trt.runtime.model import Model
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Enhancer, FaceDetector, Float32Array, ProgressCallback


@dataclass(frozen=True, slots=True)
class Helpers:
    """What a caller may bring: `detector` finds faces; `enhancer` improves painted ones; `noise`
    float32 `(1, 4, 1, h, w)` replaces that of the seed."""

    detector: FaceDetector | None = None
    enhancer: Enhancer | None = None
    noise: Float32Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OpeningModel:
    """A model that is being opened, and what is known of it already.

    `selection`: the provider that is tried first. `wait()` returns the model, or raises as `open_model`.
    """

    bundle: Bundle
    selection: Selection
    options: RuntimeOptions
    wait: Callable[[], Model]


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """`own_detector` finds outlines, and faces if `helpers` has no other; `resolution_px`: of aligned faces."""

    opening: OpeningModel
    inputs: Inputs
    helpers: Helpers
    own_detector: MediaPipeDetector
    notices: Notices
    on_progress: ProgressCallback
    resolution_px: int
    clock: StageClock

    @property
    def window_frames(self) -> int:
        """F, the length of a window."""
        return self.opening.bundle.manifest.frames

    def announce(self, texts: Iterable[str]) -> None:
        """Tells the user each of these notices."""
        for text in texts:
            self.notices.add(text)
