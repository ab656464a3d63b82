"""The page of a finished run: its measures, the lips over time, and pictures before and after."""

import math
from base64 import b64encode
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from latentsync_trt.config import MODEL_FPS, SyncOptions, command_line
from latentsync_trt.errors import InputError, OutputError
from latentsync_trt.paths import check_file_to_write, local_path
from latentsync_trt.privacy import without_paths
from latentsync_trt.sync.html import svg, write_html
from latentsync_trt.sync.lip_figure import sync_figure
from latentsync_trt.sync.lips import Curves
from latentsync_trt.sync.quality import Quality
from latentsync_trt.types import Float32Array, SyncReport
from latentsync_trt.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".html", ".htm")

_MOST_POINTS = 1500
"""More could not be told apart in the figure's width."""

_FILES = ("c2pa_cert", "c2pa_key", "faces", "mix", "report", "speaker", "turns")
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
            (f"Speaker {speaker}: lips and speech", svg(_figure(curves, start_s)))
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


def _figure(curves: Curves, start_s: Fraction) -> "Figure":
    """Of the whole clip; each point is the largest value of its share of a long one."""
    step = math.ceil(len(curves) / _MOST_POINTS)
    largest = Curves(_largest(curves.gaps, step), _largest(curves.level_db, step))
    began = f"The speech begins at {float(start_s):.2f} s of the video. " if start_s else ""
    points = f"Each point is the largest value in {step / MODEL_FPS:.2f} s." if step > 1 else ""
    return sync_figure({"lips": largest}, began + points, fps=MODEL_FPS / step, most_s=math.inf)


def _largest(values: Float32Array, step: int) -> Float32Array:
    padded = np.pad(values, (0, -len(values) % step), constant_values=np.nan)
    return np.asarray(np.fmax.reduce(padded.reshape(-1, step), axis=1), np.float32)


def _facts(report: SyncReport, options: SyncOptions) -> list[tuple[str, str]]:
    running_s = report.wall_s - report.startup_s
    return [
        ("bundle", report.bundle),
        ("provider", report.provider),
        ("options", " ".join(command_line(options, leave_out=_FILES)) or "all at their defaults"),
        ("time", f"{running_s:.1f} s + {report.startup_s:.1f} s start-up; {report.frames_per_s:.1f} frames/s"),
        ("busy", ", ".join(f"{stage.stage} {stage.busy_s:.1f} s" for stage in report.stages)),
        ("version", f"latentsync-trt {__version__}"),
    ]


def _inline(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{b64encode(jpeg).decode()}"
