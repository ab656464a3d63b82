"""What the stages of one clip share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter

from latentsync_trt.bundle.manifest import Bundle
from latentsync_trt.config import RuntimeOptions
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.notices import Notices
from latentsync_trt.runtime.model import Model
from latentsync_trt.runtime.providers.select import Selection
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import Progress, ProgressCallback


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """`selection`: the provider that is tried first. `model()` waits for the model that is being opened, or raises as
    `open_model`. `detector` finds outlines, and faces if `inputs.helpers` has no other; `resolution_px`: of aligned
    faces. `start_s`: when the run began, on `time.perf_counter`'s scale.
    """

    bundle: Bundle
    selection: Selection
    options: RuntimeOptions
    model: Callable[[], Model]
    inputs: Inputs
    detector: MediaPipeDetector
    notices: Notices
    on_progress: ProgressCallback
    resolution_px: int
    clock: StageClock = field(default_factory=StageClock)
    start_s: float = field(default_factory=perf_counter)

    @property
    def window_frames(self) -> int:
        """F, the length of a window."""
        return self.bundle.manifest.frames

    def announce(self, texts: Iterable[str]) -> None:
        """Tells the user each of these notices."""
        for text in texts:
            self.notices.add(text)

    def opened(self) -> Model:
        """As `model`, told to the user and measured as a stage."""
        self.on_progress(Progress("opening networks", 0, None))
        with self.clock.measure("open", frames=0):
            model = self.model()
        self.announce(model.selection.notices())  # of a provider that it fell back to
        return model
