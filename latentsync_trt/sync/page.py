"""The page of a finished run: its measures, the lips over time, and pictures before and after."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.measure.page import Section, svg, sync_figure, write_page
from latentsync_trt.option_fields import command_line
from latentsync_trt.sync.quality import Quality
from latentsync_trt.types import SyncReport
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_FILES = ("c2pa", "faces", "mix", "report", "speaker", "turns")
"""Options that name files: a page may be passed on."""

_METHOD = (
    "The lips' opening, found by FaceMesh in the painted faces, is compared with the loudness of the speech, which "
    "says little about single sounds: it tells lips that follow from lips that do not, not good from very good. "
    "Seam: the step at the edge of what was pasted, relative to the source's own changes there; 0 = none, below 1 they "
    "hide it. Flicker: change from frame to frame that is no movement, beside the mouth; 1 = as the source."
)


def write_report(path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> None:
    """Writes the page, which contains its pictures; raises `OutputError` if it cannot be written."""
    try:
        write_page(path, Path(report.output).name, [*_sections(source, report, quality, options)])
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error


def _sections(source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> Iterator[Section]:
    yield Section(
        text=[
            f"{source.name}, lip-synced: {report.frames} frames ({report.duration_s:.2f} s), "
            f"a face in {report.frames_with_face}"
        ]
    )
    rows = report.quality.rows if report.quality else []
    yield Section(rows=rows, text=[_METHOD if rows else "This run painted no face, so nothing was measured."])
    shown = [([each.before, each.after], f"{each.time_s:.2f} s: {each.shows}") for each in quality.moments()]
    if shown:
        yield Section("Before and after", pictures=shown)
    curves = quality.curves()
    for speaker, (start_s, found) in enumerate(zip(quality.starts_s, curves, strict=True)):
        if found is not None:
            title = f"Speaker {speaker}: lips and speech" if len(curves) > 1 else "Lips and speech"
            yield Section(title, drawing=svg(sync_figure({"lips": found}, _began(start_s))))
    untouched = [(f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason) for part in report.untouched]
    if untouched:
        yield Section("Left as it was", untouched, ("from, s", "to, s", "why"))
    yield Section("How it was made", _facts(report, options))
    if report.notices:
        yield Section("Notices", notes=[without_paths(text) for text in report.notices])


def _began(start_s: Fraction) -> str:
    return f"The speech begins at {float(start_s):.2f} s of the video." if start_s else ""


def _facts(report: SyncReport, options: SyncOptions) -> list[tuple[str, str]]:
    painting = f"{report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s"
    return [
        ("bundle", report.bundle),
        ("provider", report.provider),
        ("options", " ".join(command_line(options, leave_out=_FILES)) or "all at their defaults"),
        ("time", f"{report.startup_s:.1f} s start-up + {painting}"),
        ("busy", ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages)),
        ("version", f"latentsync-trt {__version__}"),
    ]
