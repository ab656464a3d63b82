"""The page of a finished run."""

from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import OutputError
from latentsync_trt.measure.page import svg, sync_figure, write_page
from latentsync_trt.measure.quality import Quality
from latentsync_trt.measure.syncnet import shown
from latentsync_trt.option_fields import command_line
from latentsync_trt.types import SyncReport
from latentsync_trt.unexpected import without_paths
from latentsync_trt.version import __version__

_NOT_SHOWN = ("c2pa", "faces", "mix", "report", "speaker", "turns", "overwrite")
"""Options; most name files, and a page may be passed on."""


def write_report(path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> None:
    """Writes the page of a finished run, which contains its pictures; raises `OutputError` if it cannot be written."""
    curves = quality.curves()
    names = [f"speaker {number}" if len(curves) > 1 else "face" for number in range(len(curves))]
    lips = []
    for name, start_s, found in zip(names, quality.starts_s, curves, strict=True):
        if found is not None:
            title = f"{name.capitalize()}: lips and speech" if len(curves) > 1 else "Lips and speech"
            began = f"The speech begins at {float(start_s):.2f} s of the video." if start_s else ""
            lips.append((title, svg(sync_figure({"lips": found}, began))))
    facts = {
        "bundle": report.bundle,
        "provider": report.provider,
        "options": " ".join(command_line(options, leave_out=_NOT_SHOWN)) or "all at their defaults",
        "time": f"{report.startup_s:.1f} s start-up + {report.painting_s:.1f} s at {report.frames_per_s:.1f} frames/s",
        "busy": ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages),
        "version": f"latentsync-trt {__version__}",
    }
    try:
        write_page(
            path,
            "sync.html.j2",
            title=Path(report.output).name,
            source=source.name,
            report=report,
            quality=report.quality,
            moments=[([each.before, each.after], f"{each.time_s:.2f} s: {each.shows}") for each in quality.moments()],
            lips=lips,
            syncnet=shown(dict(zip(names, quality.syncnet, strict=False))),
            untouched=[(f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason) for part in report.untouched],
            facts=facts.items(),
            notices=[without_paths(text) for text in report.notices],
        )
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error
