"""What a finished run reports: its figures, and its page."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.measure.page import Section, svg, sync_figure, write_page
from latentsync_trt.measure.syncnet import sections
from latentsync_trt.option_fields import command_line
from latentsync_trt.runtime.model import Model
from latentsync_trt.sync.faces import FaceStats
from latentsync_trt.sync.output import PaintStats
from latentsync_trt.sync.quality import Quality
from latentsync_trt.sync.run_context import RunContext
from latentsync_trt.types import SyncReport
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_FILES = ("c2pa", "faces", "mix", "report", "speaker", "turns")
"""Options that name files: a page may be passed on."""

_METHOD = (
    "The lips' opening, found by FaceMesh in the painted faces, is compared with the voice below and above 650 Hz, and "
    "that agreement with the one at wrong times, which is chance: real mouths are 2.7 to 5.7 deviations above it, so "
    "this tells lips that follow from lips that do not, not good from very good. "
    "Seam: the step at the edge of what was pasted, relative to the source's own changes there; 0 = none, below 1 they "
    "hide it. Flicker: change from frame to frame that is no movement, beside the mouth; 1 = as the source."
)


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """What the stages of a run have said at its end. `duration_s`: of the output. `start_s`: of the run."""

    run: RunContext
    model: Model
    duration_s: float
    start_s: float
    faces: FaceStats
    paint: PaintStats
    quality: Quality


def report_of(done: Finished) -> SyncReport:
    """The report of a run that ends now."""
    wall_s, paint, model, count = perf_counter() - done.start_s, done.paint, done.model, done.faces.frames
    first_s, painted = paint.under_way(count)
    pace_s = paint.written_s - first_s
    return SyncReport(
        output=str(done.run.inputs.output),
        bundle=model.bundle.manifest.name,
        provider=model.selection.name,
        frames=count,
        frames_with_face=done.faces.frames_with_face,
        windows=paint.windows,
        duration_s=done.duration_s,
        wall_s=wall_s,
        opened_s=paint.opened_s - done.start_s,
        startup_s=first_s - done.start_s,
        finish_s=done.start_s + wall_s - paint.written_s,
        frames_per_s=(count - painted) / pace_s if pace_s else 0.0,
        stages=done.run.clock.times(),
        engines=model.times(),
        notices=tuple(dict.fromkeys((*model.notices, *done.run.notices.texts))),
        untouched=tuple(done.faces.untouched),
        quality=done.quality.result(),
    )


def write_report(path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> None:
    """Writes the page of a finished run, which contains its pictures; raises `OutputError` if it cannot be written."""
    try:
        write_page(path, Path(report.output).name, [*_sections(source, report, quality, options)])
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error


def _sections(source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> Iterator[Section]:
    length = f"{report.frames} frames ({report.duration_s:.2f} s)"
    yield Section(text=[f"{source.name}, lip-synced: {length}, a face in {report.frames_with_face}"])
    if report.quality is not None and report.quality.alarm:
        yield Section("Alarm", notes=[report.quality.alarm])
    rows = report.quality.rows if report.quality else []
    yield Section(rows=rows, text=[_METHOD if rows else "This run painted no face, so nothing was measured."])
    shown = [([each.before, each.after], f"{each.time_s:.2f} s: {each.shows}") for each in quality.moments()]
    if shown:
        yield Section("Before and after", pictures=shown)
    curves = quality.curves()
    for speaker, (start_s, found) in enumerate(zip(quality.starts_s, curves, strict=True)):
        if found is not None:
            title = f"Speaker {speaker}: lips and speech" if len(curves) > 1 else "Lips and speech"
            began = f"The speech begins at {float(start_s):.2f} s of the video." if start_s else ""
            yield Section(title, drawing=svg(sync_figure({"lips": found}, began)))
    names = [f"speaker {speaker}" if len(curves) > 1 else "face" for speaker in range(len(curves))]
    yield from sections(dict(zip(names, quality.syncnet, strict=False)))
    untouched = [(f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason) for part in report.untouched]
    if untouched:
        yield Section("Left as it was", untouched, ("from, s", "to, s", "why"))
    painting = f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s"
    facts = {
        "bundle": report.bundle,
        "provider": report.provider,
        "options": " ".join(command_line(options, leave_out=(*_FILES, "overwrite"))) or "all at their defaults",
        "time": f"{report.startup_s:.1f} s start-up + {painting}",
        "busy": ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages),
        "version": f"latentsync-trt {__version__}",
    }
    yield Section("How it was made", [*facts.items()])
    if report.notices:
        yield Section("Notices", notes=[without_paths(text) for text in report.notices])
