"""What the stages of one clip share."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter

from latentsync_trt.compositing.enhancer import load_enhancer
from latentsync_trt.errors import Notices
from latentsync_trt.face.detector import MediaPipeDetector
from latentsync_trt.media.ending import notices_of_ending
from latentsync_trt.media.playback import notices_of_rate
from latentsync_trt.media.speech_file import notices_of_speech_file
from latentsync_trt.paths import is_same_file
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.caller import CallerProgress
from latentsync_trt.sync.dubbed_turns import assign_speech
from latentsync_trt.sync.inputs import Inputs
from latentsync_trt.sync.model_slot import ModelSlot
from latentsync_trt.sync.preview import preview_of
from latentsync_trt.sync.speech import FindSpeech, speech_in
from latentsync_trt.sync.threads import StageClock
from latentsync_trt.types import FaceDetector, ProgressCallback


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """What the stages of one clip share."""

    slot: ModelSlot
    inputs: Inputs
    model: Callable[[], Model]
    """Waits for the model that is being opened; raises as `open_model`."""
    resolution_px: int
    """Side of an aligned face."""
    detector: MediaPipeDetector
    """Finds outlines, and faces if `inputs.helpers` has no other detector."""
    speech_in: FindSpeech
    """Looks into each recording once in a run."""
    notices: Notices
    on_progress: CallerProgress
    clock: StageClock
    start_s: float
    """When the run began, on the scale of `perf_counter`."""

    def add_notices(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.notices.add(text)


def begin_run(
    slot: ModelSlot,
    model: Callable[[], Model],
    inputs: Inputs,
    resolution_px: int,
    on_progress: ProgressCallback | None,
) -> RunContext:
    """Returns the context of a run that begins now, with all inputs resolved.

    Raises as `resolve_inputs`.
    """
    start_s = perf_counter()
    progress = CallerProgress(on_progress)
    notices = Notices(slot.on_notice)
    detector = slot.detector()
    find_speech = cache(partial(speech_in, ask=progress.ask))
    run = RunContext(
        slot=slot,
        inputs=resolve_inputs(inputs, detector, find_speech, notices, progress),
        model=model,
        resolution_px=resolution_px,
        detector=detector,
        speech_in=find_speech,
        notices=notices,
        on_progress=progress,
        clock=StageClock(),
        start_s=start_s,
    )
    run.add_notices(_notices_of_inputs(run))
    return run


def _notices_of_inputs(run: RunContext) -> Iterator[str]:
    """Yields what is unusual about the bundle, the provider and the files."""
    inputs = run.inputs
    sound = inputs.sound
    yield from run.slot.bundle.manifest.notices_at(run.resolution_px)
    yield from notices_of_rate(inputs.info, inputs.options)
    yield from run.slot.selection.notices()
    if sound.notice is not None:
        yield sound.notice
    for path in dict.fromkeys((inputs.video, *sound.files)):
        yield from notices_of_ending(path)
        if not is_same_file(path, inputs.video):
            yield from notices_of_speech_file(path, inputs.options.offset)


def resolve_inputs(
    inputs: Inputs,
    detector: FaceDetector,
    find_speech: FindSpeech,
    notices: Notices,
    progress: CallerProgress,
) -> Inputs:
    """Returns the inputs with what their options ask to look for: the enhancer, who speaks, and
    where a preview begins.

    Raises:
        InputError: the enhancer cannot be used.
        NoFaceError: no one is seen, or none of several people to speak.
    """
    options = inputs.options
    helpers = inputs.helpers
    if helpers.enhancer is None and options.enhancer is not None:
        helpers = replace(helpers, enhancer=load_enhancer(options.enhancer))
        inputs = replace(inputs, helpers=helpers)
    if options.face == "speaking":
        inputs = assign_speech(inputs, helpers.detector or detector, find_speech, notices, progress)
    if options.preview_s is not None:
        inputs, notice = preview_of(inputs, find_speech)
        notices.add(notice)
    return inputs
