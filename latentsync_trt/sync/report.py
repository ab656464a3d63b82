"""What measures a run, and the report of what it did."""

from time import perf_counter

from latentsync_trt.face.people import FaceStats
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.measure.paint_check import PaintCheck
from latentsync_trt.measure.quality import Quality, write_report
from latentsync_trt.measure.syncnet import SyncMeter, open_syncnet
from latentsync_trt.sync.pace import Pace
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.sync.writers import OutputWriter
from latentsync_trt.types import SyncReport


def quality_of(run: RunContext) -> Quality:
    """Returns what measures the painted faces, with SyncNet where `--syncnet` or a page ask."""
    inputs = run.inputs
    recordings = inputs.sound.recordings
    has_page = inputs.page is not None
    mismatch = ModelMismatchCheck(
        run.slot.bundle.manifest,
        run.resolution_px,
        run.notices.add,
        strict=inputs.options.strict,
    )
    meters = []
    if run.slot.options.syncnet or has_page:
        network = open_syncnet(run.slot.options.syncnet)
        if network is not None:
            meters = [SyncMeter(network, piece.path, piece.at_s) for piece in recordings]
    return Quality(
        [piece.at_s for piece in recordings],
        people=inputs.sound.people,
        pictures=has_page,
        mismatch=mismatch,
        check=PaintCheck(strict=inputs.options.strict),
        syncnet=meters,
    )


def report_of(
    run: RunContext, writer: OutputWriter, faces: FaceStats, pace: Pace, quality: Quality
) -> SyncReport:
    """Returns the report of a run that ends now, and writes its page, if it has one."""
    wall_s = perf_counter() - run.start_s
    model = run.model()
    steady = pace.steady_since()
    report = SyncReport(
        output=str(run.inputs.output),
        bundle=model.bundle.manifest.name,
        provider=model.selection.name,
        frames=faces.frames,
        frames_with_face=faces.frames_with_face,
        windows=0 if pace.painting is None else pace.painting.windows,
        duration_s=float(writer.end_s),
        wall_s=wall_s,
        opened_s=pace.opened_s - run.start_s,
        startup_s=steady.time_s - run.start_s,
        finish_s=run.start_s + wall_s - pace.written_s,
        frames_per_s=pace.painted_per_s(),
        stages=run.clock.times(),
        engines=model.times(),
        notices=tuple(dict.fromkeys((*model.notices, *run.notices.texts))),
        untouched=tuple(faces.untouched),
        in_front=tuple(faces.in_front),
        painted=faces.painted_times(),
        speech=quality.speech(writer.end_s),
        quality=quality.result(float(pace.from_s or 0)),
        picture_delay_s=float(run.inputs.sound.picture_delay_s),
        redone=tuple((float(span.start_s), float(span.end_s)) for span in writer.redone),
    )
    if run.inputs.page is not None:
        write_report(run.inputs.page, run.inputs.video, report, quality, run.inputs.options)
    return report
