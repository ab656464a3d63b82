"""What the stages of one clip share."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from latentsync_trt.errors import Notices
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.model_slot import ModelSlot
from latentsync_trt.sync.speech import speech_in
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import ProgressCallback

if TYPE_CHECKING:
    from latentsync_trt.audio.vad import Speech


class RunContext:
    """`model()` waits for the model of `slot` that is being opened, or raises as `open_model`. `selection`: the
    provider that is tried first. `detector` finds outlines, and faces if `inputs.helpers` has no other;
    `resolution_px`: of aligned faces. `speech_in`: when somebody speaks in a recording, found once in a run.
    `start_s`: when the run began, on `time.perf_counter`'s scale.
    """

    def __init__(
        self,
        slot: ModelSlot,
        model: Callable[[], Model],
        inputs: Inputs,
        resolution_px: int,
        on_progress: ProgressCallback | None,
    ) -> None:
        self.model, self.inputs, self.resolution_px = model, inputs, resolution_px
        self.bundle, self.selection, self.options = slot.bundle, slot.selection, slot.options
        self.detector, self.on_progress = slot.detector(), on_progress or (lambda _: None)
        self.speech_in: Callable[[Path], Speech] = cache(speech_in)
        self.notices, self.clock, self.start_s = Notices(slot.on_notice), StageClock(), perf_counter()

    def announce(self, texts: Iterable[str]) -> None:
        """Tells the user each of these notices."""
        for text in texts:
            self.notices.add(text)
