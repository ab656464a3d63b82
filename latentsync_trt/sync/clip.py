"""One clip: decode → find faces → align → gather → encode → denoise → decode → inspect → compose →
measure → write.

Each stage is a generator over the previous one, in a thread of its own, joined by a bounded queue.
Those before painting begin while the model opens.
"""

from contextlib import ExitStack, closing
from time import perf_counter

from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.composing import composed_frames
from latentsync_trt.sync.inpainter import make_inpainter
from latentsync_trt.sync.output import open_writer, write_frames
from latentsync_trt.sync.pace import Pace
from latentsync_trt.sync.painting import Painter, paint_frames
from latentsync_trt.sync.recordings import open_speech
from latentsync_trt.sync.report import quality_of, report_of
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.source import clip_stages, gathered_windows
from latentsync_trt.sync.timeline import timeline_of
from latentsync_trt.types import Progress, SyncReport


def sync_clip(run: RunContext) -> SyncReport:
    """Runs all stages of a clip; this thread writes the video. Raises as `LipSync.sync`."""
    quality = quality_of(run)
    with ExitStack() as stack:
        speech = stack.enter_context(closing(open_speech(run, quality)))
        timeline = timeline_of(run.inputs, speech)
        writer = open_writer(run, timeline)
        run.add_notices((*timeline.notices, *writer.notices))
        stages = clip_stages(run, timeline)
        windows = gathered_windows(run, timeline, stages, quality, writer.paint_from)
        stack.enter_context(closing(windows))
        model = _open_networks(run)
        frames = run.slot.bundle.manifest.frames
        pace = Pace(perf_counter(), writer.paint_from, timeline.frames, frames)
        inpainter = make_inpainter(model, run.inputs.options, run.inputs.helpers.noise)
        painter = Painter(inpainter, speech.windows, writer.paint_from, run.clock, stages.check)
        stack.enter_context(writer)  # before threads start that only `composed` stops
        jobs = paint_frames(windows, painter, stages, model)
        composed = composed_frames(run, quality, jobs, stages)
        stack.enter_context(closing(composed))
        faces = write_frames(run, writer, composed, timeline, stages.leave, pace)
    run.add_notices(writer.notices)
    return report_of(run, writer.end_s, faces, pace, quality)


def _open_networks(run: RunContext) -> Model:
    """Waits for the model, and gives notices of a provider that it fell back to."""
    run.on_progress(Progress("opening networks", 0, None))
    with run.clock.measure("open", frames=0):
        model = run.model()
    run.add_notices(model.selection.notices())
    return model
