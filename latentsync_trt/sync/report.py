"""What is measured while a clip runs, and the report of a finished run."""

from time import perf_counter

from latentsync_trt.face.seen import FaceStats
from latentsync_trt.measure.mismatch import ModelMismatchCheck
from latentsync_trt.measure.quality import Quality
from latentsync_trt.measure.report import write_report
from latentsync_trt.measure.syncnet import SyncMeter, open_syncnet
from latentsync_trt.sync.output import Pace
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.types import SyncReport


def quality_of(run: RunContext) -> Quality:
    """What measures the painted faces: also SyncNet for each speaker, if it is to."""
    given, inputs, shows = run.options.syncnet, run.inputs, run.inputs.page is not None
    manifest, strict = run.bundle.manifest, inputs.options.strict
    mismatch = ModelMismatchCheck(manifest, run.resolution_px, run.notices.add, strict=strict)
    recordings = inputs.sound.recordings
    network = open_syncnet(given) if given or shows else None
    meters = [] if network is None else [SyncMeter(network, piece.path, piece.at_s) for piece in recordings]
    return Quality([piece.at_s for piece in recordings], pictures=shows, mismatch=mismatch, syncnet=meters)


def report_of(run: RunContext, duration_s: float, faces: FaceStats, pace: Pace, quality: Quality) -> SyncReport:
    """The report of a run that ends now, whose page is written, if it has one; `duration_s`: of the output."""
    wall_s, model, count = perf_counter() - run.start_s, run.model(), faces.frames
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
    )
    if run.inputs.page is not None:
        write_report(run.inputs.page, run.inputs.video, report, quality, run.inputs.options)
    return report
