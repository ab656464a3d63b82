"""The page of a finished run."""

from collections.abc import Iterator
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.measure.page import Section, svg, sync_figure, write_page
from latentsync_trt.measure.quality import Quality
from latentsync_trt.measure.syncnet import sections
from latentsync_trt.option_fields import command_line
from latentsync_trt.types import SyncReport
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_NOT_SHOWN = ("c2pa", "faces", "mix", "report", "speaker", "turns", "overwrite")
"""Options; most name files, and a page may be passed on."""

_METHOD = (
    "The lips' opening, found by FaceMesh in the painted faces, is compared with the voice below and above 650 Hz, and "
    "that agreement with the one at wrong times, which is chance: real mouths are 2.7 to 5.7 deviations above it, so "
    "this tells lips that follow from lips that do not, not good from very good."
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
    several = len(curves) > 1
    for speaker, (start_s, found) in enumerate(zip(quality.starts_s, curves, strict=True)):
        if found is not None:
            title = f"Speaker {speaker}: lips and speech" if several else "Lips and speech"
            began = f"The speech begins at {float(start_s):.2f} s of the video." if start_s else ""
            yield Section(title, drawing=svg(sync_figure({"lips": found}, began)))
    yield from sections(
        {f"speaker {number}" if several else "face": meter for number, meter in enumerate(quality.syncnet)}
    )
    untouched = [(f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason) for part in report.untouched]
    if untouched:
        yield Section("Left as it was", untouched, ("from, s", "to, s", "why"))
    painting = f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s"
    facts = {
        "bundle": report.bundle,
        "provider": report.provider,
        "options": " ".join(command_line(options, leave_out=_NOT_SHOWN)) or "all at their defaults",
        "time": f"{report.startup_s:.1f} s start-up + {painting}",
        "busy": ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages),
        "version": f"latentsync-trt {__version__}",
    }
    yield Section("How it was made", [*facts.items()])
    if report.notices:
        yield Section("Notices", notes=[without_paths(text) for text in report.notices])
