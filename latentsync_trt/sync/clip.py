"""One clip: decode → find faces → align → gather → encode → denoise → decode → analyze paste →
compose → write.

Each stage is a generator over the previous one, in a thread of its own, joined by a bounded queue.
Those before painting begin while the model opens.
"""

from contextlib import ExitStack, closing
from dataclasses import replace
from fractions import Fraction
from time import perf_counter

from latentsync_trt.compositing.blend import FaceBlender
from latentsync_trt.compositing.enhancer import load_enhancer
from latentsync_trt.config import MODEL_FPS
from latentsync_trt.face.people import FaceStats
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.measure.quality import Quality, write_report
from latentsync_trt.measure.syncnet import SyncMeter, open_syncnet
from latentsync_trt.sync.dubbed_turns import who_speaks
from latentsync_trt.sync.model_slot import RunContext
from latentsync_trt.sync.output import open_writer, write_frames
from latentsync_trt.sync.paint import Composer, Pace, Painter, painted
from latentsync_trt.sync.source import aligned_frames, clip_stages, open_speech
from latentsync_trt.sync.timeline import preview_of, timeline_of
from latentsync_trt.sync.windows import gather, make_inpainter, streams_at
from latentsync_trt.types import Progress, SyncReport


def sync_clip(run: RunContext) -> SyncReport:
    """Runs all stages of a clip; encoding runs in this thread. Errors as those of
    `LipSync.sync`.
    """
    options = run.inputs.options
    helpers = run.inputs.helpers
    frames = run.bundle.manifest.frames
    if helpers.enhancer is None and options.enhancer is not None:
        helpers = replace(helpers, enhancer=load_enhancer(options.enhancer))
    if options.face == "speaking":
        run.inputs = who_speaks(run)
    if options.preview_s is not None:
        run.inputs, notice = preview_of(run.inputs, run.speech_in)
        run.announce((notice,))
    quality = quality_of(run)
    with ExitStack() as stack:
        speech = stack.enter_context(closing(open_speech(run, quality)))
        span, playback, texts = timeline_of(run.inputs, speech)
        writer = open_writer(run, span, playback)
        run.announce((*texts, *writer.notices))
        rate = playback.fps or run.inputs.info.frames_per_s
        streams = streams_at(rate)
        stages = clip_stages(run, rate, streams)
        aligned = aligned_frames(run, quality, span, playback, stages)
        windows = gather(aligned, frames, streams, writer.paint_from)
        gathered = stack.enter_context(
            closing(stages.prefetch_frames(windows, depth=frames, name="gather"))
        )
        run.on_progress(Progress("opening networks", 0, None))
        with run.clock.measure("open", frames=0):
            model = run.model()
        run.announce(model.selection.notices())  # of a provider that it fell back to
        pace = Pace(
            perf_counter(), writer.paint_from, span.frames(rate or Fraction(MODEL_FPS)), frames
        )
        in_turn = model.memory_plan.mode == "one network at a time"
        inpainter = make_inpainter(model, options, helpers.noise)
        painter = Painter(inpainter, speech.windows, run.clock, pace, stages.check)
        jobs = painted(gathered, painter, stages, frames, in_turn=in_turn)
        blender = FaceBlender(run.detector, paste=options.paste)
        composer = Composer(blender, helpers.enhancer, quality, run.clock)
        stack.enter_context(writer)
        composed = stack.enter_context(closing(composer.stages(jobs, stages.prefetch, run.ask)))
        faces = write_frames(run, writer, composed, playback, stages.leave, pace)
    run.announce(writer.notices)
    return report_of(run, float(writer.end_s), faces, pace, quality)


def quality_of(run: RunContext) -> Quality:
    """What measures the painted faces: also SyncNet for each person, if it is to."""
    given = run.options.syncnet
    inputs = run.inputs
    shows = run.inputs.page is not None
    manifest = run.bundle.manifest
    strict = inputs.options.strict
    mismatch = ModelMismatchCheck(manifest, run.resolution_px, run.notices.add, strict=strict)
    recordings = inputs.sound.recordings
    people = inputs.sound.people
    network = open_syncnet(given) if given or shows else None
    if network is None:
        meters = []
    else:
        meters = [SyncMeter(network, piece.path, piece.at_s) for piece in recordings]
    starts_s = [piece.at_s for piece in recordings]
    return Quality(starts_s, people=people, pictures=shows, mismatch=mismatch, syncnet=meters)


def report_of(
    run: RunContext, duration_s: float, faces: FaceStats, pace: Pace, quality: Quality
) -> SyncReport:
    """The report of a run that ends now, whose page is written, if it has one; `duration_s`: of the
    output.
    """
    wall_s = perf_counter() - run.start_s
    model = run.model()
    count = faces.frames
    first_s, painted = pace.under_way(count)
    pace_s = pace.written_s - first_s
    report = SyncReport(
        output=str(run.inputs.output),
        bundle=model.bundle.manifest.name,
        provider=model.selection.name,
        frames=count,
        frames_with_face=faces.frames_with_face,
        windows=pace.windows,
        duration_s=duration_s,
        wall_s=wall_s,
        opened_s=pace.opened_s - run.start_s,
        startup_s=first_s - run.start_s,
        finish_s=run.start_s + wall_s - pace.written_s,
        frames_per_s=(count - painted) / pace_s if pace_s else 0.0,
        stages=run.clock.times(),
        engines=model.times(),
        notices=tuple(dict.fromkeys((*model.notices, *run.notices.texts))),
        untouched=tuple(faces.untouched),
        quality=quality.result(float(pace.from_s)),
        picture_delay_s=float(run.inputs.sound.picture_delay_s),
    )
    if run.inputs.page is not None:
        write_report(run.inputs.page, run.inputs.video, report, quality, run.inputs.options)
    return report
