"""The page of a finished run: its measures, the lips over time, and pictures before and after."""

from base64 import b64encode
from fractions import Fraction
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.option_fields import command_line
from latentsync_trt.paths import check_file_to_write, local_path
from latentsync_trt.privacy import without_paths
from latentsync_trt.sync.html import svg, write_html
from latentsync_trt.sync.lip_figure import sync_figure
from latentsync_trt.sync.quality import Quality
from latentsync_trt.types import SyncReport
from latentsync_trt.version import __version__

_SUFFIXES = (".html", ".htm")

_FILES = ("c2pa", "faces", "mix", "report", "speaker", "turns")
"""Options that name files: a page may be passed on."""


def page_path(name: object) -> Path:
    """The path of `--report`; raises `InputError` if no page can be written there."""
    path = local_path(str(name), "--report")
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"--report {path}: is not the name of a page; end it with .html")
    check_file_to_write(path, "--report")
    return path


def write_page(path: Path, source: Path, report: SyncReport, quality: Quality, options: SyncOptions) -> None:
    """Writes the page, which contains its pictures; raises `OutputError` if it cannot be written."""
    spoken = zip(quality.starts_s, quality.curves(), strict=True)
    values = {
        "title": Path(report.output).name,
        "source": source.name,
        "report": report,
        "figures": [
            (f"Speaker {speaker}: lips and speech", svg(sync_figure({"lips": curves}, _began(start_s))))
            for speaker, (start_s, curves) in enumerate(spoken)
            if curves is not None
        ],
        "moments": quality.moments(),
        "untouched": [(f"{part.start_s:.2f}", f"{part.end_s:.2f}", part.reason) for part in report.untouched],
        "facts": _facts(report, options),
        "notices": [without_paths(text) for text in report.notices],
        "inline": _inline,
    }
    try:
        write_html("sync.html.j2", path, **values)
    except OutputError as error:
        raise OutputError(f"{error}; the video is complete: {report.output}") from error


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


def _inline(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
