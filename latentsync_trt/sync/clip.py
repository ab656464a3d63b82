"""One clip: decode → find faces → align → gather → encode → denoise → decode → analyze paste → compose → write.

Each stage is a generator over the previous one, in a thread of its own, joined by a bounded queue, so memory depends on
the size of a picture and of a window, not on the length of the clip. Those before painting begin while the model opens.
"""

from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from time import perf_counter

from latentsync_trt.errors import LatentSyncError
from latentsync_trt.face.mask import mouth_mask
from latentsync_trt.face.paste import Paster
from latentsync_trt.measure.syncnet import SyncMeter, open_syncnet
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.compose import Composer, load_enhancer
from latentsync_trt.sync.faces import FrameJob
from latentsync_trt.sync.inpaint import check_noise, make_inpainter
from latentsync_trt.sync.mismatch import ModelMismatchCheck
from latentsync_trt.sync.output import PaintStats, open_writer, write_frames
from latentsync_trt.sync.paint import Painter, in_order
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.report import Finished, report_of, write_report
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.source import aligned_frames, clip_stages, open_speech
from latentsync_trt.sync.speech import OpenSpeech
from latentsync_trt.sync.threads import ClipStages
from latentsync_trt.sync.timeline import timeline_of
from latentsync_trt.sync.windows import Gathered, gather, in_batches, streams_at
from latentsync_trt.types import Progress, SyncReport

# With one network at a time on the device, each processes this many windows before the next is loaded.
_LOW_MEMORY_WINDOWS = 4


class Canceled(LatentSyncError):
    """The clip is not wanted any more."""


def sync_clip(run: RunContext) -> SyncReport:
    """Runs all stages of a clip; encoding runs in this thread. Errors as those of `LipSync.sync`."""
    start_s, inputs, manifest = perf_counter(), run.inputs, run.opening.bundle.manifest
    check_noise(run.resolution_px, run.helpers.noise)
    if run.helpers.enhancer is None and inputs.options.enhancer is not None:
        run = replace(run, helpers=replace(run.helpers, enhancer=load_enhancer(inputs.options.enhancer)))
    mismatch = ModelMismatchCheck(manifest, run.resolution_px, run.notices.add, strict=inputs.options.strict)
    quality = _quality(run, mismatch)
    with ExitStack() as stack:
        speech = stack.enter_context(closing(open_speech(run, quality)))
        span, playback, texts = timeline_of(inputs, speech)
        writer = open_writer(run, span, playback)
        run.announce((*texts, *writer.notices))
        streams = streams_at(playback.fps or inputs.info.frames_per_s)
        stages = clip_stages(run, playback, streams)
        aligned = mismatch.watch(aligned_frames(run, span, playback, stages), run.own_detector)
        windows = gather(aligned, manifest.frames, streams, writer.frames_done)
        gathered = stack.enter_context(closing(stages.prefetch_frames(windows, depth=manifest.frames, name="gather")))
        model = _opened(run)
        paint = PaintStats(perf_counter(), writer.frames_done)
        jobs = _painted(run, model, speech, gathered, stages, writer.frames_done)
        paster = Paster(run.own_detector, mouth_mask(run.resolution_px), paste=inputs.options.paste)
        composer = Composer(paster, run.helpers.enhancer, quality, run.clock, writer.frames_done)
        stack.enter_context(writer)
        composed = stack.enter_context(closing(composer.stages(jobs, stages.prefetch)))
        faces = write_frames(run, writer, composed, paint, playback, stages)
    run.announce(writer.notices)
    report = report_of(Finished(run, model, float(writer.end_s), start_s, faces, paint, quality))
    if inputs.page is not None:
        write_report(inputs.page, inputs.video, report, quality, inputs.options)
    return report


def _quality(run: RunContext, mismatch: ModelMismatchCheck) -> Quality:
    """What measures the painted faces: also SyncNet for each speaker, if it is to."""
    given, inputs = run.opening.options.syncnet, run.inputs
    recordings, shows = inputs.speech.recordings, inputs.page is not None
    network = open_syncnet(given) if given or shows else None
    meters = [] if network is None else [SyncMeter(network, piece.path, piece.at_s) for piece in recordings]
    return Quality([piece.at_s for piece in recordings], pictures=shows, mismatch=mismatch, syncnet=meters)


def _opened(run: RunContext) -> Model:
    run.on_progress(Progress("opening networks", 0, None))
    with run.clock.measure("open", frames=0):
        model = run.opening.wait()
    run.announce(model.selection.notices())  # of a provider that it fell back to
    return model


def _painted(
    run: RunContext,
    model: Model,
    speech: OpenSpeech,
    gathered: Generator[Gathered, None, None],
    stages: ClipStages,
    frames_done: int,
) -> Generator[FrameJob, None, None]:
    """Every job in order with its painted faces: encode, denoise and decode, each in a thread of its own."""

    def check() -> None:
        if stages.canceled:
            raise Canceled("canceled")

    frames, plan = run.window_frames, model.memory_plan
    at_once = max(plan.windows_per_batch, _LOW_MEMORY_WINDOWS if plan.mode == "one network at a time" else 1)
    at_once = max(1, min(at_once, stages.spare_frames // frames))  # frames wait until so many windows are complete
    painter = Painter(
        make_inpainter(model, run.inputs.options, run.helpers.noise), speech.windows, run.clock, frames_done, check
    )
    stage = partial(stages.prefetch, depth=at_once * frames)
    encoded = stage(in_batches(gathered, at_once, frames), painter.encode, name="encode faces")
    denoised = stage(encoded, painter.denoise, name="denoise")
    decoded = stage(denoised, painter.decode, name="decode faces")
    return stages.prefetch(in_order(decoded, frames_done), name="paint")
